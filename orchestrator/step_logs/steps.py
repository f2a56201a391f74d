"""The steps of a workflow job: created with the job, changed by its worker, closed when the job ends.

Only this module writes the status of a step. The lock of a step comes after those of its job and its lease.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from orchestrator.core.unit_of_work import UnitOfWork
from orchestrator.pubsub.job_updates import announcer
from orchestrator.step_logs.step_log_writes import close_step_log
from runtime_jobs.errors import InvalidTransition
from runtime_jobs.models import Job, JobStep
from runtime_jobs.specs import JOB_TYPES, ActionsSpec
from runtime_jobs.specs.actions import is_skipped
from runtime_jobs.states import (
    OPEN_STEP_STATUSES,
    Conclusion,
    JobState,
    StepStatus,
    can_step_transition,
)

# The conclusion of an end that names none. `completed` needs one.
DEFAULT_CONCLUSIONS: Final[Mapping[str, Conclusion]] = {
    StepStatus.CANCELLED: Conclusion.CANCELLED,
    StepStatus.SKIPPED: Conclusion.SKIPPED,
}


@dataclass(frozen=True)
class StepChange:
    """A new status of a step, as its worker reports it.

    Attributes:
        status: The new status.
        conclusion: The conclusion of an end, or None for that of the status.
        started_at: The start by the clock of the worker, or None.
        completed_at: The end by the clock of the worker, or None.
    """

    status: StepStatus
    conclusion: Conclusion | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None


def create_steps(uow: UnitOfWork, job: Job, spec: ActionsSpec) -> None:
    """Create the steps of a new job. The rows are inserted with the job."""
    uow.extra_rows += [
        JobStep(
            job=job,
            index=step.index,
            step_id=step.step_id,
            name=step.name,
            condition=step.condition,
            run=step.run,
            uses=step.uses,
            working_directory=step.working_directory,
            env=dict(step.env),
            with_values=dict(step.with_),
            continue_on_error=step.continue_on_error,
        )
        for step in spec.steps
    ]


def lock_step(job: Job, step_key: int | None) -> JobStep | None:
    """Lock a step of a job; None if the job has no such step.

    Args:
        job: The job.
        step_key: The key of the step, or None for the first step of the job.
    """
    rows = JobStep.objects.select_for_update(no_key=True).filter(job=job)
    if step_key is None:
        return rows.order_by("index").first()
    return rows.filter(pk=step_key).first()


def change_step(uow: UnitOfWork, step: JobStep, change: StepChange, *, now: datetime) -> bool:
    """Change the status of a locked step. The end that is stored already changes nothing: the first end wins.

    Followers of the job are notified after the commit.

    Args:
        step: The step.
        change: The new status.
        now: Timestamp of the change, where the worker gives none.

    Returns:
        Whether the step changed.

    Raises:
        InvalidTransition: The step has ended otherwise.
    """
    conclusion = change.conclusion or DEFAULT_CONCLUSIONS.get(change.status)
    if (step.status, step.conclusion) == (change.status, conclusion) and step.is_ended:
        return False
    if step.status == change.status == StepStatus.RUNNING:
        return False
    if not can_step_transition(step.status, change.status):
        ended = f"{step.status} with the conclusion {step.conclusion}"
        text = f"status: The step is {ended}, and cannot become {change.status}. The first end counts."
        raise InvalidTransition(text)
    step.status, step.conclusion = change.status, conclusion
    step.started_at = change.started_at or step.started_at
    if step.started_at is None and change.status != StepStatus.SKIPPED:
        step.started_at = now
    if step.is_ended:
        step.completed_at = change.completed_at or now
    step.save(update_fields=["status", "conclusion", "started_at", "completed_at"])
    uow.after_commit(announcer.announce, step.job_id)
    return True


def skip_steps(uow: UnitOfWork, job: Job, step_keys: list[int], *, now: datetime) -> None:
    """Mark the open steps of a claimed job as skipped whose condition is false.

    Steps that an earlier claim skipped and this one does not are open again: the values of their conditions changed.

    Args:
        uow: The unit of work of the claim.
        job: The claimed job.
        step_keys: The keys of the steps to skip.
        now: Timestamp of the claim.
    """
    if job.fence > 1:
        reopened = JobStep.objects.filter(job=job, status=StepStatus.SKIPPED).exclude(pk__in=step_keys)
        reopened.update(status=StepStatus.QUEUED, conclusion=None, completed_at=None)
    if not step_keys:
        return
    uow.after_commit(announcer.announce, job.job_ulid)
    JobStep.objects.filter(job=job, pk__in=step_keys, status__in=OPEN_STEP_STATUSES).update(
        status=StepStatus.SKIPPED, conclusion=Conclusion.SKIPPED, completed_at=now
    )


def close_open_steps(*, uow: UnitOfWork, job: Job, now: datetime, **_: Any) -> None:
    """End the open steps of a job that has ended (`job_ended`): as cancelled after a cancel, else as skipped."""
    if not JOB_TYPES[job.job_type].has_steps:
        return
    uow.require_transaction()
    is_cancelled = job.state == JobState.CANCELED and not is_skipped(job)
    status = StepStatus.CANCELLED if is_cancelled else StepStatus.SKIPPED
    open_steps = list(JobStep.objects.select_for_update(no_key=True).filter(job=job, status__in=OPEN_STEP_STATUSES))
    for step in open_steps:
        step.status, step.conclusion, step.completed_at = status, DEFAULT_CONCLUSIONS[status], now
    if open_steps:
        JobStep.objects.bulk_update(open_steps, ["status", "conclusion", "completed_at"])
    for step in open_steps:
        step.job = job
        close_step_log(uow, step=step)
