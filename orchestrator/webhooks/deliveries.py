"""Deliveries that clients request: tests of a webhook, and deliveries that are sent again under the same id."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import uuid4

import orjson
from django.db.models import Q, QuerySet

from orchestrator.core.cause import Cause
from orchestrator.core.datetimes import format_timestamp
from orchestrator.core.operator_events import record_event_of
from orchestrator.core.unit_of_work import UnitOfWork, operation
from orchestrator.webhooks.models import Delivery, DeliveryStatus, Webhook, WebhookStatus
from orchestrator.webhooks.operations import lock_webhook
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import NotFound, ResourceConflict
from runtime_jobs.event_types import WEBHOOK_TEST

MAX_REDELIVERED: Final = 1000  # by one call, so that it stays short; the next call continues


@dataclass(frozen=True)
class Redelivered:
    """The result of `redeliver_many`.

    Attributes:
        number: The number of deliveries that are sent again.
        has_more: Whether another call would send further ones.
        next_since: The time for that call, if this one had a time.
    """

    number: int
    has_more: bool
    next_since: datetime | None = None


@operation
def send_test(
    _: UnitOfWork,
    *,
    webhook_ulid: str,
    cause: Cause,
) -> Delivery:
    """Create a delivery of the type `webhook.test`. It has the members of every envelope, and no job.

    Raises:
        NotFound: The webhook does not exist.
        ResourceConflict: The webhook is not active.
    """
    webhook = lock_webhook(webhook_ulid)
    _require_active(webhook)
    created_at = cause.now or database_now()
    event_id = uuid4()
    envelope = {
        "eventId": str(event_id),
        "eventType": WEBHOOK_TEST,
        "timestamp": format_timestamp(created_at),
        "tenant": webhook.organization.slug,
        "jobId": None,
        "jobType": None,
        "correlationId": None,
        "idempotencyKey": str(event_id),
        "payload": {"webhookId": webhook.webhook_ulid, "actor": str(cause.actor)},
        "provenance": None,
        "integrity": None,
    }
    delivery = Delivery.objects.create(
        org_slug=webhook.organization.slug,
        webhook=webhook,
        event_id=event_id,
        event_type=WEBHOOK_TEST,
        body=orjson.dumps(envelope).decode(),
        due_at=created_at,
        created_at=created_at,
    )
    record_event_of(webhook, "tested", cause.at(created_at), after={"delivery": delivery.delivery_ulid})
    return delivery


@operation
def redeliver(
    _: UnitOfWork,
    *,
    webhook_ulid: str,
    delivery_ulid: str,
    cause: Cause,
) -> Delivery:
    """Send a delivery again, under the same id and with the same body. Its tries begin a new round.

    Raises:
        NotFound: The webhook has no such delivery.
        ResourceConflict: The delivery is on its way, or the webhook is not active.
    """
    webhook = lock_webhook(webhook_ulid)
    _require_active(webhook)
    rows = Delivery.objects.select_for_update(no_key=True)
    delivery = rows.filter(webhook=webhook, delivery_ulid=delivery_ulid).first()
    if delivery is None:
        raise NotFound("The webhook has no such delivery, or you may not see it.")
    if delivery.status == DeliveryStatus.PENDING:
        raise ResourceConflict("The delivery is on its way. It can be sent again when it has ended.")
    requested_at = cause.now or database_now()
    _begin_round(Delivery.objects.filter(pk=delivery.pk), requested_at)
    record_event_of(webhook, "redelivered", cause.at(requested_at), after={"delivery": delivery_ulid})
    delivery.refresh_from_db()
    return delivery


@operation
def redeliver_many(
    _: UnitOfWork,
    *,
    webhook_ulid: str,
    since: datetime | None,
    cause: Cause,
) -> Redelivered:
    """Send the dead letters of a webhook again, or everything that has ended and was created since a time.

    One call sends at most `MAX_REDELIVERED` deliveries, the oldest first.

    Args:
        since: The time; None: the dead letters of any age.

    Raises:
        NotFound: The webhook does not exist.
        ResourceConflict: The webhook is not active.
    """
    webhook = lock_webhook(webhook_ulid)
    _require_active(webhook)
    requested_at = cause.now or database_now()
    is_wanted = Q(status=DeliveryStatus.DEAD)
    if since is not None:
        is_wanted = ~Q(status=DeliveryStatus.PENDING) & Q(created_at__gte=since)
    rows = Delivery.objects.filter(is_wanted, webhook=webhook).order_by("created_at", "id")
    rows = rows.only("pk", "created_at").select_for_update(no_key=True, skip_locked=True)
    found = list(rows[: MAX_REDELIVERED + 1])
    chosen, has_more = found[:MAX_REDELIVERED], len(found) > MAX_REDELIVERED
    number = _begin_round(Delivery.objects.filter(pk__in=[delivery.pk for delivery in chosen]), requested_at)
    record_event_of(
        webhook, "redelivered", cause.at(requested_at), after={"deliveries": number, "since": format_timestamp(since)}
    )
    next_since = found[MAX_REDELIVERED].created_at if has_more and since is not None else None
    return Redelivered(number, has_more, next_since)


def _begin_round(rows: QuerySet[Delivery], due_at: datetime) -> int:
    return rows.update(
        status=DeliveryStatus.PENDING, due_at=due_at, finished_at=None, round_tries=0, claimed_until=None
    )


def _require_active(webhook: Webhook) -> None:
    if webhook.status != WebhookStatus.ACTIVE:
        raise ResourceConflict(f"The webhook is {webhook.status}. Set its status to active first.")
