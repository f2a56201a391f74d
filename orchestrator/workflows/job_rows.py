"""Applies the reports of a workflow job's runner: the job runs, and ends once (contract 2.2, 4.5).

One final result wins. The same end again is answered with what is stored, another end is refused. A report that agrees
with the end that the server itself has recorded is accepted, and changes nothing.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from django.db.models import Value
from django.db.models.functions import Greatest

from leases.advisory_locks import ENDS_OF_RUN, advisory_xact_lock
from leases.errors import StaleLease
from leases.fencing import LockedLease, lock_lease
from leases.models import Lease
from orchestrator.core.unit_of_work import UnitOfWork
from orchestrator.services.cancellation import end_by_worker
from orchestrator.services.expiry import end_if_expired
from orchestrator.services.heartbeat import HeartbeatUpdate, renew_lease, validate_and_acknowledge
from orchestrator.services.job_end import CompleteMessage, FailMessage, apply_failure, apply_success, digest_of
from orchestrator.workflows.run_reads import run_of_job, state_of_run
from runtime_jobs.errors import InvalidTransition, NotFound
from runtime_jobs.models import Job, WorkflowRun
from runtime_jobs.specs.actions import CONCLUSION, STATUS, conclusion_of, reported_status_of
from runtime_jobs.states import FAILED_CONCLUSIONS, CancelReason, Conclusion, FailureReason, JobState, StepStatus
from workers.models import Worker

JOB_REPORTS: Final = (StepStatus.RUNNING, StepStatus.COMPLETED, StepStatus.CANCELLED)


@dataclass(frozen=True)
class JobReport:
    """A status of a workflow job, as its runner reports it.

    Attributes:
        status: One of `JOB_REPORTS`.
        conclusion: The conclusion of an end; None for `running`.
    """

    status: StepStatus
    conclusion: Conclusion | None = None

    @property
    def is_final(self) -> bool:
        """Whether the report ends the job."""
        return self.status != StepStatus.RUNNING

    @property
    def digest(self) -> str:
        """The digest by which a repetition is recognized."""
        return digest_of("workflow job", status=str(self.status), conclusion=str(self.conclusion))

    @property
    def result(self) -> dict[str, str]:
        """The result of the job, which keeps both words."""
        return {STATUS: str(self.status), CONCLUSION: str(self.conclusion)}


@dataclass(frozen=True)
class _Success(CompleteMessage):
    """A success with the digest of its report, in which the conclusion counts."""

    report_digest: str = ""

    @property
    def digest(self) -> str:
        return self.report_digest


@dataclass(frozen=True)
class _Failure(FailMessage):
    """A failure with the digest of its report."""

    report_digest: str = ""

    @property
    def digest(self) -> str:
        return self.report_digest


def keep_lease(uow: UnitOfWork, locked: LockedLease, worker: Worker) -> None:
    """Renew the lease of a workflow job. Any message takes it up, and the job counts as executing from then on.

    A job that has exceeded its time limit is refused. The caller rolls back then, and the scheduler process ends it.

    Args:
        locked: The lease.
        worker: The runner.

    Raises:
        StaleLease: The lease has ended or expired, or the job has exceeded its time limit.
    """
    is_started = validate_and_acknowledge(uow, locked, worker, None)
    update = HeartbeatUpdate(reached=JobState.EXECUTING)
    renewed = renew_lease(uow, locked, worker, update, is_started=is_started)
    if isinstance(renewed, StaleLease):
        raise renewed


def extend_running_lease(lease_id: int, *, until: datetime, now: datetime) -> bool:
    """Extend the lease of a job in execution without a lock on the job, and return whether the lease is still live.

    Args:
        lease_id: The key of the lease.
        until: The new expiry.
        now: The time of the message.
    """
    live = Lease.objects.open().filter(pk=lease_id, expires_at__gt=now)
    return bool(live.update(expires_at=Greatest("expires_at", Value(until)), last_heartbeat_at=now))


def require_run(job: Job) -> WorkflowRun:
    """Return the run of a workflow job, with its repository.

    Raises:
        NotFound: The job belongs to none.
    """
    run = run_of_job(job)
    if run is None:
        raise NotFound(f"The job {job.job_ulid} belongs to no workflow run.")
    return run


def lock_completed_run(job: Job) -> Conclusion | None:
    """Return the conclusion of the run of an ended job, or None while another job of the run has not ended.

    An advisory lock keeps two final reports apart, so that one of them completes the run. It comes after the locks of
    jobs and leases. The caller has stored the end of the job.
    """
    run = run_of_job(job)
    if run is None:
        return None
    advisory_xact_lock(ENDS_OF_RUN, run.pk)
    return state_of_run(run).conclusion


def conclusion_without_dependents(job: Job) -> Conclusion | None:
    """Return the conclusion of the run of an ended job if the last job of it that ended was never executed, or None."""
    run = run_of_job(job)
    if run is None or (conclusion := state_of_run(run).conclusion) is None:
        return None
    last = Job.objects.filter(batch_id=run.batch_id).order_by("-finished_at", "-pk").first()
    return conclusion if last is not None and last.pk != job.pk and last.started_at is None else None


def report_job(uow: UnitOfWork, *, lease_ulid: str, worker: Worker, report: JobReport) -> LockedLease:
    """Apply a report about a workflow job.

    Args:
        lease_ulid: The lease under which the runner has or had the job.
        worker: The runner.
        report: The report.

    Returns:
        The lease and its job, as they are stored.

    Raises:
        StaleLease: The runner has lost the job, and the report does not agree with the stored end.
        InvalidTransition: The runner has ended the job with another report.
    """
    locked = lock_lease(lease_ulid=lease_ulid, worker=worker)
    job, lease = locked.job, locked.lease
    if lease.final_digest is not None and lease.fence == job.fence:
        if lease.final_digest != report.digest and not _confirms_cancel(locked, report):
            ended = f"{reported_status_of(job)} with the conclusion {conclusion_of(job)}"
            raise InvalidTransition(f"status: The job is {ended}. The first end counts.")
        return locked
    if end_if_expired(uow, locked) is None and lease.is_open:
        _apply(uow, locked, worker, report)
    elif not _agrees(locked, report):
        raise StaleLease("lease_ended")
    return locked


def _apply(uow: UnitOfWork, locked: LockedLease, worker: Worker, report: JobReport) -> None:
    conclusion = report.conclusion
    if conclusion is None:
        keep_lease(uow, locked, worker)
    elif report.status == StepStatus.CANCELLED or conclusion == Conclusion.CANCELLED:
        locked.job.result = report.result
        end_by_worker(uow, locked, worker, report.digest, reason=CancelReason.STOPPED_BY_WORKER)
    elif conclusion in FAILED_CONCLUSIONS:
        timed_out = conclusion == Conclusion.TIMED_OUT
        reason = FailureReason.TIMED_OUT if timed_out else FailureReason.COMMAND_FAILED
        message = f"The runner reported the conclusion {conclusion}."
        apply_failure(uow, locked, worker, _Failure(reason, message, result=report.result, report_digest=report.digest))
    else:
        apply_success(uow, locked, worker, _Success(result=report.result, report_digest=report.digest), set())


def _confirms_cancel(locked: LockedLease, report: JobReport) -> bool:
    """Return whether a report confirms the end of a job that a heartbeat of the runner did not list any more."""
    return CONCLUSION not in (locked.job.result or {}) and _agrees(locked, report)


def _agrees(locked: LockedLease, report: JobReport) -> bool:
    """Return whether a report is the end that the server has recorded for this lease."""
    job = locked.job
    if not job.is_final or locked.lease.fence != job.fence or not report.is_final:
        return False
    return _outcome(report.status, report.conclusion) == _outcome(reported_status_of(job), conclusion_of(job))


def _outcome(status: str, conclusion: Conclusion | None) -> tuple[str, Conclusion | None]:
    """Return the words of an end. `completed` with `cancelled` is the same end as `cancelled`."""
    if conclusion == Conclusion.CANCELLED:
        return StepStatus.CANCELLED, conclusion
    return status, conclusion


def serialized_status(job: Job) -> dict[str, str | None]:
    """Return the words for the status of a job: `status` and `conclusion`."""
    conclusion = conclusion_of(job)
    return {STATUS: str(reported_status_of(job)), CONCLUSION: None if conclusion is None else str(conclusion)}
