"""Final messages of a worker: complete, fail, acknowledge a cancel.

Each one ends the lease once. A repetition gets the first response, even after the end of the lease. Another final
message is a conflict, unless the job is lost and the message is its late result.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from django.db.models import Model

from leases.fencing import LockedLease, accepts_late_result, lock_lease, require_valid_lease
from leases.states import LeaseState
from orchestrator.core.principals import actor_of
from orchestrator.core.unit_of_work import UnitOfWork, operation
from orchestrator.services import transitions
from runtime_jobs.errors import CancelNotRequested, Conflict, Invalid
from runtime_jobs.events import SYSTEM
from runtime_jobs.failure_classifier import classify_failure
from runtime_jobs.models import Artifact, FailureExplanation, Job, UnsentRun
from runtime_jobs.states import ESCALATED_FAILURES, RESULT_FAILURES, RETRIED_AUTOMATICALLY, FailureReason, JobState
from runtime_jobs.stop_requests import is_at_time_limit
from workers.models import Worker

# Reasons of failures that cause a diagnosis, a retry or an incident. All of these need a transaction.
NEEDING_TRANSACTION = RETRIED_AUTOMATICALLY | ESCALATED_FAILURES | {FailureReason.COMMAND_FAILED}

# Members of a result that the job has produced. Another value makes another final message.
OUTCOME_FIELDS = ("outputs", "cursors", "verdict", "environment")


@dataclass(frozen=True)
class ArtifactRef:
    """A reference to an artifact. The server never fetches it.

    Attributes:
        type: The kind of the artifact, such as `log`.
        uri: Its address.
    """

    type: str
    uri: str


def outcome_of(result: dict[str, Any] | None) -> dict[str, Any]:
    """Return the part of a result that is the product of the job, for the digest of its final message."""
    outcome = {name: result[name] for name in OUTCOME_FIELDS if name in result} if result else {}
    return {"outcome": outcome} if outcome else {}


def digest_of(message_name: str, artifacts: Sequence[ArtifactRef] = (), **facts: Any) -> str:
    """Return the digest by which a repeated final message is recognized.

    Args:
        message_name: The name of the operation.
        artifacts: References in any order.
        facts: The values that must be equal. Texts and times of the worker are not among them.
    """
    if artifacts:
        facts["artifacts"] = sorted({(artifact.type, artifact.uri) for artifact in artifacts})
    return hashlib.sha256(json.dumps([message_name, facts], sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class ReadResult:
    """Represents what was read in the result of a job, and how the job ends.

    Attributes:
        failure: One of `RESULT_FAILURES`, or None if the result could be read.
        message: A text for people about the failure.
        rows: Returns the new rows of other tables that are stored with the end, for the job since `processing`.
    """

    failure: FailureReason | None = None
    message: str = ""
    rows: Callable[[Job], Sequence[Model]] = lambda _: ()


READABLE = ReadResult()  # and nothing is stored beside the end


@dataclass(frozen=True)
class CompleteMessage:
    """The arguments of `complete` that describe the end of the job."""

    ingest_run_id: str | None = None
    exit_code: int | None = None
    result: dict[str, Any] | None = None
    artifacts: tuple[ArtifactRef, ...] = ()
    runner: str | None = None
    read_result: ReadResult | None = None

    @property
    def digest(self) -> str:
        """The digest by which a repetition is recognized."""
        facts = outcome_of(self.result)
        return digest_of("complete", self.artifacts, run=self.ingest_run_id, exit_code=self.exit_code, **facts)


@dataclass(frozen=True)
class FailMessage:
    """The arguments of `fail` that describe the end of the job."""

    reason: FailureReason
    message: str = ""
    exit_code: int | None = None
    result: dict[str, Any] | None = None
    unsent_run: dict[str, Any] | None = None
    artifacts: tuple[ArtifactRef, ...] = ()
    runner: str | None = None
    is_final: bool = False

    @property
    def digest(self) -> str:
        """The digest by which a repetition is recognized."""
        facts = outcome_of(self.result)
        return digest_of("fail", self.artifacts, reason=str(self.reason), exit_code=self.exit_code, **facts)


@operation(optimistic=True, retry_unique_violation="ingest_run_id")
def complete(
    uow: UnitOfWork,
    *,
    lease_ulid: str,
    worker: Worker,
    ingest_run_id: str | None = None,
    exit_code: int | None = None,
    result: dict[str, Any] | None = None,
    artifacts: Sequence[ArtifactRef] = (),
    runner: str | None = None,
    read_result: ReadResult | None = None,
    now: datetime | None = None,
) -> Job:
    """End the job as succeeded (published as `uploaded`), or as `processing` if its result must be read first.

    The result of a lost job counts like any other while the late window is open, under its newest lease only.
    If a cancel was requested, the job succeeds only before the deadline and if its policy allows that. Else it ends as
    canceled. With an external ingest, another transaction may store the same run at the same time: the operation is
    then repeated, and refuses.

    Args:
        lease_ulid: The lease.
        worker: The caller.
        ingest_run_id: The run that ingest has received, for job types that have one.
        exit_code: The exit code of the command.
        result: The result of the job, a JSON object.
        artifacts: References to artifacts.
        runner: The name of the process that executed the job, or None.
        read_result: What was read in a result that must be read. It then ends the job with this message.

    Returns:
        The job. The same message again returns it unchanged.

    Raises:
        StaleLease: The lease is unknown, has ended or expired.
        Conflict: Another final message ended the lease, or another job has this run.
        Invalid: The run is missing, or the job type has no run.
        InvalidTransition: The result must be read, and the worker has not reported `executing`.
    """
    message = CompleteMessage(ingest_run_id, exit_code, result, tuple(artifacts), runner, read_result)
    locked, is_repeated = lock_for_final(uow, lease_ulid, worker, message.digest, now, may_be_late=True)
    return locked.job if is_repeated else apply_success(uow, locked, worker, message, runs_in_use(uow, [message]))


@operation(optimistic=True)
def fail(
    uow: UnitOfWork,
    *,
    lease_ulid: str,
    worker: Worker,
    reason: FailureReason,
    message: str = "",
    exit_code: int | None = None,
    result: dict[str, Any] | None = None,
    unsent_run: dict[str, Any] | None = None,
    artifacts: Sequence[ArtifactRef] = (),
    runner: str | None = None,
    is_final: bool = False,
    now: datetime | None = None,
) -> Job:
    """End the job as failed, or as canceled if a cancel was requested. Some reasons cause an automatic retry.

    A job whose type has late results is lost instead of failed, unless the message is final: a `complete` may follow.

    Args:
        lease_ulid: The lease.
        worker: The caller.
        reason: The failure reason.
        message: A text for people.
        exit_code: The exit code of the command, if it ended.
        result: The result of the job so far, a JSON object.
        unsent_run: The run of a good execution whose upload failed. It is stored so that an operator can upload it.
            A job that only uploads a run keeps the one that it has.
        artifacts: References to artifacts.
        runner: The name of the process that executed the job, or None.
        is_final: No result can follow.

    Returns:
        The job. The same message again returns it unchanged.

    Raises:
        StaleLease: The lease is unknown, has ended or expired.
        Conflict: Another final message ended the lease.
    """
    require_transaction_to_fail(uow, reason)
    content = FailMessage(reason, message, exit_code, result, unsent_run, tuple(artifacts), runner, is_final)
    locked, is_repeated = lock_for_final(uow, lease_ulid, worker, content.digest, now)
    return locked.job if is_repeated else apply_failure(uow, locked, worker, content)


@operation(optimistic=True)
def acknowledge_cancel(
    uow: UnitOfWork,
    *,
    lease_ulid: str,
    worker: Worker,
    message: str = "",
    artifacts: Sequence[ArtifactRef] = (),
    runner: str | None = None,
    now: datetime | None = None,
) -> Job:
    """End a job as canceled after its cancel was requested, or as timed out after a heartbeat asked to stop it.

    Args:
        lease_ulid: The lease.
        worker: The caller.
        message: A text for people.
        artifacts: References to artifacts.
        runner: The name of the process that executed the job, or None.

    Returns:
        The job. The same message again returns it unchanged.

    Raises:
        StaleLease: The lease is unknown, has ended or expired.
        Conflict: Another final message ended the lease.
        CancelNotRequested: No cancel was requested for the job.
    """
    digest = digest_of("acknowledge_cancel", artifacts)
    locked, is_repeated = lock_for_final(uow, lease_ulid, worker, digest, now)
    if is_repeated:
        return locked.job
    if locked.job.cancel_requested_at is None:
        if not is_at_time_limit(locked.job, locked.now):
            raise CancelNotRequested("No cancel was requested for this job.")
        text = message or f"Stopped after {locked.job.timeout_seconds} seconds."
        stopped = FailMessage(FailureReason.TIMED_OUT, text, artifacts=tuple(artifacts), runner=runner)
        return apply_failure(uow, locked, worker, stopped, digest=digest)
    acknowledge_lease(uow, locked, worker, runner)
    save_artifacts(uow, locked.job, artifacts, now=locked.now)
    return end_as_canceled(uow, locked, worker, digest, message=message or None)


def lock_for_final(
    uow: UnitOfWork,
    lease_ulid: str,
    worker: Worker,
    digest: str,
    now: datetime | None,
    *,
    may_be_late: bool = False,
) -> tuple[LockedLease, bool]:
    """Lock a lease for a final message.

    Args:
        lease_ulid: The lease.
        worker: The caller.
        digest: The digest of the message.
        may_be_late: Whether the message is a result, which counts for a lost job, too.

    Returns:
        The lease, and whether the same message has already ended it.

    Raises:
        StaleLease: The lease is unknown, has ended or expired.
        Conflict: Another final message ended the lease.
    """
    locked = lock_lease(lease_ulid=lease_ulid, worker=worker, now=now, versions=uow.versions)
    return locked, is_duplicate(locked, digest, may_be_late=may_be_late)


def is_duplicate(locked: LockedLease, digest: str, *, may_be_late: bool = False) -> bool:
    """Report whether a final message with this digest has already ended the lease.

    Args:
        locked: The lease.
        digest: The digest of the message.
        may_be_late: Whether the message is a result, which counts for a lost job, too.

    Raises:
        StaleLease: The lease has ended without a final message, or expired.
        Conflict: Another final message ended the lease.
    """
    stored = locked.lease.final_digest
    is_late = may_be_late and accepts_late_result(locked)
    if stored is not None:
        if stored == digest:
            return True
        if not is_late:
            raise Conflict(
                "Another final message has already ended this lease, with other values.",
                job_status=locked.job.public_status,
            )
    elif not is_late:
        require_valid_lease(locked)
    return False


def require_transaction_to_fail(uow: UnitOfWork, reason: FailureReason) -> None:
    """End an optimistic attempt to fail for a reason that needs a transaction."""
    if reason in NEEDING_TRANSACTION:
        uow.require_transaction()


def runs_in_use(uow: UnitOfWork, messages: Iterable[CompleteMessage]) -> set[str]:
    """Return the runs among these that a job already has.

    An optimistic attempt reads none. The unique constraint refuses it, and then the repetition in a transaction does.
    """
    if uow.is_optimistic:
        return set()
    run_ids = [message.ingest_run_id for message in messages if message.ingest_run_id]
    rows = Job.objects.filter(ingest_run_id__in=run_ids).values_list("ingest_run_id", flat=True) if run_ids else ()
    return {run_id for run_id in rows if run_id is not None}


def apply_success(
    uow: UnitOfWork, locked: LockedLease, worker: Worker, message: CompleteMessage, used_runs: set[str]
) -> Job:
    """Apply a `complete` to a valid lease, or to the newest lease of a lost job.

    Args:
        locked: The lease.
        worker: The caller.
        message: The message. `is_duplicate` has returned False for it.
        used_runs: Runs of other jobs. The run of this job is added.

    Raises:
        Conflict: Another job has this run.
        Invalid: The run is missing, or the job type has no run.
    """
    job, now = locked.job, locked.now
    _require_run_of_type(job, message.ingest_run_id)
    acknowledge_lease(uow, locked, worker, message.runner)
    save_artifacts(uow, job, message.artifacts, now=now)
    job.exit_code = message.exit_code
    if job.cancel_requested_at is not None and not _precedes_cancel(job, now):
        return end_as_canceled(uow, locked, worker, message.digest, unused_run=message.ingest_run_id)
    if job.needs_processing:
        return _begin_processing(uow, locked, worker, message)
    if message.ingest_run_id in used_runs:
        raise Conflict(f"ingest_run_id: another job has the run {message.ingest_run_id}.")
    if message.ingest_run_id:
        used_runs.add(message.ingest_run_id)
    job.ingest_run_id, job.result = message.ingest_run_id, message.result
    transitions.transition(
        uow,
        job,
        JobState.SUCCEEDED,
        kind="job.completed",
        now=now,
        actor=actor_of(worker),
        worker_id=worker.worker_id,
        ingest_run_id=message.ingest_run_id,
        exit_code=message.exit_code,
    )
    transitions.end_lease(uow, locked.lease, LeaseState.COMPLETED, reason="completed", now=now, digest=message.digest)
    return transitions.mark_changed(uow, job, now)


def _begin_processing(uow: UnitOfWork, locked: LockedLease, worker: Worker, message: CompleteMessage) -> Job:
    """Store a result, and end the job if the result was read already. Else `settle` does so."""
    job, lease, now = locked.job, locked.lease, locked.now
    job.result = message.result
    transitions.transition(
        uow,
        job,
        JobState.PROCESSING,
        kind="job.processing",
        now=now,
        actor=actor_of(worker),
        worker_id=worker.worker_id,
        exit_code=message.exit_code,
    )
    if lease.is_open:
        transitions.end_lease(uow, lease, LeaseState.COMPLETED, reason="completed", now=now, digest=message.digest)
    else:  # late: the lease stays as it ended, and only recognizes a repetition
        lease.final_digest = message.digest
        uow.change(lease)
    if message.read_result is not None:
        end_processing(uow, job, message.read_result, now=now)
    return transitions.mark_changed(uow, job, now)


def end_processing(uow: UnitOfWork, job: Job, read_result: ReadResult, *, now: datetime) -> None:
    """End a locked job that is `processing`. The caller marks the job as changed.

    Raises:
        ValueError: The failure is none of `RESULT_FAILURES`.
    """
    failure = read_result.failure
    if failure is not None and failure not in RESULT_FAILURES:
        raise ValueError(f"failure: {failure} is not one of {', '.join(RESULT_FAILURES)}.")
    uow.extra_rows += read_result.rows(job)
    if failure is None:
        exit_code, kind = job.exit_code, "job.completed"
        transitions.transition(uow, job, JobState.SUCCEEDED, kind=kind, now=now, actor=SYSTEM, exit_code=exit_code)
    else:
        transitions.fail(uow, job, failure, message=read_result.message, now=now, actor=SYSTEM)
        transitions.retry_or_escalate(uow, job, failure, now=now)


def apply_failure(
    uow: UnitOfWork, locked: LockedLease, worker: Worker, message: FailMessage, *, digest: str | None = None
) -> Job:
    """Apply a `fail` to a valid lease. `is_duplicate` has returned False for the message.

    Args:
        locked: The lease.
        worker: The caller.
        message: The failure.
        digest: By which a repetition is recognized; by default that of the failure.
    """
    job, now = locked.job, locked.now
    acknowledge_lease(uow, locked, worker, message.runner)
    save_artifacts(uow, job, message.artifacts, now=now)
    job.result = message.result
    if message.unsent_run is not None:
        uow.unsent_runs.append(UnsentRun(job=job, payload=message.unsent_run, created_at=now))
    transitions.end_lease(
        uow, locked.lease, LeaseState.COMPLETED, reason="failed", now=now, digest=digest or message.digest
    )
    end = transitions.fail_or_cancel if message.is_final else transitions.end_without_result
    end(
        uow,
        job,
        message.reason,
        message=message.message,
        now=now,
        actor=actor_of(worker),
        worker_id=worker.worker_id,
        exit_code=message.exit_code,
    )
    save_diagnosis(uow, job, message.artifacts, now=now)
    return transitions.mark_changed(uow, job, now)


def save_artifacts(uow: UnitOfWork, job: Job, artifacts: Sequence[ArtifactRef], *, now: datetime) -> None:
    """Store references to artifacts, each address once."""
    uow.artifacts.extend(
        Artifact(job=job, type=artifact.type, uri=artifact.uri, created_at=now) for artifact in artifacts
    )


def save_diagnosis(uow: UnitOfWork, job: Job, artifacts: Sequence[ArtifactRef], *, now: datetime) -> None:
    """Store a diagnosis of a failed command. Other failure reasons need none."""
    if job.state != JobState.FAILED or job.failure_reason != FailureReason.COMMAND_FAILED:
        return
    uow.require_transaction()
    diagnosis = classify_failure(
        name=str(job.spec.get("name", "")),
        exit_code=job.exit_code,
        message=job.failure_message or "",
        logs=[artifact.uri for artifact in artifacts if artifact.type == "log"],
    )
    uow.diagnoses.append(FailureExplanation(job=job, created_at=now, **asdict(diagnosis)))


def acknowledge_lease(uow: UnitOfWork, locked: LockedLease, worker: Worker, runner: str | None) -> None:
    """Acknowledge the lease: a final message may be the first message about it."""
    transitions.acknowledge(uow, locked.job, locked.lease, now=locked.now, actor=actor_of(worker), runner_id=runner)


def _require_run_of_type(job: Job, ingest_run_id: str | None) -> None:
    if job.needs_ingest and ingest_run_id is None:
        raise Invalid({"ingest_run_id": [f"Required for job type {job.job_type}: the run that ingest received."]})
    if ingest_run_id is not None and not job.needs_ingest:
        raise Invalid({"ingest_run_id": [f"Not allowed for job type {job.job_type}, which has no run."]})


def _precedes_cancel(job: Job, now: datetime) -> bool:
    in_time = job.cancel_deadline_at is None or now < job.cancel_deadline_at
    return job.complete_beats_cancel and in_time


def end_as_canceled(uow: UnitOfWork, locked: LockedLease, worker: Worker, digest: str, **payload: Any) -> Job:
    """End a valid lease and its job, whose cancel was requested, by the final message of the worker."""
    now = locked.now
    transitions.end_lease(uow, locked.lease, LeaseState.CANCELED, reason="canceled", now=now, digest=digest)
    transitions.cancel_now(uow, locked.job, now=now, actor=actor_of(worker), worker_id=worker.worker_id, **payload)
    return transitions.mark_changed(uow, locked.job, now)
