"""The audit log of what concerns no single job: tokens, workers, limits, breakers, tenants."""

from datetime import datetime
from typing import Any

from django.core.serializers.json import DjangoJSONEncoder
from django.db.models import Model, QuerySet

from orchestrator.core.cause import Cause
from runtime_jobs.db_time import database_now
from runtime_jobs.identifiers import new_event_id
from runtime_jobs.models import OperatorEvent


def record_operator_event(
    action: str,
    *,
    target: str,
    cause: Cause,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
    org_slug: str | None = None,
    job_type: str | None = None,
) -> OperatorEvent:
    """Record an action that does not concern a single job, in the transaction of the action.

    Args:
        action: The type of the event, such as `worker.state`.
        target: The resource that was changed.
        before: The changed fields before, as JSON values.
        after: The changed fields after, as JSON values.
        org_slug: The organization that the action concerns. Its clients may read the event. None: the installation.
        job_type: The job type that the action concerns, or None.
    """
    event = build_operator_event(
        action,
        target=target,
        cause=cause,
        before=before,
        after=after,
        org_slug=org_slug,
        job_type=job_type,
        now=cause.now or database_now(),
    )
    event.save(force_insert=True)
    return event


def record_event_of(
    row: Any,
    action: str,
    cause: Cause,
    *,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
) -> None:
    """Record what was done with a row that has a name in events, such as `webhook:whk_…`, its `event_target`.

    Clients of the organization of the row may read the event. Without one it concerns the installation.

    Args:
        action: What was done. `created` makes the type `webhook.created`.
        before: As in `record_operator_event`.
        after: Likewise.
    """
    target: str = row.event_target
    organization = getattr(row, "organization", None)
    record_operator_event(
        f"{target.partition(':')[0]}.{action}",
        target=target[:200],
        cause=cause,
        before=before,
        after=after,
        org_slug=organization and organization.slug,
    )


def record_change_of(row: Any, cause: Cause, *, before: dict[str, Any], after: dict[str, Any]) -> None:
    """Record those members of a row that a change has changed, if it has changed any.

    Args:
        before: All members before the change, as JSON values.
        after: The same members after it.
    """
    before, after = changed_members(before, after)
    if after:
        record_event_of(row, "changed", cause, before=before, after=after)


def changed_members(before: dict[str, Any], after: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return those members of a resource that a change has changed, before and after it, as its event records them.

    Args:
        before: All members before the change, as JSON values.
        after: The same members after it.
    """
    names = [name for name in after if before[name] != after[name]]
    return {name: before[name] for name in names}, {name: after[name] for name in names}


def build_operator_event(
    action: str,
    *,
    target: str,
    cause: Cause,
    now: datetime,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
    org_slug: str | None = None,
    job_type: str | None = None,
) -> OperatorEvent:
    """Return a new event, which a unit of work stores. The arguments are those of `record_operator_event`."""
    return OperatorEvent(
        event_ulid=new_event_id(),
        action=action,
        actor=str(cause.actor),
        target=target,
        before=before,
        after=after,
        reason=cause.reason,
        source_address=cause.source_address,
        org_slug=org_slug,
        job_type=job_type,
        created_at=now,
    )


_encoder = DjangoJSONEncoder()


def to_json_value(value: Any) -> Any:
    """Convert a column's value to JSON for an event."""
    if isinstance(value, Model):
        return str(value)
    if isinstance(value, QuerySet | list | tuple):
        return [to_json_value(item) for item in value]
    return value if isinstance(value, str | int | bool | float | None) else _encoder.default(value)
