"""Limits of jobs that operators and tenants set: running jobs, start rates, pauses and throttles.

Each change is recorded in the audit log of operators.
"""

from collections.abc import Container
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from leases.advisory_locks import QUEUES_OF_ORGANIZATION, advisory_xact_lock
from leases.models import Limit, LimitKind
from leases.scheduling import limits as stored_limits
from leases.scheduling.limits import ALL_TYPES, LimitTarget
from orchestrator.core.cause import Cause
from orchestrator.core.idempotency import IdempotentRequest
from orchestrator.core.operator_events import record_operator_event
from orchestrator.core.unit_of_work import UnitOfWork, operation
from orchestrator.services.priority import end_emergencies
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import Invalid, NotFound, OperatorOnly, VersionConflict
from runtime_jobs.events import SCHEDULER, Actor
from runtime_jobs.priorities import EMERGENCY


@dataclass(frozen=True)
class LimitTerms:
    """Says what a limit allows: running jobs, or starts. With neither the limit is removed.

    Attributes:
        max_active: The maximum number of running jobs; 0 for a pause.
        per_hour: Starts in an hour.
        burst: The maximum number of starts at once. Without `per_hour` it means nothing.
        until: The end of a pause or throttle. None: it ends when it is removed.
    """

    max_active: int | None = None
    per_hour: int | None = None
    burst: int = 1
    until: datetime | None = None

    @property
    def columns(self) -> dict[str, Any] | None:
        """The columns of the limit, or None if it is removed."""
        if self.per_hour is not None:
            return {"per_hour": self.per_hour, "burst": self.burst, "until": self.until}
        return None if self.max_active is None else {"max_active": self.max_active, "until": self.until}


UNLIMITED = LimitTerms()
# What each temporary kind makes of its target, for the refusal to remove one that is not there.
_TEMPORARY_STATES = {LimitKind.PAUSE: "paused", LimitKind.THROTTLE: "throttled"}


@operation
def set_limit(
    uow: UnitOfWork,
    kind: LimitKind,
    target: LimitTarget,
    terms: LimitTerms,
    *,
    cause: Cause,
    if_versions: Container[int] | None = None,
    idempotency: IdempotentRequest | None = None,
) -> Limit | None:
    """Set, change or remove a limit, and record it in the audit log.

    Running jobs above a lowered limit continue. No job starts until there is room.

    Args:
        kind: `EMERGENCY` limits the jobs that skip the queue, and no other limit applies to them. The other kinds
            limit all jobs of the target; a limit of kind `PROJECT` counts emergency jobs without stopping them.
        target: The jobs that the limit applies to. A project must exist.
        if_versions: The limit must have one of these versions; 0 is no limit. None: any.
        idempotency: The idempotency key of a request that creates a limit.

    Returns:
        The limit, or None if it was removed.

    Raises:
        Invalid: The end is not in the future.
        NotFound: There is no such pause or throttle to remove.
        VersionConflict: The limit has another version.
        OperatorOnly: The actor is a client, and the limit is an operator's or of kind `EMERGENCY`.
    """
    if terms.until is not None and terms.until <= (cause.now or database_now()):
        raise Invalid({"until": ["`until` must be in the future."]})
    # Of two changes at once, the later one sees the earlier one.
    advisory_xact_lock(QUEUES_OF_ORGANIZATION, target.org_slug)
    before = target.limit(kind)
    if before is None and terms.columns is None and kind in _TEMPORARY_STATES:
        raise NotFound(f"{target} is not {_TEMPORARY_STATES[kind]}.")
    require_allowed(kind, before, cause.actor)
    version = before.version if before else 0
    if if_versions is not None and version not in if_versions:
        message = f'The limit has version {version}: If-Match must be "{version}", without W/. Read the limit again.'
        raise VersionConflict(message, version=version)
    limit = change_limit(uow, kind, target, terms, cause)
    if limit is not None and idempotency:
        idempotency.bind(str(limit.pk), now=cause.now or database_now())
    _record(target, cause, before, limit)
    return limit


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
    target, cause = LimitTarget.of_limit(limit), Cause(SCHEDULER, "The limit has expired.", now=now)
    change_limit(uow, LimitKind(limit.kind), target, UNLIMITED, cause)
    _record(target, cause, limit, None)
    return limit


def change_limit(
    uow: UnitOfWork, kind: LimitKind, target: LimitTarget, terms: LimitTerms, cause: Cause
) -> Limit | None:
    """Set or remove a limit. The caller holds the lock of the organization, checks the change and records it.

    Returns:
        The limit, or None if it was removed.
    """
    if (columns := terms.columns) is not None:
        if kind == LimitKind.PROJECT:
            columns["binds_below"] = EMERGENCY
        return stored_limits.set_limit(
            kind, target, set_at=cause.now, actor=str(cause.actor), note=cause.reason, **columns
        )
    stored_limits.remove_limit(kind, target)
    if kind == LimitKind.EMERGENCY and target.key == ALL_TYPES:
        end_emergencies(uow, target.org_slug, now=cause.now or database_now())  # no other limit applies to them
    return None


def require_allowed(kind: LimitKind, before: Limit | None, actor: Actor) -> None:
    """Refuse a client's change of an operator's limit. The caller holds the lock: an operator may be setting it.

    Raises:
        OperatorOnly: The actor is a client, and the limit is an operator's or of kind `EMERGENCY`.
    """
    if actor.kind == "client" and (kind == LimitKind.EMERGENCY or (before and before.is_an_operators)):
        raise OperatorOnly("This limit was set by an operator. Only an operator can change it.")


def _record(target: LimitTarget, cause: Cause, before: Limit | None, after: Limit | None) -> None:
    record_operator_event(
        "limit.lifted" if after is None else "limit.set",
        target=str(target),
        cause=cause,
        before=_describe(before),
        after=_describe(after),
        org_slug=target.org_slug or None,
        job_type=target.job_type,
    )


def _describe(limit: Limit | None) -> dict[str, Any]:
    if limit is None:
        return {}
    terms = {name: getattr(limit, name) for name in ("kind", "max_active", "per_hour", "burst")}
    terms["until"] = limit.until.isoformat() if limit.until else None
    return {name: value for name, value in terms.items() if value is not None}
