"""Builds the rows of new deliveries, to webhooks and by mail. Pure: the caller stores them."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from orchestrator.webhooks.models import Delivery, DeliveryStatus, Webhook, WebhookStatus

PAUSED_TEXT: Final = "The webhook was paused when the event occurred."


def webhook_delivery(webhook: Webhook, event_id: UUID, envelope: dict[str, Any], body: str, now: datetime) -> Delivery:
    """Return a new delivery of an envelope to a webhook; a dead letter if the webhook is not active.

    Args:
        webhook: The receiver.
        event_id: The id of the event, equal in every try.
        envelope: The members of the body.
        body: The body.
        now: The present.
    """
    delivery = Delivery(
        org_slug=webhook.organization.slug,
        webhook=webhook,
        event_id=event_id,
        event_type=envelope["eventType"],
        job_type=envelope["jobType"] or "",
        job_uuid=envelope["jobId"],
        body=body,
        created_at=now,
        due_at=now,
    )
    if webhook.status != WebhookStatus.ACTIVE:
        delivery.status, delivery.due_at, delivery.finished_at = DeliveryStatus.DEAD, None, now
        delivery.last_error = PAUSED_TEXT
    return delivery


def mail_delivery(
    org_slug: str, recipients: Sequence[str], event_id: UUID, *, envelope: dict[str, Any], body: str, now: datetime
) -> Delivery:
    """Return a new mail with an envelope. Its text is made of the body when it is sent.

    Args:
        org_slug: The organization.
        recipients: The addresses.
        event_id: The id of the notification.
        envelope: The members of the body.
        body: The body.
        now: The present.
    """
    return Delivery(
        org_slug=org_slug,
        recipients=list(recipients),
        event_id=event_id,
        event_type=envelope["eventType"],
        job_type=envelope["jobType"] or "",
        job_uuid=envelope["jobId"],
        body=body,
        created_at=now,
        due_at=now,
    )
