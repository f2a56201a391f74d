"""JSON of webhooks and their deliveries. Pure functions: they run no query."""

from collections.abc import Sequence
from typing import Any

from orchestrator.core.datetimes import format_timestamp
from orchestrator.http.api.actors import serialize_actor
from orchestrator.webhooks.deliveries import Redelivered
from orchestrator.webhooks.models import Delivery, DeliveryTry, Webhook
from runtime_jobs.identifiers import public_id_of


def serialize_webhook(webhook: Webhook) -> dict[str, Any]:
    """Return a webhook without its secret. Its organization was read with it."""
    return {
        "webhook_id": webhook.webhook_ulid,
        "org_slug": webhook.organization.slug,
        "url": webhook.url,
        "description": webhook.description,
        "event_types": list(webhook.event_types),
        "job_types": list(webhook.job_types),
        "status": str(webhook.status),
        "status_reason": webhook.status_reason,
        "failing_since": format_timestamp(webhook.failing_since),
        "former_secret_until": format_timestamp(webhook.former_secret_until),
        "updated_by": serialize_actor(webhook.updated_by),
        "created_at": format_timestamp(webhook.created_at),
        "updated_at": format_timestamp(webhook.updated_at),
    }


def serialize_delivery(delivery: Delivery) -> dict[str, Any]:
    """Return a delivery."""
    return {
        "delivery_id": delivery.delivery_ulid,
        "event_id": str(delivery.event_id),
        "event_type": delivery.event_type,
        "job_type": delivery.job_type or None,
        "job_id": None if delivery.job_uuid is None else public_id_of("rtj", delivery.job_uuid),
        "status": str(delivery.status),
        "tries": delivery.tries,
        "last_error": delivery.last_error or None,
        "next_try_at": format_timestamp(delivery.due_at),
        "created_at": format_timestamp(delivery.created_at),
        "finished_at": format_timestamp(delivery.finished_at),
    }


def serialize_delivery_detail(delivery: Delivery, tries: Sequence[DeliveryTry]) -> dict[str, Any]:
    """Return a delivery with its body and tries."""
    return serialize_delivery(delivery) | {
        "body": delivery.body,
        "last_tries": [
            {
                "number": one.number,
                "started_at": format_timestamp(one.started_at),
                "duration_ms": one.duration_ms,
                "status_code": one.status_code,
                "is_success": one.is_success,
                "sentence": one.sentence,
                "answer": one.answer,
            }
            for one in tries
        ],
    }


def serialize_redelivered(result: Redelivered) -> dict[str, Any]:
    """Return the result of a redelivery of many."""
    return {
        "redelivered": result.number,
        "has_more": result.has_more,
        "next_since": format_timestamp(result.next_since),
    }
