"""Limits that operators and tenants set: running jobs, start rates, pauses, throttles, and the policy of a pool.

Each change is recorded in the audit log of operators.
"""

from collections.abc import Container
from datetime import datetime
from typing import Any

from leases.advisory_locks import QUEUES_OF_ORGANIZATION, advisory_xact_lock
from leases.models import Limit, LimitKind, LimitScope
from leases.scheduling import limits as stored_limits
from leases.scheduling.fair_share import disable_fair_share, enable_fair_share
from leases.scheduling.limits import ALL_TYPES, LimitTarget
from leases.scheduling.plan_limits import sync_plan_limits
from orchestrator.core.cause import Cause
from orchestrator.core.idempotency import IdempotentRequest
from orchestrator.core.operator_events import record_operator_event
from orchestrator.core.unit_of_work import UnitOfWork, operation
from orchestrator.services.priority import end_emergencies
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import Invalid, NotFound, OperatorOnly, VersionConflict
from runtime_jobs.events import SCHEDULER, Actor
from runtime_jobs.priorities import EMERGENCY
from workers.models import Pool
from workers.registry.models import PoolPolicy


@operation
def set_limit(
    uow: UnitOfWork,
    *,
    org_slug: str,
    job_type: str = ALL_TYPES,
    max_active: int | None,
    cause: Cause,
    kind: LimitKind = LimitKind.ORGANIZATION,
    if_versions: Container[int] | None = None,
    idempotency: IdempotentRequest | None = None,
) -> Limit | None:
    """Limit the running jobs of an organization and job type.

    Running jobs above a lowered limit continue. No job starts until there is room.

    Args:
        org_slug: The organization.
        job_type: The job type, or all types.
        max_active: The maximum number of running jobs, or None to remove the limit.
        kind: `EMERGENCY` limits the jobs that skip the queue. No other limit applies to them.
        if_versions: The limit must have one of these versions; 0 is no limit. None: any.
        idempotency: The idempotency key of a request that creates a limit.

    Returns:
        The limit, or None if it was removed.

    Raises:
        VersionConflict: The limit has another version.
        OperatorOnly: An operator has set the limit, and the actor is a client.
    """
    terms = None if max_active is None else {"max_active": max_active, "note": cause.reason}
    return apply_limit_change(
        uow,
        kind,
        LimitTarget.of_organization(org_slug, job_type),
        terms,
        cause=cause,
        if_versions=if_versions,
        idempotency=idempotency,
    )


@operation
def set_project_limit(
    uow: UnitOfWork,
    *,
    org_slug: str,
    project_slug: str,
    max_active: int | None,
    cause: Cause,
    if_versions: Container[int] | None = None,
    idempotency: IdempotentRequest | None = None,
) -> Limit | None:
    """Limit the running jobs of a project, of all types together. Emergency jobs count, but are not stopped by it.

    Running jobs above a lowered limit continue. No job starts until there is room.

    Args:
        org_slug: The organization.
        project_slug: The project, which must exist.
        max_active: The maximum number of running jobs, or None to remove the limit.
        if_versions: The limit must have one of these versions; 0 is no limit. None: any.
        idempotency: The idempotency key of a request that creates a limit.

    Returns:
        The limit, or None if it was removed.

    Raises:
        VersionConflict: The limit has another version.
        OperatorOnly: An operator has set the limit, and the actor is a client.
    """
    terms = None if max_active is None else {"max_active": max_active, "binds_below": EMERGENCY, "note": cause.reason}
    return apply_limit_change(
        uow,
        LimitKind.PROJECT,
        LimitTarget.of_project(org_slug, project_slug),
        terms,
        cause=cause,
        if_versions=if_versions,
        idempotency=idempotency,
    )


@operation
def set_rate(
    uow: UnitOfWork,
    *,
    org_slug: str,
    job_type: str = ALL_TYPES,
    per_hour: int | None,
    burst: int = 1,
    cause: Cause,
    if_versions: Container[int] | None = None,
    idempotency: IdempotentRequest | None = None,
) -> Limit | None:
    """Limit the rate at which jobs of an organization and job type start. Jobs above the rate wait.

    Args:
        org_slug: The organization.
        job_type: The job type, or all types.
        per_hour: Starts in an hour, or None to remove the limit.
        burst: The maximum number of starts at once.
        if_versions: The limit must have one of these versions; 0 is no limit. None: any.
        idempotency: The idempotency key of a request that creates a limit.

    Returns:
        The limit, or None if it was removed.

    Raises:
        VersionConflict: The limit has another version.
        OperatorOnly: An operator has set the limit, and the actor is a client.
    """
    terms = None if per_hour is None else {"per_hour": per_hour, "burst": burst, "note": cause.reason}
    return apply_limit_change(
        uow,
        LimitKind.RATE,
        LimitTarget.of_organization(org_slug, job_type),
        terms,
        cause=cause,
        if_versions=if_versions,
        idempotency=idempotency,
    )


@operation
def pause(
    uow: UnitOfWork,
    *,
    subject: LimitTarget,
    cause: Cause,
    until: datetime | None = None,
) -> Limit | None:
    """Stop starting jobs of a pool, project, job type or organization. Running jobs continue.

    Args:
        subject: The target of the pause.
        until: The end of the pause, or None for a pause until `resume`.

    Raises:
        Invalid: `until` is not in the future.
        OperatorOnly: An operator has paused the target, and the actor is a client.
    """
    _require_future(until, cause.now)
    terms = {"max_active": 0, "until": until, "note": cause.reason}
    return apply_limit_change(uow, LimitKind.PAUSE, subject, terms, cause=cause)


@operation
def resume(
    uow: UnitOfWork,
    *,
    subject: LimitTarget,
    cause: Cause,
) -> None:
    """End a pause.

    Args:
        subject: The target of the pause.

    Raises:
        NotFound: The target is not paused.
        OperatorOnly: An operator has paused the target, and the actor is a client.
    """
    if subject.limit(LimitKind.PAUSE) is None:
        raise NotFound(f"{subject} is not paused.")
    apply_limit_change(uow, LimitKind.PAUSE, subject, None, cause=cause)


@operation
def throttle(
    uow: UnitOfWork,
    *,
    subject: LimitTarget,
    per_hour: int | None,
    cause: Cause,
    burst: int = 1,
    until: datetime | None = None,
) -> Limit | None:
    """Limit for some time the rate at which jobs of a target start. Its other limits stay.

    Args:
        subject: The target of the throttle.
        per_hour: Starts in an hour, or None to end the throttle.
        burst: The maximum number of starts at once.
        until: The end of the throttle, or None.

    Returns:
        The limit, or None if it was removed.

    Raises:
        Invalid: `until` is not in the future.
        NotFound: The target is not throttled, and `per_hour` is None.
        OperatorOnly: An operator has throttled the target, and the actor is a client.
    """
    _require_future(until, cause.now)
    if per_hour is None and subject.limit(LimitKind.THROTTLE) is None:
        raise NotFound(f"{subject} is not throttled.")
    terms = None if per_hour is None else {"per_hour": per_hour, "burst": burst, "until": until, "note": cause.reason}
    return apply_limit_change(uow, LimitKind.THROTTLE, subject, terms, cause=cause)


@operation
def remove_expired(uow: UnitOfWork, *, limit_id: int, now: datetime | None = None) -> Limit | None:
    """Remove a pause or a throttle whose time has passed.

    Args:
        limit_id: The key of the limit.

    Returns:
        The limit, or None if it has not expired.
    """
    limit = Limit.objects.filter(pk=limit_id).first()
    if limit is None:
        return None
    advisory_xact_lock(QUEUES_OF_ORGANIZATION, limit.org_slug)
    # Read again after the lock: an operator may have changed the end meanwhile.
    limit = Limit.objects.filter(pk=limit_id, until__lte=now or database_now()).first()
    if limit is None:
        return None
    apply_limit_change(
        uow,
        LimitKind(limit.kind),
        LimitTarget(LimitScope(limit.scope), limit.org_slug, limit.key),
        None,
        cause=Cause(SCHEDULER, "The limit has expired.", now=now),
    )
    return limit


@operation
def set_pool_policy(
    _: UnitOfWork,
    *,
    pool: str,
    policy: PoolPolicy,
    cause: Cause,
) -> None:
    """Set the order in which a pool serves jobs of one priority.

    Args:
        pool: The slug of the pool.
        policy: `fifo` serves the oldest job first, `fair` shares the pool between organizations by weight.
    """
    row = Pool.objects.select_for_update(no_key=True).get(slug=pool)
    before, row.policy = row.policy, policy
    row.save(update_fields=["policy"])
    if policy == PoolPolicy.FAIR:
        enable_fair_share(pool)
    else:
        disable_fair_share(pool)
    record_operator_event(
        "pool.policy",
        target=f"pool:{pool}",
        cause=cause,
        before={"policy": before},
        after={"policy": str(policy)},
    )


@operation
def sync_plan(_: UnitOfWork, *, org_slug: str, now: datetime | None = None) -> str:  # noqa: ARG001 the scheduler passes it
    """Set the limits of an organization to those of its plan, and return its slug."""
    sync_plan_limits(org_slug)
    return org_slug


@operation
def keep_shares(_: UnitOfWork, *, pool: str) -> None:
    """Give each organization with a queue in a `fair` pool its share of the pool."""
    row = Pool.objects.select_for_update(no_key=True).filter(slug=pool, policy=PoolPolicy.FAIR).first()
    if row is not None:
        enable_fair_share(pool)


def apply_limit_change(
    uow: UnitOfWork,
    kind: LimitKind,
    subject: LimitTarget,
    terms: dict[str, Any] | None,
    *,
    cause: Cause,
    if_versions: Container[int] | None = None,
    idempotency: IdempotentRequest | None = None,
) -> Limit | None:
    """Set or remove a limit, and record the change in the audit log.

    Args:
        kind: The kind of the limit.
        subject: The target of the limit.
        terms: The fields of the limit, or None to remove it.
        if_versions: The limit must have one of these versions; 0 is no limit. None: any.
        idempotency: The idempotency key of a request that creates a limit.

    Returns:
        The limit, or None if it was removed.

    Raises:
        VersionConflict: The limit has another version.
        OperatorOnly: The actor is a client, and the limit is an operator's or of kind `EMERGENCY`.
    """
    # Of two changes at once, the later one sees the earlier one.
    advisory_xact_lock(QUEUES_OF_ORGANIZATION, subject.org_slug)
    before = subject.limit(kind)
    require_allowed(kind, before, cause.actor)
    version = before.version if before else 0
    if if_versions is not None and version not in if_versions:
        message = f'The limit has version {version}: If-Match must be "{version}", without W/. Read the limit again.'
        raise VersionConflict(message, version=version)
    limit = change_limit(uow, kind, subject, terms, actor=cause.actor, now=cause.now)
    if limit is not None and idempotency:
        idempotency.bind(str(limit.pk), now=cause.now or database_now())
    record_operator_event(
        "limit.lifted" if limit is None else "limit.set",
        target=str(subject),
        cause=cause,
        before=_describe(before),
        after=_describe(limit),
        org_slug=subject.org_slug or None,
        job_type=subject.job_type,
    )
    return limit


def change_limit(
    uow: UnitOfWork,
    kind: LimitKind,
    subject: LimitTarget,
    terms: dict[str, Any] | None,
    *,
    actor: Actor,
    now: datetime | None,
) -> Limit | None:
    """Set or remove a limit. The caller holds the lock of the organization, checks the change and records it.

    Args:
        kind: The kind of the limit.
        subject: The target of the limit.
        terms: The fields of the limit, or None to remove it.
        actor: The client, operator or scheduler.

    Returns:
        The limit, or None if it was removed.
    """
    if terms is not None:
        return stored_limits.set_limit(kind, subject, set_at=now, actor=str(actor), **terms)
    stored_limits.remove_limit(kind, subject)
    if kind == LimitKind.EMERGENCY and subject.key == ALL_TYPES:
        end_emergencies(uow, subject.org_slug, now=now or database_now())  # no other limit applies to them
    return None


def require_allowed(kind: LimitKind, before: Limit | None, actor: Actor) -> None:
    """Refuse a client's change of an operator's limit. The caller holds the lock: an operator may be setting it.

    Raises:
        OperatorOnly: The actor is a client, and the limit is an operator's or of kind `EMERGENCY`.
    """
    if actor.kind == "client" and (kind == LimitKind.EMERGENCY or (before and before.is_an_operators)):
        raise OperatorOnly("This limit was set by an operator. Only an operator can change it.")


def _describe(limit: Limit | None) -> dict[str, Any]:
    if limit is None:
        return {}
    terms = {name: getattr(limit, name) for name in ("kind", "max_active", "per_hour", "burst")}
    terms["until"] = limit.until.isoformat() if limit.until else None
    return {name: value for name, value in terms.items() if value is not None}


def _require_future(until: datetime | None, now: datetime | None) -> None:
    if until is not None and until <= (now or database_now()):
        raise Invalid({"until": ["`until` must be in the future."]})
