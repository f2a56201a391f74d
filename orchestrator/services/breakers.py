"""Circuit breakers: where most of an organization's jobs of one type fail, no more of them start for a while; then one
is tried, and how it ends decides. One tenant's failures never hold up another's (document 004, section 4.4)."""

from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import QuerySet

from leases.advisory_locks import QUEUES_OF_ORGANIZATION, advisory_xact_lock
from leases.models import Breaker, BreakerState, LimitKind, LimitSlot
from leases.scheduling.limits import LimitTarget, remove_limit, set_limit
from orchestrator.models import Incident
from orchestrator.services.operator_actions import record_operator_event
from orchestrator.services.unit_of_work.operation import operation
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import NotFound
from runtime_jobs.events import SCHEDULER, Actor
from runtime_jobs.models import Job
from runtime_jobs.states import FailureClass, JobState

LOOKED_AT = 100  # the last ends of the window; older ones weigh nothing
ENDED = (JobState.FAILED, JobState.SUCCEEDED)
# A failing command is the job's own result: ten red builds say nothing about the platform that ran them.
COUNTED = (FailureClass.WORKER, FailureClass.INFRASTRUCTURE, FailureClass.POLICY)


@operation
def evaluate_breaker(*, org_slug: str, job_type: str, now: datetime | None = None) -> Breaker | None:
    """Open, try or close this breaker, if that is due. Returns it if it changed."""
    breaker = _locked(org_slug, job_type)
    at = now or database_now()  # after the lock: what ended during the wait lies before it
    if breaker.state == BreakerState.CLOSED:
        share = failure_ratio(breaker, at)
        return _open(breaker, at, f"{share:.0%} of the last {job_type} jobs of {org_slug} failed.") if share else None
    if breaker.state == BreakerState.OPEN:
        return _half_open(breaker, at) if breaker.cool_until and breaker.cool_until <= at else None
    return _evaluate_probe(breaker, at)


@operation
def reset_breaker(
    *,
    org_slug: str,
    job_type: str,
    actor: Actor,
    reason: str,
    source_address: str | None = None,
    now: datetime | None = None,
) -> Breaker:
    """Close it at once; what failed so far counts no more. Raises NotFound where none is open."""
    breaker = _locked(org_slug, job_type)
    at = now or database_now()  # after the lock: what ended during the wait lies before it
    if breaker.state == BreakerState.CLOSED:
        raise NotFound("That breaker is not open.")
    record_operator_event(
        "breaker.reset",
        target=str(_subject(breaker)),
        actor=actor,
        before={"state": breaker.state},
        after={"state": "closed"},
        reason=reason,
        source_address=source_address,
        now=at,
    )
    return _close(breaker, at, actor=actor)


def failure_ratio(breaker: Breaker, at: datetime) -> float | None:
    """Return the share of counted failures among the last ends, or None where that is not too many."""
    rule = settings.BREAKER
    since = max(at - timedelta(seconds=rule["window_seconds"]), breaker.seen_from or at - timedelta(days=1))
    ends = _ends(breaker).filter(finished_at__gt=since).order_by("-finished_at")
    last = list(ends.values_list("state", "failure_class")[:LOOKED_AT])
    failed = sum(counts(breaker.job_type, state, failure_class) for state, failure_class in last)
    share = failed / max(1, len(last))
    return share if len(last) >= rule["least_jobs"] and share > rule["failures"] else None


def counts(job_type: str, state: str, failure_class: str | None) -> bool:
    """Report whether an end is a failure that opens the breaker of its job type.

    Failures of class `job` count only for the types in `BREAKER_JOB_FAILURES`."""
    if state != JobState.FAILED:
        return False
    return failure_class in COUNTED or job_type in settings.BREAKER["job_failures"]


def _ends(breaker: Breaker) -> QuerySet[Job]:
    return Job.objects.filter(org_slug=breaker.org_slug, job_type=breaker.job_type, state__in=ENDED)


def _locked(org_slug: str, job_type: str) -> Breaker:
    advisory_xact_lock(QUEUES_OF_ORGANIZATION, org_slug)
    return Breaker.objects.get_or_create(org_slug=org_slug, job_type=job_type)[0]


def _subject(breaker: Breaker) -> LimitTarget:
    return LimitTarget.of_organization(breaker.org_slug, breaker.job_type)


def _open(breaker: Breaker, at: datetime, summary: str) -> Breaker:
    if breaker.state == BreakerState.CLOSED:
        about = {"kind": "breaker", "org_slug": breaker.org_slug, "job_type": breaker.job_type}
        Incident.objects.create(**about, summary=summary, opened_at=at)
    breaker.state, breaker.opened_at = BreakerState.OPEN, at
    breaker.cool_until = at + timedelta(seconds=settings.BREAKER["cool_down_seconds"])
    _hold(breaker, at, max_active=0, note=summary)
    return _stored(breaker)


def _half_open(breaker: Breaker, at: datetime) -> Breaker:
    """One place, given once: however many workers ask, one job starts."""
    breaker.state, breaker.seen_from = BreakerState.HALF_OPEN, at
    _hold(breaker, at, max_active=1, one_shot=True)
    return _stored(breaker)


def _evaluate_probe(breaker: Breaker, at: datetime) -> Breaker | None:
    """The probe decides. If it came to no end of its own (canceled, given back), another one is tried."""
    limit = _subject(breaker).limit(LimitKind.BREAKER)
    if limit is None or limit.max_active or LimitSlot.objects.filter(limit_id=limit.pk, job_id__isnull=False).exists():
        return None  # nobody has taken the place yet, or the probe runs
    started_since = {"leases__leased_at__gte": breaker.seen_from, "finished_at__gte": breaker.seen_from}
    probe = _ends(breaker).filter(**started_since).order_by("-finished_at").first()
    if probe is None:
        return _half_open(breaker, at)
    if counts(breaker.job_type, probe.state, probe.failure_class):
        return _open(breaker, at, f"The {breaker.job_type} job that {breaker.org_slug} tried failed, too.")
    return _close(breaker, at, actor=SCHEDULER)


def _close(breaker: Breaker, at: datetime, *, actor: Actor) -> Breaker:
    remove_limit(LimitKind.BREAKER, _subject(breaker))
    breaker.state, breaker.seen_from, breaker.cool_until, breaker.limit_id = BreakerState.CLOSED, at, None, None
    open_ones = Incident.objects.filter(org_slug=breaker.org_slug, job_type=breaker.job_type, resolved_at=None)
    open_ones.update(resolved_at=at, resolved_by=str(actor))
    return _stored(breaker)


def _hold(breaker: Breaker, at: datetime, **terms: object) -> None:
    one_shot = {"one_shot": False} | terms
    breaker.limit_id = set_limit(LimitKind.BREAKER, _subject(breaker), at=at, actor=str(SCHEDULER), **one_shot).pk


def _stored(breaker: Breaker) -> Breaker:
    breaker.save()
    return breaker
