"""JSON of limits and quotas."""

from datetime import datetime
from typing import Any

from leases.models import Limit, LimitKind
from leases.scheduling.submit_quotas import remaining_quota, waiting_jobs
from orchestrator.core.datetimes import format_timestamp
from orchestrator.http.api.actors import serialize_actor
from runtime_jobs.models import Organization


def serialize_limit(limit: Any, now: datetime) -> dict[str, Any]:
    """Return a limit as it is at `now`. It comes from `Limit.objects.counted()`."""
    return {
        "limit_id": limit.pk,
        "kind": limit.kind,
        "scope": limit.scope,
        "org_slug": limit.org_slug or None,
        "key": limit.key,
        "max_active": limit.max_active,
        "running": None if limit.max_active is None or limit.kind == LimitKind.PAUSE else limit.running,
        "per_hour": limit.per_hour,
        "burst": limit.burst,
        "next_start_at": format_timestamp(next_start(limit, now)),
        "until": format_timestamp(limit.until),
        "waiting": limit.waiting,
        "reason": limit.note,
        "set_by": serialize_actor(limit.set_by),
        "set_at": format_timestamp(limit.set_at),
        "version": limit.version,
    }


def next_start(limit: Limit, now: datetime) -> datetime | None:
    """Return when the next job can start without any other change.

    None means now, or when a job ends or the limit is changed.
    """
    if limit.kind == LimitKind.PAUSE:
        return limit.until
    next_start_at = limit.next_start_at
    if next_start_at is None or next_start_at <= now:
        return None
    return min(next_start_at, limit.until) if limit.until else next_start_at


def serialize_quota(organization: Organization) -> dict[str, Any]:
    """Return the submit quota of the organization. Runs queries for its current use."""
    quota = remaining_quota(organization)
    refusal = quota.refusal()
    return {
        "org_slug": organization.slug,
        "plan": organization.plan.name,
        "queued": waiting_jobs(organization.slug),
        "max_queued": quota.terms.max_queued,
        "submits_per_minute": quota.terms.per_minute,
        "submit_burst": None if quota.terms.per_minute is None else quota.terms.burst,
        "refused": refusal.code if refusal else None,
        "retry_after": refusal.facts["retry_after"] if refusal else None,
    }
