"""Finds the targets of a bulk action: the candidates of its organization that match the filter."""

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from django.db import connection
from django.db.models import QuerySet

from orchestrator.bulk_actions.actions import ACTIONS, JOB, Filters
from orchestrator.incidents.models import Incident

# Members of a filter by the kind of the target. A value is never empty; times are RFC 3339.
_JOB_FILTERS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "project_slug": lambda rows, value: rows.filter(project_slug=value),
    "job_type": lambda rows, value: rows.filter(job_type=value),
    "status": lambda rows, value: rows.with_status(value),
    "pool": lambda rows, value: rows.filter(pool=value),
    "correlation_id": lambda rows, value: rows.filter(correlation_id=value),
    "batch_id": lambda rows, value: rows.filter(batch__batch_ulid=value),
    "git_commit": lambda rows, value: rows.filter(git_commit=value),
    "failure_reason": lambda rows, value: rows.filter(failure_reason=value),
    "created_after": lambda rows, value: rows.filter(created_at__gt=datetime.fromisoformat(value)),
    "created_before": lambda rows, value: rows.filter(created_at__lt=datetime.fromisoformat(value)),
    "job_ids": lambda rows, value: rows.filter(job_ulid__in=value),
}
_INCIDENT_FILTERS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "kind": lambda rows, value: rows.filter(kind=value),
    "job_type": lambda rows, value: rows.filter(job_type=value),
    "reason": lambda rows, value: rows.filter(reason=value),
    "state": lambda rows, value: rows.with_status(value),
    "opened_after": lambda rows, value: rows.filter(opened_at__gt=datetime.fromisoformat(value)),
    "opened_before": lambda rows, value: rows.filter(opened_at__lt=datetime.fromisoformat(value)),
    "incident_ids": lambda rows, value: rows.filter(incident_ulid__in=value),
}
_INSERT: Final = """
INSERT INTO bulk_targets (bulk_action_id, subject_ulid)
SELECT %s, found.ulid FROM ({targets}) AS found (ulid, id) ORDER BY found.id"""


def find_targets(action: str, org_slug: str, filters: Filters) -> QuerySet[Any]:
    """Return the rows that an action would change.

    Args:
        action: The name of the action.
        org_slug: The organization.
        filters: Members of the filter, at least one.
    """
    kind = ACTIONS[action]
    rows, known = kind.candidates(org_slug), _JOB_FILTERS if kind.subject == JOB else _INCIDENT_FILTERS
    for name, value in filters.items():
        rows = known[name](rows, value)
    return rows


def count_targets(action: str, org_slug: str, filters: Filters, *, limit: int) -> int:
    """Return how many rows an action would change, at most `limit` and one."""
    return find_targets(action, org_slug, filters).order_by()[: limit + 1].count()


def store_targets(action_id: int, action: str, org_slug: str, filters: Filters, *, limit: int) -> int:
    """Store the targets of an action, in the order in which their rows were made.

    One statement finds and stores them. So the number in the response is that of the rows that will be changed.

    Args:
        action_id: The key of the action.
        action: Its name.
        org_slug: The organization.
        filters: Members of the filter.
        limit: The largest permitted number.

    Returns:
        The number, at most `limit` and one.
    """
    rows = find_targets(action, org_slug, filters)
    column = "incident_ulid" if rows.model is Incident else "job_ulid"
    found = rows.order_by("id").values_list(column, "id")[: limit + 1]
    sql, values = found.query.sql_with_params()
    with connection.cursor() as cursor:
        cursor.execute(_INSERT.format(targets=sql), [action_id, *values])
        return int(cursor.rowcount)
