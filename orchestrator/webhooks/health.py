"""Records the results of tries with their webhooks: since when one fails, and when it is paused or disabled."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from orchestrator.core.cause import Cause
from orchestrator.core.operator_events import record_event_of
from orchestrator.core.unit_of_work import UnitOfWork
from orchestrator.incidents.models import IncidentKind
from orchestrator.incidents.operations import open_incident
from orchestrator.webhooks.models import Webhook, WebhookStatus
from runtime_jobs.db_time import database_now
from runtime_jobs.events import SYSTEM

if TYPE_CHECKING:
    from orchestrator.webhooks.delivery_queue import FinishedTry

PAUSED_AFTER: Final = timedelta(days=5)  # of failures without a success


def record_health(uow: UnitOfWork, tries: Sequence["FinishedTry"], *, now: datetime | None) -> None:
    """Record since when webhooks fail, in the transaction that records the tries.

    A receiver that answers 410 disables its webhook. Five days of failures pause it and open an incident. A success
    ends the time of failures. A webhook that succeeds and did not fail before is neither locked nor read.

    Args:
        uow: The unit of work of the operation that records the tries.
        tries: The tries that have ended.
        now: The present; by default the time of the database.
    """
    concerned = {
        one.delivery.webhook_id
        for one in tries
        if one.delivery.webhook_id is not None and (one.delivery.is_failing or not one.result.is_success)
    }
    if not concerned:
        return
    rows = Webhook.objects.filter(pk__in=concerned).order_by("pk").select_related("organization")
    webhooks = {webhook.pk: webhook for webhook in rows.select_for_update(of=("self",), no_key=True)}
    recorded_at = now or database_now()
    for key, webhook in webhooks.items():
        results = [one.result for one in tries if one.delivery.webhook_id == key]
        if webhook.status != WebhookStatus.ACTIVE:
            continue
        if any(result.is_gone for result in results):
            text = "The receiver answered 410: it wants no further deliveries."
            _end(webhook, WebhookStatus.DISABLED, text, recorded_at)
        elif any(result.is_success for result in results):
            webhook.failing_since = None
            webhook.save(update_fields=["failing_since"])
        else:
            _record_failure(uow, webhook, recorded_at)


def _record_failure(uow: UnitOfWork, webhook: Webhook, now: datetime) -> None:
    if webhook.failing_since is None:
        webhook.failing_since = now
        webhook.save(update_fields=["failing_since"])
    elif now - webhook.failing_since >= PAUSED_AFTER:
        text = f"All deliveries have failed for {PAUSED_AFTER.days} days."
        _end(webhook, WebhookStatus.PAUSED, text, now)
        open_incident(
            uow,
            IncidentKind.WEBHOOK,
            org_slug=webhook.organization.slug,
            job_type="",
            webhook_ulid=webhook.webhook_ulid,
            summary=f"The webhook {webhook.webhook_ulid} was paused: {text}",
            now=now,
        )


def _end(webhook: Webhook, status: WebhookStatus, reason: str, now: datetime) -> None:
    webhook.status, webhook.status_reason = status, reason
    webhook.updated_at, webhook.updated_by = now, str(SYSTEM)
    webhook.save(update_fields=["status", "status_reason", "updated_at", "updated_by"])
    before, after = {"status": "active"}, {"status": str(status)}
    record_event_of(webhook, str(status), Cause(SYSTEM, reason, now=now), before=before, after=after)
