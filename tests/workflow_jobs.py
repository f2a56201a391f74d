"""Workflow runs whose job is claimed, made by the operations."""

from dataclasses import dataclass
from typing import Any

from leases.models import Lease
from orchestrator.services import batches, claiming
from orchestrator.services.batches import BatchJob, BatchSubmission
from runtime_jobs.models import Job, Project, Repository, WorkflowRun
from runtime_jobs.specs import ActionsSpec, ActionsStep, configured_policy
from tests.factories import ALICE, COMMIT, ProjectFactory, WorkerFactory, offer
from workers.models import Worker

STEPS = (ActionsStep(0, uses="actions/checkout@v4"), ActionsStep(1, step_id="t", name="Test", run="echo hello"))


def make_repository(project: Project | None = None, **columns: Any) -> Repository:
    """A repository of a project, by default `alice/demo`."""
    values = {"owner": "alice", "name": "demo", "is_private": True, "origin": "/srv/demo.git"}
    return Repository.objects.create(project=project or ProjectFactory(), **values | columns)


@dataclass
class ClaimedWorkflowJob:
    """A run with one job, and who has it."""

    run: WorkflowRun
    job: Job
    worker: Worker
    lease: Lease


def queued_workflow_job(
    repository: Repository | None = None, *, permissions: dict[str, Any] | None = None, **columns: Any
) -> tuple[WorkflowRun, Job]:
    """A run of a workflow file with one queued job."""
    repository = repository or make_repository()
    project = repository.project
    spec = ActionsSpec(job_key="build", job_name="build", steps=STEPS, timeout_minutes=5, permissions=permissions or {})
    outcome = batches.submit_batch(
        BatchSubmission(
            org_slug=project.organization.slug,
            project_slug=project.slug,
            source=None,
            trigger_kind="push",
            trigger_actor="alice",
            correlation_id="test",
            source_address=None,
            details={},
        ),
        [BatchJob(spec)],
        policy_for=configured_policy,
        default_pool="shared-linux",
        actor=ALICE,
    )
    values = {
        "run_index": WorkflowRun.objects.filter(repository=repository).count() + 1,
        "workflow_file": ".shithub/workflows/ci.yml",
        "workflow_name": "ci",
        "head_sha": COMMIT,
        "head_ref": "refs/heads/trunk",
        "event": "push",
        "event_payload": {"ref": "refs/heads/trunk"},
        "actor": "alice",
    }
    run = WorkflowRun.objects.create(batch=outcome.batch, repository=repository, **values | columns)
    return run, Job.objects.get(batch=outcome.batch)


def claimed_workflow_job(repository: Repository | None = None, **columns: Any) -> ClaimedWorkflowJob:
    """A run of a workflow file whose job a worker has claimed."""
    run, _ = queued_workflow_job(repository, **columns)
    worker = WorkerFactory()
    claim = claiming.claim(worker=worker, offer=offer(worker, job_types=("actions",)), acknowledge=False)
    assert claim is not None
    return ClaimedWorkflowJob(run, claim.job, worker, claim.lease)
