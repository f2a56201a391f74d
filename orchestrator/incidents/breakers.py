"""Circuit breakers: stop the jobs of one organization and type while most of them fail, then let one job test it.

The failures of one organization never block another one (document 004, section 4.4).
"""

from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import QuerySet

from leases.advisory_locks import QUEUES_OF_ORGANIZATION, advisory_xact_lock
from leases.models import Breaker, BreakerState, LimitKind, LimitSlot
from leases.scheduling.limits import LimitTarget, remove_limit, set_limit
from orchestrator.core.cause import Cause
from orchestrator.core.operator_events import record_operator_event
from orchestrator.core.unit_of_work import UnitOfWork, operation
from orchestrator.incidents.incident_mode import extend_incident_mode
from orchestrator.incidents.models import Incident, IncidentKind
from orchestrator.incidents.operations import open_incident, resolve
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import NotFound
from runtime_jobs.events import SCHEDULER, Actor
from runtime_jobs.models import Job
from runtime_jobs.states import FailureClass, JobState

MAX_JOBS_EVALUATED = 100  # the newest jobs of the window
ENDED = (JobState.FAILED, JobState.SUCCEEDED)
# A command that fails is the job's own result. It says nothing about the platform that executed it.
COUNTED = (FailureClass.WORKER, FailureClass.INFRASTRUCTURE, FailureClass.POLICY)


@operation
def evaluate_breaker(
    uow: UnitOfWork,
    *,
    org_slug: str,
    job_type: str,
    now: datetime | None = None,
) -> Breaker | None:
    """Open, half-open or close a breaker if that is due.

    Each change is an event in the audit log.

    Args:
        org_slug: The organization.
        job_type: The job type.

    Returns:
        The breaker if it changed, else None.
    """
    breaker = _lock_breaker(org_slug, job_type)
    now = now or database_now()  # after the lock: jobs that ended during the wait lie before it
    if breaker.state == BreakerState.CLOSED:
        ratio = failure_ratio(breaker, now)
        if not ratio:
            return None
        return _open(uow, breaker, now, f"{ratio:.0%} of the last {job_type} jobs of {org_slug} failed.")
    if breaker.state == BreakerState.OPEN:
        return _half_open(breaker, now) if breaker.cool_until and breaker.cool_until <= now else None
    return _evaluate_probe(uow, breaker, now)


@operation
def reset_breaker(
    _: UnitOfWork,
    *,
    org_slug: str,
    job_type: str,
    cause: Cause,
) -> Breaker:
    """Close a breaker at once. Earlier failures do not count any more.

    Args:
        org_slug: The organization.
        job_type: The job type.

    Raises:
        NotFound: The breaker is closed.
    """
    breaker = _lock_breaker(org_slug, job_type)
    now = cause.now or database_now()  # after the lock: jobs that ended during the wait lie before it
    if breaker.state == BreakerState.CLOSED:
        raise NotFound(f"The breaker for {job_type} jobs of {org_slug} is closed.")
    record_operator_event(
        "breaker.reset",
        target=str(_target(breaker)),
        cause=cause.at(now),
        before={"state": breaker.state},
        after={"state": "closed"},
        org_slug=breaker.org_slug or None,
        job_type=breaker.job_type,
    )
    return _close(breaker, now, actor=cause.actor)


def failure_ratio(breaker: Breaker, now: datetime) -> float | None:
    """Return the share of counted failures among the newest jobs, or None if it does not open the breaker."""
    rule = settings.BREAKER
    since = max(now - timedelta(seconds=rule["window_seconds"]), breaker.seen_from or now - timedelta(days=1))
    ended = _ended_jobs(breaker).filter(finished_at__gt=since).order_by("-finished_at")
    newest = list(ended.values_list("state", "failure_class")[:MAX_JOBS_EVALUATED])
    failed = sum(counts(breaker.job_type, state, failure_class) for state, failure_class in newest)
    ratio = failed / max(1, len(newest))
    return ratio if len(newest) >= rule["least_jobs"] and ratio > rule["failures"] else None


def counts(job_type: str, state: str, failure_class: str | None) -> bool:
    """Report whether the end of a job counts as a failure for the breaker of its type.

    Failures of class `job` count only for the types in the setting `BREAKER_JOB_FAILURES`.
    """
    if state != JobState.FAILED:
        return False
    return failure_class in COUNTED or job_type in settings.BREAKER["job_failures"]


def _ended_jobs(breaker: Breaker) -> QuerySet[Job]:
    return Job.objects.filter(org_slug=breaker.org_slug, job_type=breaker.job_type, state__in=ENDED)


def _lock_breaker(org_slug: str, job_type: str) -> Breaker:
    advisory_xact_lock(QUEUES_OF_ORGANIZATION, org_slug)
    return Breaker.objects.get_or_create(org_slug=org_slug, job_type=job_type)[0]


def _target(breaker: Breaker) -> LimitTarget:
    return LimitTarget.of_organization(breaker.org_slug, breaker.job_type)


def _open(uow: UnitOfWork, breaker: Breaker, now: datetime, summary: str) -> Breaker:
    _record(breaker, "breaker.opened", BreakerState.OPEN, summary, now)
    if breaker.state == BreakerState.CLOSED:
        organization = {"org_slug": breaker.org_slug, "job_type": breaker.job_type}
        open_incident(uow, IncidentKind.BREAKER, **organization, summary=summary, now=now, actor=SCHEDULER)
        if seconds := settings.BREAKER["incident_mode_seconds"]:
            extend_incident_mode(breaker.org_slug, until=now + timedelta(seconds=seconds), reason=summary, now=now)
    breaker.state, breaker.opened_at = BreakerState.OPEN, now
    breaker.cool_until = now + timedelta(seconds=settings.BREAKER["cool_down_seconds"])
    _set_limit(breaker, now, max_active=0, note=summary)
    breaker.save()
    return breaker


def _half_open(breaker: Breaker, now: datetime) -> Breaker:
    """Allow one job: a single-use limit of one slot, so that one job starts however many workers claim."""
    _record(breaker, "breaker.half_opened", BreakerState.HALF_OPEN, "One job may start to test the breaker.", now)
    breaker.state, breaker.seen_from = BreakerState.HALF_OPEN, now
    _set_limit(breaker, now, max_active=1, one_shot=True)
    breaker.save()
    return breaker


def _evaluate_probe(uow: UnitOfWork, breaker: Breaker, now: datetime) -> Breaker | None:
    """Open or close a breaker by the result of its probe. A probe without one (canceled, released) is repeated."""
    limit = _target(breaker).limit(LimitKind.BREAKER)
    if limit is None or limit.max_active or LimitSlot.objects.filter(limit_id=limit.pk, job_id__isnull=False).exists():
        return None  # no job has taken the slot yet, or the probe runs
    probes = _ended_jobs(breaker).filter(leases__leased_at__gte=breaker.seen_from, finished_at__gte=breaker.seen_from)
    probe = probes.order_by("-finished_at").first()
    if probe is None:
        return _half_open(breaker, now)
    if counts(breaker.job_type, probe.state, probe.failure_class):
        summary = f"The {breaker.job_type} job that tested the breaker of {breaker.org_slug} failed."
        return _open(uow, breaker, now, summary)
    _record(breaker, "breaker.closed", BreakerState.CLOSED, "The job that tested the breaker succeeded.", now)
    return _close(breaker, now, actor=SCHEDULER)


def _close(breaker: Breaker, now: datetime, *, actor: Actor) -> Breaker:
    remove_limit(LimitKind.BREAKER, _target(breaker))
    breaker.state, breaker.seen_from, breaker.cool_until, breaker.limit_id = BreakerState.CLOSED, now, None, None
    same = {"kind": IncidentKind.BREAKER, "org_slug": breaker.org_slug, "job_type": breaker.job_type}
    for incident in Incident.objects.unresolved().filter(**same).select_for_update(no_key=True):
        resolve(incident, Cause(actor, "The breaker was closed.", now=now))
    breaker.save()
    return breaker


def _record(breaker: Breaker, action: str, state: BreakerState, reason: str, now: datetime) -> None:
    record_operator_event(
        action,
        target=str(_target(breaker)),
        cause=Cause(SCHEDULER, reason, now=now),
        before={"state": str(breaker.state)},
        after={"state": str(state)},
        org_slug=breaker.org_slug,
        job_type=breaker.job_type,
    )


def _set_limit(breaker: Breaker, now: datetime, *, one_shot: bool = False, **terms: object) -> None:
    limit = set_limit(LimitKind.BREAKER, _target(breaker), set_at=now, actor=str(SCHEDULER), one_shot=one_shot, **terms)
    breaker.limit_id = limit.pk
