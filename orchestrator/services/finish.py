"""How a worker's word ends a job: complete, fail, acknowledge a cancel. Each is told once: a repeated one is answered
as the first time, even after the lease's end, and another one is a conflict."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from leases.fencing import LockedLease, lock_lease, require_valid_lease
from leases.states import LeaseState
from orchestrator.services import transitions
from orchestrator.services.artifacts import ArtifactRef, save_artifacts, save_diagnosis
from orchestrator.services.unit_of_work.operation import current_unit_of_work, operation
from runtime_jobs.errors import CancelNotRequested, Conflict, Invalid
from runtime_jobs.events import Actor
from runtime_jobs.models import Job, UnsentRun
from runtime_jobs.states import FailureReason, JobState
from workers.models import Worker


def actor_of(worker: Worker) -> Actor:
    return Actor("worker", worker.worker_id)


def digest_of(verb_name: str, artifacts: Sequence[ArtifactRef] = (), **facts: Any) -> str:
    """What makes two final messages the same: not texts, not the worker's times."""
    if artifacts:
        facts["artifacts"] = sorted({(artifact.type, artifact.uri) for artifact in artifacts})
    return hashlib.sha256(json.dumps([verb_name, facts], sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class CompleteMessage:
    """What a complete says; see there."""

    ingest_run_id: str | None = None
    exit_code: int | None = None
    result: dict[str, Any] | None = None
    artifacts: tuple[ArtifactRef, ...] = ()
    runner: str | None = None

    @property
    def digest(self) -> str:
        return digest_of("complete", self.artifacts, run=self.ingest_run_id, exit_code=self.exit_code)


@dataclass(frozen=True)
class FailMessage:
    """What a fail says; see there."""

    reason: FailureReason
    message: str = ""
    exit_code: int | None = None
    result: dict[str, Any] | None = None
    unsent_run: dict[str, Any] | None = None
    artifacts: tuple[ArtifactRef, ...] = ()
    runner: str | None = None

    @property
    def digest(self) -> str:
        return digest_of("fail", self.artifacts, reason=str(self.reason), exit_code=self.exit_code)


def lock_for_final(lease_ulid: str, worker: Worker, digest: str, now: datetime | None) -> tuple[LockedLease, bool]:
    """Lock for a final message and say whether it was told before. Raises StaleLease, Conflict."""
    holding = lock_lease(lease_ulid=lease_ulid, worker=worker, now=now)
    return holding, is_duplicate(holding, digest)


def is_duplicate(holding: LockedLease, digest: str) -> bool:
    """Whether this final message has ended the lease already. Raises Conflict if another one has, and StaleLease."""
    told = holding.lease.final_digest
    if told is not None:
        if told == digest:
            return True
        raise Conflict("This lease ended with another message.", job_status=holding.job.public_status)
    require_valid_lease(holding)
    return False


def _implied_ack(holding: LockedLease, worker: Worker, runner: str | None) -> None:
    """A final message says that the lease was taken up, too."""
    transitions.acknowledge(holding.job, holding.lease, at=holding.at, actor=actor_of(worker), runner_id=runner)


@operation
def complete(
    *,
    lease_ulid: str,
    worker: Worker,
    ingest_run_id: str | None = None,
    exit_code: int | None = None,
    result: dict[str, Any] | None = None,
    artifacts: Sequence[ArtifactRef] = (),
    runner: str | None = None,
    now: datetime | None = None,
) -> Job:
    """End the job in success: `uploaded`, with the run that ingest acknowledged.

    With a cancel requested it succeeds only before the deadline and by the job's policy, else it ends canceled.
    The same message again: the same answer. Raises StaleLease, Conflict, and Invalid for a run where the job's policy
    wants none, or none where it wants one."""
    word = CompleteMessage(ingest_run_id, exit_code, result, tuple(artifacts), runner)
    holding, told = lock_for_final(lease_ulid, worker, word.digest, now)
    return holding.job if told else apply_success(holding, worker, word, runs_in_use([word]))


def runs_in_use(words: Iterable[CompleteMessage]) -> set[str]:
    """Those of the runs that another job has already."""
    named = [word.ingest_run_id for word in words if word.ingest_run_id]
    found = Job.objects.filter(ingest_run_id__in=named).values_list("ingest_run_id", flat=True) if named else ()
    return {run for run in found if run is not None}


def apply_success(holding: LockedLease, worker: Worker, word: CompleteMessage, in_use: set[str]) -> Job:
    """End a locked job that `was_told` of nothing yet. Its run joins those that are in use."""
    job, at = holding.job, holding.at
    _require_right_result(job, word.ingest_run_id)
    _implied_ack(holding, worker, word.runner)
    save_artifacts(job, word.artifacts, at=at)
    job.exit_code = word.exit_code
    if job.cancel_requested_at is not None and not _beats_cancel(job, at):
        return _acknowledge_cancel(holding, worker, word.digest, unused_run=word.ingest_run_id)
    if word.ingest_run_id in in_use:
        raise Conflict("Another job has this run.")
    if word.ingest_run_id:
        in_use.add(word.ingest_run_id)
    job.ingest_run_id, job.result = word.ingest_run_id, word.result
    transitions.transition(
        job,
        JobState.SUCCEEDED,
        kind="job.completed",
        at=at,
        actor=actor_of(worker),
        worker_id=worker.worker_id,
        ingest_run_id=word.ingest_run_id,
        exit_code=word.exit_code,
    )
    transitions.end_lease(holding.lease, LeaseState.COMPLETED, reason="completed", at=at, digest=word.digest)
    return transitions.mark_dirty(job, at)


def _require_right_result(job: Job, ingest_run_id: str | None) -> None:
    if job.needs_ingest and ingest_run_id is None:
        raise Invalid({"ingest_run_id": ["A job of this type succeeds only with the run that ingest acknowledged."]})
    if ingest_run_id is not None and not job.needs_ingest:
        raise Invalid({"ingest_run_id": ["A job of this type has no run."]})


def _beats_cancel(job: Job, at: datetime) -> bool:
    in_time = job.cancel_deadline_at is None or at < job.cancel_deadline_at
    return job.complete_beats_cancel and in_time


@operation
def fail(
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
    now: datetime | None = None,
) -> Job:
    """End the job in failure, perhaps with an automatic retry (`worker_shutdown` only). `result`: what it came to.

    `unsent_run` is the payload of a good execution whose upload failed: it is kept for an operator.
    The same message again: the same answer. Raises StaleLease, Conflict."""
    word = FailMessage(reason, message, exit_code, result, unsent_run, tuple(artifacts), runner)
    holding, told = lock_for_final(lease_ulid, worker, word.digest, now)
    return holding.job if told else apply_failure(holding, worker, word)


def apply_failure(holding: LockedLease, worker: Worker, word: FailMessage) -> Job:
    """End a locked job that `was_told` of nothing yet."""
    job, at = holding.job, holding.at
    _implied_ack(holding, worker, word.runner)
    save_artifacts(job, word.artifacts, at=at)
    job.result = word.result
    if word.unsent_run is not None:
        current_unit_of_work().beside.append(UnsentRun(job=job, payload=word.unsent_run, created_at=at))
    transitions.end_lease(holding.lease, LeaseState.COMPLETED, reason="failed", at=at, digest=word.digest)
    transitions.fail_or_cancel(
        job,
        word.reason,
        message=word.message,
        at=at,
        actor=actor_of(worker),
        worker_id=worker.worker_id,
        exit_code=word.exit_code,
    )
    save_diagnosis(job, word.artifacts, at=at)
    return transitions.mark_dirty(job, at)


@operation
def acknowledge_cancel(
    *,
    lease_ulid: str,
    worker: Worker,
    message: str = "",
    artifacts: Sequence[ArtifactRef] = (),
    runner: str | None = None,
    now: datetime | None = None,
) -> Job:
    """End a job as canceled, as was asked. Raises StaleLease, Conflict, CancelNotRequested."""
    digest = digest_of("acknowledge_cancel", artifacts)
    holding, told = lock_for_final(lease_ulid, worker, digest, now)
    if told:
        return holding.job
    if holding.job.cancel_requested_at is None:
        raise CancelNotRequested("Nobody has asked to cancel this job.")
    _implied_ack(holding, worker, runner)
    save_artifacts(holding.job, artifacts, at=holding.at)
    return _acknowledge_cancel(holding, worker, digest, message=message or None)


def _acknowledge_cancel(holding: LockedLease, worker: Worker, digest: str, **payload: Any) -> Job:
    transitions.end_lease(holding.lease, LeaseState.CANCELED, reason="canceled", at=holding.at, digest=digest)
    transitions.cancel_now(holding.job, at=holding.at, actor=actor_of(worker), worker_id=worker.worker_id, **payload)
    return transitions.mark_dirty(holding.job, holding.at)
