"""JSON and ids of quotas."""

from typing import Any

from orchestrator.core.datetimes import format_timestamp
from orchestrator.http.api.actors import serialize_actor
from orchestrator.limits.quota_use import QuotaUse


def quota_id(tenant: str, job_type: str) -> str:
    """Return the id of a quota."""
    return f"{tenant}:{job_type}"


def serialize_tenant_quota(use: QuotaUse) -> dict[str, Any]:
    """Return a quota with its use."""
    quota, newest = use.quota, use.quota.newest
    emergency = quota.emergency and {"maxActive": quota.emergency.max_active, "skipQueue": True}
    return {
        "id": quota_id(quota.org_slug, quota.job_type),
        "tenant": quota.org_slug,
        "jobType": quota.job_type,
        "maxActive": quota.concurrency.max_active if quota.concurrency else None,
        "maxPerHour": quota.rate.per_hour if quota.rate else None,
        "burst": quota.rate.burst if quota.rate else None,
        "priority": {"emergency": emergency},
        "active": use.active,
        "startedLastHour": use.started_last_hour,
        "nextEligibleAt": format_timestamp(use.next_start_at),
        "setBy": serialize_actor(newest.set_by) if newest else None,
        "setAt": format_timestamp(newest.set_at) if newest else None,
        "version": quota.version,
    }
