"""Cancels a workflow job for a user, and reports whether that completed its run (contract 2.7, 4.7)."""

from dataclasses import dataclass
from datetime import datetime

from orchestrator.core.unit_of_work import UnitOfWork, operation
from orchestrator.services import transitions
from orchestrator.services.cancellation import cancel_locked
from orchestrator.workflows.job_rows import lock_completed_run
from runtime_jobs.events import Actor
from runtime_jobs.states import CancelReason, Conclusion


@dataclass(frozen=True)
class CancelOutcome:
    """The result of a request to cancel a job.

    Attributes:
        changed_jobs: 1 if this request ended the job or requested its end, else 0.
        run_conclusion: The conclusion of the run if all of its jobs have ended.
    """

    changed_jobs: int
    run_conclusion: Conclusion | None


@operation
def cancel_job(
    uow: UnitOfWork, *, job_ulid: str, actor: Actor, deadline_seconds: float, now: datetime | None = None
) -> CancelOutcome:
    """Cancel a waiting job at once, and request the end of a running one. A job that has ended stays as it is.

    Args:
        job_ulid: The job.
        actor: The user.
        deadline_seconds: Seconds until the scheduler cancels a job whose runner has not stopped it.
    """
    job, requested_at = transitions.lock_job(job_ulid, now=now)
    is_changed = not job.is_final and job.cancel_requested_at is None
    cancel_locked(
        uow,
        job,
        now=requested_at,
        actor=actor,
        deadline_seconds=deadline_seconds,
        reason=CancelReason.REQUESTED,
    )
    uow.flush()
    return CancelOutcome(int(is_changed), lock_completed_run(job))
