"""Approves workflow runs with code of strangers."""

from orchestrator.core.cause import Cause
from orchestrator.core.operator_events import record_operator_event
from orchestrator.core.unit_of_work import UnitOfWork, operation
from orchestrator.workflows.runs import enter_group, lock_repository
from orchestrator.workflows.workflow_end import release_run
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import NotFound, ResourceConflict
from runtime_jobs.models import RunHold, WorkflowRun
from runtime_jobs.rollup import roll_up
from runtime_jobs.specs import ACTIONS
from runtime_jobs.specs.readiness import job_ends


@operation
def approve_workflow_run(
    uow: UnitOfWork,
    *,
    run_id: int,
    cause: Cause,
) -> WorkflowRun:
    """Let the jobs of a run be executed that waits for its approval. A repetition changes nothing.

    The run takes its place in its concurrency group now, and waits while another run of the group has open jobs.

    Args:
        run_id: The run.

    Raises:
        NotFound: The run does not exist.
        ResourceConflict: The run needs no approval, or has ended.
    """
    run = WorkflowRun.objects.filter(pk=run_id).first()
    if run is None:
        raise NotFound("The run does not exist.")
    lock_repository(run.repository_id)
    run = WorkflowRun.objects.select_related("repository", "batch").get(pk=run_id)
    if run.approved_at is not None:
        return run
    if not run.needs_approval:
        raise ResourceConflict("The run needs no approval.")
    # The end of a canceled run may not be recorded yet. The run must not supersede others then.
    conclusion = roll_up([end.conclusion for end in job_ends(run).values()])
    if conclusion is not None:
        raise ResourceConflict(f"The run has ended: its conclusion is {conclusion}. Rerun it instead.")
    approved_at = cause.now or database_now()
    run.approved_by, run.approved_at = str(cause.actor)[:200], approved_at
    enter_group(uow, run, now=approved_at, actor=cause.actor)
    if run.hold != RunHold.CONCURRENCY:
        release_run(uow, run, now=approved_at)
    run.save(update_fields=["approved_by", "approved_at", "hold"])
    record_operator_event(
        "workflow_run.approve",
        target=f"{run.repository.full_name}#{run.run_index}",
        cause=cause.at(approved_at),
        after={"head_sha": run.head_sha, "workflow_file": run.workflow_file},
        org_slug=run.repository.project.organization.slug,
        job_type=ACTIONS,
    )
    return run
