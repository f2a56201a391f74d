"""Performs the operations of a session: what each message does, by the status of its job (contract 3.6).

The rules about the state of a job are in `orchestrator.services`. A message that an operation refuses because the job
has changed meanwhile is decided again by its new status.
"""

import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from leases.errors import StaleLease
from leases.fencing import newest_holding
from leases.models import Lease
from orchestrator.protocols.bencher.channel.messages import CanceledFrame, CompletedFrame, FailedFrame, FinalFrame
from orchestrator.protocols.bencher.channel.session import CloseReason, LeasedJob, Reply, SilenceOutcome
from orchestrator.protocols.bencher.states import BencherStatus, job_status
from orchestrator.results import names
from orchestrator.results.outputs import encode_output
from orchestrator.results.processing import UnreadJob, find_unread, read_small, store_output
from orchestrator.services import batch_calls, cancellation, expiry, job_end, late_results
from orchestrator.services.batch_calls import WorkerMessage
from orchestrator.services.heartbeat import HeartbeatUpdate
from orchestrator.services.job_end import ReadResult
from orchestrator.services.transitions import MAX_MESSAGE_LENGTH
from runtime_jobs.control_characters import escape_controls
from runtime_jobs.db_errors import fault_of
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import AlreadyFinal, CancelNotRequested, Conflict, InvalidTransition, LifecycleError
from runtime_jobs.identifiers import public_id_of, uuid_of
from runtime_jobs.models import Job
from runtime_jobs.prepared_queries import PreparedQuery
from runtime_jobs.states import FailureReason, JobState
from workers.models import Worker

log = logging.getLogger(__name__)

_JOB = PreparedQuery(Job, "WHERE t.job_ulid = %s")
MAX_DECISIONS = 5  # of one message, each after a change of its job by another caller
_CHANGED: Final = (StaleLease, InvalidTransition, Conflict, AlreadyFinal, CancelNotRequested)

_PENDING, _CLAIMED, _RUNNING = BencherStatus.PENDING, BencherStatus.CLAIMED, BencherStatus.RUNNING
_COMPLETED, _PROCESSED = BencherStatus.COMPLETED, BencherStatus.PROCESSED
_FAILED, _CANCELED = BencherStatus.FAILED, BencherStatus.CANCELED

# The statuses in which a final message changes its job, and those in which it does not fit. All others: ACK.
_EFFECTIVE: Final[dict[type[FinalFrame], frozenset[BencherStatus]]] = {
    CompletedFrame: frozenset({_RUNNING, _FAILED}),
    FailedFrame: frozenset({_CLAIMED, _RUNNING}),
    CanceledFrame: frozenset({_CLAIMED, _RUNNING}),
}
_UNFIT: Final[dict[type[FinalFrame], frozenset[BencherStatus]]] = {
    CompletedFrame: frozenset({_PENDING, _CLAIMED}),
    FailedFrame: frozenset({_PENDING}),
    CanceledFrame: frozenset({_PENDING, _COMPLETED, _PROCESSED, _FAILED}),
}


@dataclass(frozen=True)
class LeaseRef:
    """Identifies the lease of a job and its runner: `LeasedJob.handle`."""

    job_ulid: str
    lease_ulid: str
    worker: Worker


@dataclass(frozen=True)
class FinalOutcome:
    """The result of a final message.

    Attributes:
        reply: ACK or REFUSED.
        unread_job: The job whose result must be read now, or None.
        output: The output of that job.
        is_stored: The store has the output.
    """

    reply: Reply
    unread_job: Job | None = None
    output: bytes = b""
    is_stored: bool = True


def leased_job(lease: Lease, worker: Worker) -> LeasedJob:
    """Return the job of a session by its lease."""
    ref = LeaseRef(lease.job_id, lease.lease_ulid, worker)
    return LeasedJob(uuid_of(lease.job_id), ref, float(lease.ttl_seconds))


def renew_leases(jobs: Iterable[LeasedJob], running: Collection[str] = ()) -> dict[str, Reply]:
    """Renew the leases of many runners by one statement.

    Args:
        jobs: The jobs.
        running: Ids of leases whose runners report that the execution has begun. The statement also acknowledges these
            and moves their jobs to `executing`. A repetition only renews the lease.

    Returns:
        The replies by the ids of leases.
    """
    refs = {ref.lease_ulid: ref for ref in map(_ref_of, jobs)}
    heartbeats = {
        lease_ulid: WorkerMessage(
            ref.worker, HeartbeatUpdate(reached=JobState.EXECUTING if lease_ulid in running else None)
        )
        for lease_ulid, ref in refs.items()
    }
    results = batch_calls.renew_many(heartbeats)
    replies: dict[str, Reply] = {}
    changed: list[str] = []
    for lease_ulid in refs:
        result = results[lease_ulid]
        if isinstance(result, Exception):
            changed.append(lease_ulid)
        else:
            replies[lease_ulid] = _reply_to_beat(result.job)
    if changed:
        found = {job.job_ulid: job for job in Job.objects.filter(job_ulid__in=[refs[key].job_ulid for key in changed])}
        replies |= {key: _reply_to_beat(found.get(refs[key].job_ulid)) for key in changed}
    return replies


def _reply_to_beat(job: Job | None) -> Reply:
    """Return the reply to a heartbeat. The result of a job that retention has deleted is of no use."""
    return Reply.CANCEL if job is None or job_status(job) is _CANCELED else Reply.ACK


def finish(job: LeasedJob, frame: FinalFrame) -> FinalOutcome:
    """End a job as its runner reports. The output is stored before, and counts only if the message does."""
    ref = _ref_of(job)
    unread = find_unread(ref.job_ulid)
    found = unread.job
    output = _Output(unread, frame)
    for _ in range(MAX_DECISIONS):
        status = job_status(found)
        if status in _UNFIT[type(frame)]:
            return FinalOutcome(Reply.REFUSED)
        try:
            if status is _CANCELED and found.is_held:
                job_end.acknowledge_cancel(lease_ulid=ref.lease_ulid, worker=ref.worker)
            elif status in _EFFECTIVE[type(frame)]:
                return _apply(ref, found, frame, output)
        except _CHANGED as error:
            log.info("job %s has changed during a final message: %s", ref.job_ulid, error.code)
            # Else the result of a lease that has expired would not count before the scheduler process has ended it.
            expiry.expire(job_ulid=ref.job_ulid)
            found = _read(ref.job_ulid)
            continue
        return FinalOutcome(Reply.ACK)
    return FinalOutcome(Reply.REFUSED)


class _Output:
    """The output of a final message. It is stored and read once, however often the message is decided."""

    def __init__(self, unread: UnreadJob, frame: FinalFrame) -> None:
        self._unread, self._frame = unread, frame

    @cached_property
    def body(self) -> bytes:
        """The stored form."""
        match self._frame:
            case FailedFrame(iterations=iterations, error=error):
                return encode_output(iterations, error)
            case CompletedFrame(iterations=iterations, error=error):
                return encode_output(iterations, error or None, is_truncated=bool(error))
        return encode_output(())

    @cached_property
    def result(self) -> dict[str, str] | None:
        """The result of the job, which names the output, or None if the store has failed."""
        return store_output(self._unread.job, self.body)

    @cached_property
    def read_result(self) -> ReadResult | None:
        """The result in a small output, or None: it is read while the job is `processing`."""
        return read_small(self._unread, self.body)


def _apply(ref: LeaseRef, job: Job, frame: FinalFrame, output: _Output) -> FinalOutcome:
    match frame:
        case CanceledFrame():
            cancellation.stop_by_worker(lease_ulid=ref.lease_ulid, worker=ref.worker)
            return FinalOutcome(Reply.ACK)
        case FailedFrame(error=error):
            exit_code = _exit_code(frame)
            reason = FailureReason.COMMAND_FAILED if exit_code else FailureReason.WORKER_ERROR
            job_end.fail(
                lease_ulid=ref.lease_ulid,
                worker=ref.worker,
                reason=reason,
                message=escape_controls(error[:MAX_MESSAGE_LENGTH]),
                exit_code=exit_code,
                result=output.result,
            )
            return FinalOutcome(Reply.ACK)
    return _complete(ref, job, frame, output)


def _complete(ref: LeaseRef, job: Job, frame: CompletedFrame, output: _Output) -> FinalOutcome:
    is_late = not job.is_held
    if is_late and job.state != JobState.LOST:
        return FinalOutcome(Reply.ACK)  # it has failed for good
    outcome: dict[str, Any] = {"worker": ref.worker, "exit_code": _exit_code(frame), "result": output.result}
    if is_late:
        completed = late_results.complete_late(job_ulid=ref.job_ulid, **outcome)
    else:
        completed = _complete_held(ref, output.read_result, outcome)
    completed.spec = job.spec  # never changes, and is not read again
    unread_job = completed if completed.state == JobState.PROCESSING else None
    return FinalOutcome(Reply.ACK, unread_job, output.body, output.result is not None)


def _complete_held(ref: LeaseRef, read_result: ReadResult | None, outcome: dict[str, Any]) -> Job:
    """Complete a job under its lease, with what was read if that can be stored. Else it is read again later."""
    try:
        return job_end.complete(lease_ulid=ref.lease_ulid, read_result=read_result, **outcome)
    except Exception as error:
        if read_result is None or isinstance(error, LifecycleError) or fault_of(error) is not None:
            raise
        names.forget_names()  # one of them may stand for a row that was deleted
        log.exception("what was read in the result of job %s cannot be stored", ref.job_ulid)
    return job_end.complete(lease_ulid=ref.lease_ulid, **outcome)


def _exit_code(frame: CompletedFrame | FailedFrame) -> int | None:
    """Return the exit code of the last iteration."""
    return frame.iterations[-1]["exit_code"] if frame.iterations else None


def finish_late(worker: Worker, frame: FinalFrame) -> FinalOutcome:
    """End a job that the message names, if this runner was the last one to have it."""
    assert frame.job is not None  # noqa: S101 the channel's messages name their job
    job_ulid = public_id_of("rtj", frame.job)
    newest = newest_holding(job_ulid=job_ulid, worker=worker)
    if newest is None or newest.lease.fence != newest.job.fence:
        return FinalOutcome(Reply.ACK)
    return finish(leased_job(newest.lease, worker), frame)


def expire(job: LeasedJob) -> SilenceOutcome:
    """End the lease of a runner that is silent, before its connection is closed."""
    ref = _ref_of(job)
    expiry.expire(job_ulid=ref.job_ulid)
    lease = Lease.objects.select_related("job").get(lease_ulid=ref.lease_ulid)
    has_timed_out = lease.job.failure_reason == FailureReason.TIMED_OUT
    reason = CloseReason.JOB_TIMEOUT_EXCEEDED if has_timed_out else CloseReason.HEARTBEAT_TIMEOUT
    if not lease.is_open:
        return SilenceOutcome(reason)
    return SilenceOutcome(reason, max(0.01, (lease.expires_at - database_now()).total_seconds()))


def _ref_of(job: LeasedJob) -> LeaseRef:
    assert isinstance(job.handle, LeaseRef)  # noqa: S101 `leased_job` makes all of them
    return job.handle


def _read(job_ulid: str) -> Job:
    job = _JOB.first(job_ulid)
    if job is None:
        raise Job.DoesNotExist  # retention has deleted it
    return job
