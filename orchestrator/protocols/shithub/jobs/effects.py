"""The effects of the calls about a job: status, status of a step, chunk of a log, artifact, question for a cancel."""

from typing import Any, Final

from rest_framework.exceptions import ValidationError

from orchestrator.artifacts import operations as artifact_operations
from orchestrator.artifacts.addresses import upload_url
from orchestrator.core.counters import SCRUB_REPLACEMENT, STEP_TIMEOUTS
from orchestrator.http.api.fields import parse
from orchestrator.protocols.shithub.authentication import job_key
from orchestrator.protocols.shithub.base_view import read_object
from orchestrator.protocols.shithub.errors import not_found
from orchestrator.protocols.shithub.jobs.calls import CallAnswer, JobCall
from orchestrator.protocols.shithub.jobs.serializers import ArtifactUploadInput, LogInput, StatusInput, status_of
from orchestrator.secrets.masks import masks_of
from orchestrator.step_logs import step_log_writes
from orchestrator.step_logs.steps import StepChange, change_step, lock_step
from orchestrator.workflows.job_rows import (
    JOB_REPORTS,
    JobReport,
    conclusion_without_dependents,
    lock_completed_run,
    report_job,
    serialized_status,
)
from runtime_jobs.models import Job, JobStep
from runtime_jobs.scrubbing import scrubbers
from runtime_jobs.states import ENDED_STEP_STATUSES, Conclusion, StepStatus

STEP_REPORTS: Final = (StepStatus.RUNNING, *ENDED_STEP_STATUSES)
STEP_NOT_FOUND: Final = "The job has no such step."


def change_job_status(call: JobCall, raw: bytes) -> CallAnswer:
    """Apply `POST /api/v1/jobs/{id}/status`.

    Args:
        call: The call.
        raw: The body of the request.
    """
    data = parse(StatusInput, read_object(raw))
    report = JobReport(*status_of(data, JOB_REPORTS))
    locked = report_job(call.uow, lease_ulid=call.lease_ulid, worker=call.worker, report=report)
    body: dict[str, Any] = serialized_status(locked.job)
    if not report.is_final:
        return CallAnswer(body)
    call.uow.flush()
    conclusion = lock_completed_run(locked.job)
    if conclusion is not None:
        return CallAnswer(body | _completed_run(conclusion), continues=False)
    return CallAnswer(body, continues=False, after_commit=lambda: _run_without_dependents(locked.job))


def _completed_run(conclusion: Conclusion) -> dict[str, str]:
    return {"run_status": "completed", "run_conclusion": str(conclusion)}


def _run_without_dependents(job: Job) -> dict[str, str]:
    """Return the end of the run if it had only jobs left that need this one, and were skipped after its commit.

    The last job that ended is then one of those; otherwise the report of that job has the end of the run.
    """
    conclusion = conclusion_without_dependents(job)
    return {} if conclusion is None else _completed_run(conclusion)


def change_step_status(call: JobCall, raw: bytes, step_text: str) -> CallAnswer:
    """Apply `POST /api/v1/jobs/{id}/steps/{step_id}/status`.

    Args:
        call: The call.
        raw: The body of the request.
        step_text: The key of the step in the path.
    """
    job = call.keep_lease()
    data = parse(StatusInput, read_object(raw))
    status, conclusion = status_of(data, STEP_REPORTS)
    step = lock_step(job, job_key(step_text))
    if step is None:
        raise not_found(STEP_NOT_FOUND)
    was_timed_out = step.conclusion == Conclusion.TIMED_OUT
    change = StepChange(status, conclusion, data["started_at"], data["completed_at"])
    is_changed = change_step(call.uow, step, change, now=call.facts.now)
    if is_changed and step.is_ended:
        step_log_writes.close_step_log(call.uow, step=step)
    if step.conclusion == Conclusion.TIMED_OUT and not was_timed_out:
        call.counters.append(STEP_TIMEOUTS)
    return CallAnswer({"status": step.status, "conclusion": step.conclusion})


def append_log(call: JobCall, raw: bytes) -> CallAnswer:
    """Apply `POST /api/v1/jobs/{id}/logs`. The first chunk of a number counts, whatever a repetition contains."""
    job = call.keep_lease()
    data = parse(LogInput, read_object(raw))
    masks = masks_of(job)
    step = _step_of(job, data["step_id"])
    stored = step_log_writes.append_step_log(call.uow, step=step, seq=data["seq"], data=data["chunk"], masks=masks)
    call.counters += [SCRUB_REPLACEMENT] * stored.replacements
    return CallAnswer({"accepted": True}, status=202)


def check_cancel(call: JobCall, _raw: bytes) -> CallAnswer:
    """Apply `POST /api/v1/jobs/{id}/cancel-check`. The body is not read."""
    job = call.keep_lease()
    return CallAnswer({"cancelled": job.cancel_requested_at is not None})


def begin_artifact(call: JobCall, raw: bytes) -> CallAnswer:
    """Apply `POST /api/v1/jobs/{id}/artifacts/upload` (contract 2.6)."""
    call.keep_lease()
    data = parse(ArtifactUploadInput, read_object(raw))
    job = Job.objects.get(pk=call.token.job_id)
    if scrubbers.get(masks_of(job)).is_in(data["name"].encode()):
        raise ValidationError({"name": ["It contains a secret of the job."]})
    with call.uow.savepoint():  # a refusal uses the token, and leaves no row
        artifact = artifact_operations.begin_artifact(
            call.uow,
            job=job,
            name=data["name"],
            size_bytes=data["size_bytes"],
            now=call.facts.now,
            run_id=call.token.run_id,
        )
    return CallAnswer({"artifact_id": artifact.pk, "upload_url": upload_url(artifact)}, status=201)


def _step_of(job: Job, step_key: int | None) -> JobStep:
    steps = JobStep.objects.filter(job=job)
    step = steps.filter(pk=step_key).first() if step_key else steps.order_by("index").first()
    if step is None:
        raise not_found(STEP_NOT_FOUND)
    return step
