"""Stores deliveries and their outcomes."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Q

from orchestrator.protocols.github.models import Outcome, WebhookDelivery
from orchestrator.protocols.github.wire import GithubEvent, IgnoredEvent
from runtime_jobs.models import Project


@dataclass(frozen=True)
class DeliveryFacts:
    """The facts about a delivery that are not in its payload."""

    delivery_id: str | None
    event: str
    repository: str
    correlation_id: str
    source_address: str | None


def first_delivery(project: Project, key: str | None, delivery_id: str | None) -> WebhookDelivery | None:
    """Return the delivery that started the run for this event or this delivery id, or None."""
    same = Q(event_key=key, event_key__isnull=False) | Q(delivery_id=delivery_id, delivery_id__isnull=False)
    created = WebhookDelivery.objects.filter(same, **_project_fields(project), outcome=Outcome.CREATED)
    return created.order_by("id").first()


def save_delivery(
    project: Project, event: GithubEvent | IgnoredEvent, delivery: DeliveryFacts, now: datetime, **outcome: str | None
) -> WebhookDelivery:
    """Store a delivery. A redelivery that started no run before overwrites its earlier row."""
    fields = _event_fields(event, delivery) | outcome | {"received_at": now}
    if delivery.delivery_id is None:
        return WebhookDelivery.objects.create(**_project_fields(project), **fields)
    key = _project_fields(project) | {"delivery_id": fields.pop("delivery_id")}
    return WebhookDelivery.objects.update_or_create(**key, defaults=fields)[0]


def save_duplicate(
    project: Project,
    event: GithubEvent | IgnoredEvent,
    delivery: DeliveryFacts,
    now: datetime,
    *,
    first: WebhookDelivery,
) -> None:
    """Store a delivery for which there is a run already. A redelivery of `first` keeps the row of `first`."""
    if delivery.delivery_id is None or delivery.delivery_id != first.delivery_id:
        run = {"job_ulid": first.job_ulid, "batch_ulid": first.batch_ulid}
        save_delivery(project, event, delivery, now, outcome=Outcome.DUPLICATE, **run)


def save_unclaimed(event: GithubEvent | IgnoredEvent, delivery: DeliveryFacts, now: datetime) -> None:
    """Store a delivery that the installation's secret signed and that no project runs."""
    reason = event.reason if isinstance(event, IgnoredEvent) else "no enabled project runs this repository"
    fields = _event_fields(event, delivery)
    WebhookDelivery.objects.create(**fields, outcome=Outcome.IGNORED, reason=reason, received_at=now)


def _project_fields(project: Project) -> dict[str, str]:
    return {"org_slug": project.organization.slug, "project_slug": project.slug}


def _event_fields(event: GithubEvent | IgnoredEvent, delivery: DeliveryFacts) -> dict[str, Any]:
    commit = {"git_commit": event.commit, "pull_request_number": event.number} if isinstance(event, GithubEvent) else {}
    return commit | {
        "delivery_id": delivery.delivery_id,
        "event": delivery.event,
        "action": event.action,
        "repository": delivery.repository,
        "source_address": delivery.source_address,
    }
