"""Sources of jobs are paused, resumed and throttled: an operator's or a tenant's word, for a while."""

from datetime import datetime

from leases.advisory_locks import QUEUES_OF_ORGANIZATION, advisory_xact_lock
from leases.models import Limit, LimitKind, LimitScope
from leases.scheduling.limits import LimitTarget
from orchestrator.services.limits import apply_limit_change
from orchestrator.services.unit_of_work.operation import operation
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import Invalid, NotFound
from runtime_jobs.events import SCHEDULER, Actor


@operation
def pause(
    *,
    subject: LimitTarget,
    actor: Actor,
    reason: str,
    until: datetime | None = None,
    source_address: str | None = None,
    now: datetime | None = None,
) -> Limit | None:
    """Start no more of these jobs until `until`, or until somebody resumes. What runs, runs on.

    Raises OperatorOnly, as the next two."""
    _require_future(until, now)
    terms = {"max_active": 0, "until": until, "note": reason}
    return apply_limit_change(
        LimitKind.PAUSE, subject, terms, actor=actor, reason=reason, source=source_address, now=now
    )


@operation
def resume(
    *, subject: LimitTarget, actor: Actor, reason: str, source_address: str | None = None, now: datetime | None = None
) -> None:
    """Let paused jobs start again. Raises NotFound where nothing is paused."""
    if subject.limit(LimitKind.PAUSE) is None:
        raise NotFound("That is not paused.")
    apply_limit_change(LimitKind.PAUSE, subject, None, actor=actor, reason=reason, source=source_address, now=now)


@operation
def throttle(
    *,
    subject: LimitTarget,
    per_hour: int | None,
    actor: Actor,
    reason: str,
    burst: int = 1,
    until: datetime | None = None,
    source_address: str | None = None,
    now: datetime | None = None,
) -> Limit | None:
    """Let only `per_hour` of these jobs start in an hour for a while, besides their other limits; None: no more of it.

    Raises NotFound for an end of what is not throttled."""
    _require_future(until, now)
    if per_hour is None and subject.limit(LimitKind.THROTTLE) is None:
        raise NotFound("That is not throttled.")
    terms = None if per_hour is None else {"per_hour": per_hour, "burst": burst, "until": until, "note": reason}
    return apply_limit_change(
        LimitKind.THROTTLE, subject, terms, actor=actor, reason=reason, source=source_address, now=now
    )


@operation
def remove_expired(*, limit_id: int, now: datetime | None = None) -> Limit | None:
    """Remove a pause or a throttle whose time has passed, if it is still so."""
    limit = Limit.objects.filter(pk=limit_id).first()
    if limit is None:
        return None
    advisory_xact_lock(QUEUES_OF_ORGANIZATION, limit.org_slug)
    # Read again after the lock: an operator may have given it another end meanwhile.
    limit = Limit.objects.filter(pk=limit_id, until__lte=now or database_now()).first()
    if limit is None:
        return None
    subject = LimitTarget(LimitScope(limit.scope), limit.org_slug, limit.key)
    apply_limit_change(
        LimitKind(limit.kind), subject, None, actor=SCHEDULER, reason="Its time has come.", source=None, now=now
    )
    return limit


def _require_future(until: datetime | None, now: datetime | None) -> None:
    """Raises Invalid where the end has passed already."""
    if until is not None and until <= (now or database_now()):
        raise Invalid({"until": ["That is over."]})
