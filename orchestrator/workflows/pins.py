"""Pins workflow runs, so that retention keeps them with their logs and artifacts."""

from datetime import timedelta

from django.conf import settings
from django.db.models import F

from orchestrator.core.cause import Cause
from orchestrator.core.operator_events import record_operator_event
from orchestrator.core.unit_of_work import UnitOfWork, operation
from runtime_jobs.errors import NotFound, ResourceConflict
from runtime_jobs.models import Job, StoredArtifact, WorkflowRun
from runtime_jobs.specs import ACTIONS


@operation
def pin_workflow_run(
    _: UnitOfWork,
    *,
    run_id: int,
    pinned: bool,
    cause: Cause,
) -> WorkflowRun:
    """Pin or unpin a run that has ended. A repetition changes nothing.

    Artifacts of a pinned run never expire. After the run is unpinned they expire as if it had never been pinned.
    Artifacts that have been deleted before do not return.

    Args:
        run_id: The run.
        pinned: Whether retention keeps the run.

    Raises:
        NotFound: The run does not exist, or retention is deleting it.
        ResourceConflict: A job of the run has not ended: it could still upload artifacts.
    """
    # Retention deletes a run whose jobs it has all locked, and reads after that whether the run is pinned.
    batch = WorkflowRun.objects.filter(pk=run_id).values("batch_id")
    jobs = list(
        Job.objects.select_for_update(no_key=True).filter(batch_id__in=batch).order_by("id").only("finished_at")
    )
    run = WorkflowRun.objects.select_related("repository__project__organization").filter(pk=run_id).first()
    if run is None:
        raise NotFound("The run does not exist.")
    if any(job.finished_at is None for job in jobs):
        raise ResourceConflict("The run has not ended. Pin it after its end.")
    if run.pinned == pinned:
        return run
    run.pinned = pinned
    run.save(update_fields=["pinned"])
    days = settings.RETENTION_DAYS["artifacts"]
    expiry = None if pinned or not days else F("created_at") + timedelta(days=days)
    StoredArtifact.objects.filter(batch_id=run.batch_id, is_abandoned=False).update(expires_at=expiry)
    record_operator_event(
        "workflow_run.pinned" if pinned else "workflow_run.unpinned",
        target=f"{run.repository.full_name}#{run.run_index}"[:200],
        cause=cause,
        org_slug=run.repository.project.organization.slug,
        job_type=ACTIONS,
    )
    return run
