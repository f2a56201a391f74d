"""The rows that say what came through the webhook and what became of it."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Q

from orchestrator.protocols.github.models import Outcome, WebhookDelivery
from orchestrator.protocols.github.wire import Event, Ignored
from runtime_jobs.models import Project


@dataclass(frozen=True)
class Delivery:
    """What is known of a delivery beside its payload."""

    delivery_id: str | None
    event: str
    repository: str
    correlation_id: str
    source_address: str | None


def first_of(project: Project, key: str | None, delivery_id: str | None) -> WebhookDelivery | None:
    """The row that made the run for this event or this delivery."""
    same = Q(event_key=key, event_key__isnull=False) | Q(delivery_id=delivery_id, delivery_id__isnull=False)
    made = WebhookDelivery.objects.filter(same, **_owner(project), outcome=Outcome.CREATED)
    return made.order_by("id").first()


def save_delivery(
    project: Project, event: Event | Ignored, delivery: Delivery, at: datetime, **outcome: str | None
) -> WebhookDelivery:
    """Write the delivery's row; over the one that it left when it came before and made nothing."""
    told = _told(event, delivery) | outcome | {"received_at": at}
    if delivery.delivery_id is None:
        return WebhookDelivery.objects.create(**_owner(project), **told)
    name = _owner(project) | {"delivery_id": told.pop("delivery_id")}
    return WebhookDelivery.objects.update_or_create(**name, defaults=told)[0]


def save_repeat(
    project: Project, event: Event | Ignored, delivery: Delivery, at: datetime, *, first: WebhookDelivery
) -> None:
    """The delivery that made the run keeps its row; another one that says the same gets its own, pointing there."""
    if delivery.delivery_id is None or delivery.delivery_id != first.delivery_id:
        made = {"job_ulid": first.job_ulid, "batch_ulid": first.batch_ulid}
        save_delivery(project, event, delivery, at, outcome=Outcome.DUPLICATE, **made)


def save_unclaimed(event: Event | Ignored, delivery: Delivery, at: datetime) -> None:
    """What the installation's secret signed, and no project runs."""
    why = event.reason if isinstance(event, Ignored) else "no enabled project runs this repository"
    told = _told(event, delivery)
    WebhookDelivery.objects.create(**told, outcome=Outcome.IGNORED, reason=why, received_at=at)


def _owner(project: Project) -> dict[str, str]:
    return {"org_slug": project.organization.slug, "project_slug": project.slug}


def _told(event: Event | Ignored, delivery: Delivery) -> dict[str, Any]:
    about = {"git_commit": event.commit, "pull_request_number": event.number} if isinstance(event, Event) else {}
    return about | {
        "delivery_id": delivery.delivery_id,
        "event": delivery.event,
        "action": event.action,
        "repository": delivery.repository,
        "source_address": delivery.source_address,
    }
