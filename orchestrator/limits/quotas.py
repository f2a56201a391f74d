"""Changes a quota: the concurrency, rate and emergency limits of one organization and job type at once."""

from collections.abc import Container, Mapping

from leases.advisory_locks import QUEUES_OF_ORGANIZATION, advisory_xact_lock
from leases.models import LimitKind
from leases.scheduling.limit_attachment import lock_for_changes
from leases.scheduling.limits import ALL_TYPES
from leases.scheduling.quotas import Quota, read_quota
from orchestrator.core.cause import Cause
from orchestrator.core.operator_events import record_operator_event
from orchestrator.core.unit_of_work import UnitOfWork, operation
from orchestrator.limits.job_limits import UNLIMITED, LimitTerms, change_limit, require_allowed
from runtime_jobs.errors import Invalid, VersionConflict

# The limit that each field of a quota belongs to.
FIELDS = {
    "max_active": LimitKind.ORGANIZATION,
    "per_hour": LimitKind.RATE,
    "burst": LimitKind.RATE,
    "emergency_max_active": LimitKind.EMERGENCY,
}


@operation
def set_quota(
    uow: UnitOfWork,
    *,
    org_slug: str,
    job_type: str = ALL_TYPES,
    changes: Mapping[str, int | None],
    cause: Cause,
    if_versions: Container[str] | None = None,
) -> Quota:
    """Change all named fields of a quota in one transaction, with one event in the audit log.

    Running jobs above a lowered limit continue. No job starts until there is room.

    Args:
        org_slug: The organization.
        job_type: The job type, or all types.
        changes: The new values by the names in `FIELDS`. A field that is missing stays; None removes the limit.
        if_versions: The quota must have one of these versions. None: any.

    Returns:
        The quota after the change.

    Raises:
        OperatorOnly: The actor is a client, and one of the limits is an operator's or of kind `EMERGENCY`.
        VersionConflict: The quota has another version.
        Invalid: A field has no meaning without another one.
    """
    # Of two changes at once, the later one sees the earlier one. A version that was read before may be old here.
    advisory_xact_lock(QUEUES_OF_ORGANIZATION, org_slug)
    before = read_quota(org_slug, job_type)
    for kind in {FIELDS[name]: None for name in changes}:
        require_allowed(kind, before.limits.get(kind), cause.actor)
    if if_versions is not None and (version := before.version) not in if_versions:
        message = f'The quota has version {version}: If-Match must be "{version}", without W/. Read the quota again.'
        raise VersionConflict(message, version=before.version)
    changed = _terms_by_kind(before, changes)
    if not changed:
        return before
    if len(changed) > 1:
        existing = [limit for kind, limit in before.limits.items() if kind in changed]
        counts_running = any(kind not in before.limits and kind != LimitKind.RATE for kind in changed)
        lock_for_changes(org_slug, job_type, existing, counts_running=counts_running)
    for kind, terms in changed.items():
        change_limit(uow, kind, before.target, terms, cause)
    after = read_quota(org_slug, job_type)
    record_operator_event(
        "quota.set",
        target=str(before.target),
        cause=cause,
        before=_describe(before),
        after=_describe(after),
        org_slug=org_slug,
        job_type=before.target.job_type,
    )
    return after


def _terms_by_kind(quota: Quota, changes: Mapping[str, int | None]) -> dict[LimitKind, LimitTerms]:
    """Return the new terms of each limit that changes. One that is not set needs no removal."""
    terms: dict[LimitKind, LimitTerms] = {}
    if "max_active" in changes:
        terms[LimitKind.ORGANIZATION] = LimitTerms(max_active=changes["max_active"])
    if "per_hour" in changes or "burst" in changes:
        terms[LimitKind.RATE] = _rate(_describe(quota), changes)
    if "emergency_max_active" in changes:
        if quota.job_type != ALL_TYPES and changes["emergency_max_active"] is not None:
            raise Invalid({"priority": [f"Only the quota of all job types ({ALL_TYPES}) has an emergency limit."]})
        terms[LimitKind.EMERGENCY] = LimitTerms(max_active=changes["emergency_max_active"])
    return {kind: new for kind, new in terms.items() if new != UNLIMITED or kind in quota.limits}


def _rate(current: Mapping[str, int], changes: Mapping[str, int | None]) -> LimitTerms:
    per_hour = changes.get("per_hour", current.get("per_hour"))
    if per_hour is None:
        if changes.get("burst") is not None:
            raise Invalid({"burst": ["A burst needs a number of starts per hour."]})
        return UNLIMITED
    burst = changes.get("burst", current.get("burst", 1))
    if burst is None:
        raise Invalid({"burst": ["Must be a number while the starts per hour are limited."]})
    return LimitTerms(per_hour=per_hour, burst=burst)


def _describe(quota: Quota) -> dict[str, int]:
    """Return the fields that are set, by the names in `FIELDS`."""
    found: dict[str, int | None] = {}
    if quota.concurrency:
        found["max_active"] = quota.concurrency.max_active
    if quota.rate:
        found |= {"per_hour": quota.rate.per_hour, "burst": quota.rate.burst}
    if quota.emergency:
        found["emergency_max_active"] = quota.emergency.max_active
    return {name: value for name, value in found.items() if value is not None}
