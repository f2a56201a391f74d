"""A good execution whose upload failed: its run is sent again under a new job, without executing anything."""

from datetime import datetime

from orchestrator.services import transitions
from orchestrator.services.admission import readmit
from orchestrator.services.outcome import OperationResult
from orchestrator.services.submission import require_retryable
from orchestrator.services.unit_of_work.operation import current_unit_of_work, operation
from runtime_jobs.errors import NotFound
from runtime_jobs.events import Actor
from runtime_jobs.models import UnsentRun
from runtime_jobs.models.jobs import RetryKind

RESEND = "resend"  # the capability of a worker that knows what to do with such a job


@operation
def reupload(*, job_ulid: str, actor: Actor, reason: str, now: datetime | None = None) -> OperationResult:
    """Queue a new attempt that only uploads the run which the failed one has left.

    Raises NotFound (also where no run was left), AlreadyRetried, NotFinal, AlreadyFinal, and what `admit` raises."""
    job, at = transitions.lock_job(job_ulid, now=now)
    require_retryable(job)
    left = UnsentRun.objects.filter(job=job).first()
    if left is None:
        raise NotFound("This job has left no run to send.")
    # No automatic retry: it would be a new row without the run, and execute.
    changed = readmit(job, limited=False) | {
        "requirements": sorted({*job.requirements, RESEND}),
        "automatic_retries": 0,
    }
    successor = transitions.create_retry(job, RetryKind.MANUAL, at=at, actor=actor, reason=reason, **changed)
    current_unit_of_work().beside.append(UnsentRun(job=successor, payload=left.payload, created_at=at))
    return OperationResult(successor)
