"""Finds jobs, leases and unread results that are due, and calls the operation for each. Finding takes no lock."""

from datetime import datetime, timedelta

from django.db.models import DateTimeField, DurationField, ExpressionWrapper, F, Q, QuerySet, Value
from django.db.models.functions import Coalesce
from django.db.models.lookups import LessThan

from leases.models import Lease
from orchestrator.core.row_batches import RowRunner
from orchestrator.results import processing
from orchestrator.services import dependency_propagation, expiry, late_results
from orchestrator.services.expiry import PREPARING_SECONDS, UPLOADING_SECONDS
from runtime_jobs.db_time import database_now
from runtime_jobs.models import Job
from runtime_jobs.states import LEASED_STATES, JobState

BATCH = 200
READ_AGAIN_AFTER = timedelta(seconds=30)
RESULTS = 20  # read one after another, before the due ones are looked up again


def sweep(*, now: datetime | None = None) -> int:
    """Do everything that is due, but read no result. Returns how many jobs were changed.

    The failure of one job does not stop the others.
    """
    rows = RowRunner()
    return (
        force_cancels(rows, now=now)
        + expire_leases(rows, now=now)
        + time_out_phases(rows, now=now)
        + give_up_lost(rows, now=now)
        + follow_ended_dependencies(rows)
    )


def force_cancels(rows: RowRunner, *, now: datetime | None = None) -> int:
    """Cancel the jobs whose workers did not stop in time. Returns how many."""
    due = _held(rows).filter(cancel_deadline_at__lte=now or database_now())
    return rows.each(expiry.force_cancel, _named(due), now=now)


def expire_leases(rows: RowRunner, *, now: datetime | None = None) -> int:
    """End the leases that have expired. Returns how many."""
    due = Lease.objects.open().filter(expires_at__lte=now or database_now())
    due = due.exclude(job__job_ulid__in=rows.suspended("job_ulid"))
    names = due.values_list("job__job_ulid", flat=True)[:BATCH]
    return rows.each(expiry.expire, [{"job_ulid": name} for name in names], now=now)


def time_out_phases(rows: RowRunner, *, now: datetime | None = None) -> int:
    """Fail the jobs whose phase exceeds its time limit. Returns how many. The operation checks again under the lock."""
    now = now or database_now()
    preparing = Q(
        state__in=[JobState.STARTING, JobState.CHECKING_OUT], started_at__lt=now - timedelta(seconds=PREPARING_SECONDS)
    )
    uploading = Q(state=JobState.UPLOADING, phase_at__lt=now - timedelta(seconds=UPLOADING_SECONDS))
    due = _held(rows).filter(preparing | uploading | (Q(state=JobState.EXECUTING) & Q(_is_overdue(now))))
    return rows.each(expiry.time_out, _named(due), now=now)


def give_up_lost(rows: RowRunner, *, now: datetime | None = None) -> int:
    """Fail the lost jobs whose late window has ended. Returns how many."""
    due = Job.objects.filter(state=JobState.LOST, late_result_at__lte=now or database_now())
    return rows.each(late_results.give_up, _named(due.exclude(job_ulid__in=rows.suspended("job_ulid"))), now=now)


def read_results_again(rows: RowRunner, *, now: datetime | None = None) -> int:
    """Read the stored results of jobs that have been `processing` for `READ_AGAIN_AFTER`. Returns how many.

    The process that began to read such a result has ended, or the store could not be read.
    """
    return rows.each(_read_again, unread_results(rows, now=now), now=now)


def unread_results(rows: RowRunner, *, now: datetime | None = None) -> list[dict[str, str]]:
    """Return the arguments of the jobs whose results `read_results_again` would read now."""
    due = Job.objects.filter(state=JobState.PROCESSING, phase_at__lte=(now or database_now()) - READ_AGAIN_AFTER)
    return _named(due.exclude(job_ulid__in=rows.suspended("job_ulid")))[:RESULTS]


def _read_again(*, job_ulid: str, now: datetime | None) -> bool:
    job = Job.objects.filter(job_ulid=job_ulid).first()
    if job is None:
        return False
    processing.read_again(job, now=now)
    return True


def follow_ended_dependencies(rows: RowRunner) -> int:  # noqa: ARG001 the operation isolates its rows itself
    """Queue or cancel the jobs that waited for one that has ended. Returns how many were checked."""
    return dependency_propagation.propagate_pending(limit=BATCH)


def _is_overdue(now: datetime) -> LessThan:
    """Return the condition that the time limit of an executing job has passed: in SQL, since few of many are due."""
    # The sum of both columns, which are integers of 32 bits, may exceed their type. A sum of intervals does not.
    deadline = F("executing_at") + _seconds(Coalesce(F("timeout_seconds"), 0)) + _seconds(F("timeout_grace_seconds"))
    return LessThan(ExpressionWrapper(deadline, DateTimeField()), Value(now, DateTimeField()))


def _seconds(number: Coalesce | F) -> ExpressionWrapper:
    return ExpressionWrapper(number * Value(timedelta(seconds=1)), DurationField())


def _held(rows: RowRunner) -> QuerySet[Job]:
    return Job.objects.filter(state__in=LEASED_STATES).exclude(job_ulid__in=rows.suspended("job_ulid"))


def _named(due: QuerySet[Job]) -> list[dict[str, str]]:
    return [{"job_ulid": name} for name in due.values_list("job_ulid", flat=True)[:BATCH]]
