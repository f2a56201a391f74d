"""JSON of bulk actions. Pure functions: they run no query."""

from typing import Any

from orchestrator.bulk_actions.models import BulkAction, BulkTarget
from orchestrator.core.datetimes import format_timestamp
from orchestrator.http.api.actors import serialize_actor


def serialize_bulk_action(row: BulkAction) -> dict[str, Any]:
    """Return a bulk action with its progress. Its organization was read with it."""
    return {
        "bulk_action_id": row.bulk_action_ulid,
        "org_slug": row.organization.slug,
        "action": row.action,
        "filter": row.filters,
        "reason": row.reason,
        "status": str(row.status),
        "total": row.total,
        "done": row.done,
        "refused": row.refused,
        "created_by": {"kind": row.actor_kind, "id": row.actor_name},
        "aborted_by": serialize_actor(row.aborted_by),
        "created_at": format_timestamp(row.created_at),
        "started_at": format_timestamp(row.started_at),
        "finished_at": format_timestamp(row.finished_at),
    }


def serialize_refusal(target: BulkTarget) -> dict[str, Any]:
    """Return the refusal of one target."""
    return {
        "id": target.subject_ulid,
        "code": target.error_code,
        "detail": target.detail,
        "refused_at": format_timestamp(target.finished_at),
    }
