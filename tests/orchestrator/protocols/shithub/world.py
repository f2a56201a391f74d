"""Repositories, workflow runs and runners for tests, made by the operations."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.core.cause import Cause
from orchestrator.core.unit_of_work import UnitOfWork
from orchestrator.services import actions_runners, batches
from orchestrator.services.batches import BatchJob, BatchSubmission
from orchestrator.step_logs.steps import create_steps
from runtime_jobs.models import Job, JobStep, Project, Repository, WorkflowRun
from runtime_jobs.specs import ActionsSpec, ActionsStep, configured_policy
from tests.factories import ALICE, COMMIT, OPERATOR, PoolFactory, ProjectFactory
from tests.orchestrator.protocols.shithub.runner import RunnerClient
from workers.models import ActionsRunner

STEPS = (ActionsStep(0, uses="actions/checkout@v4"), ActionsStep(1, step_id="t", name="Test", run="echo hello"))


def actions_spec(**changes: Any) -> ActionsSpec:
    """A job of two steps with a time limit of five minutes."""
    values = {"job_key": "build", "job_name": "build", "runs_on": "ubuntu-latest", "timeout_minutes": 5}
    return ActionsSpec(**{"steps": STEPS} | values | changes)


def make_repository(project: Project | None = None, **columns: Any) -> Repository:
    """A repository of a project, by default `alice/demo`."""
    values = {"owner": "alice", "name": "demo", "is_private": True, "origin": "/srv/demo.git"}
    return Repository.objects.create(project=project or ProjectFactory(), **values | columns)


@dataclass
class StartedRun:
    """A workflow run with its jobs in order."""

    run: WorkflowRun
    jobs: list[Job]

    @property
    def job(self) -> Job:
        return self.jobs[0]


def start_run(
    repository: Repository | None = None, specs: Sequence[ActionsSpec] | None = None, **columns: Any
) -> StartedRun:
    """A run of a workflow file with these jobs, by default one."""
    repository = repository or Repository.objects.first() or make_repository()
    project = repository.project
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
        [BatchJob(spec) for spec in specs or [actions_spec()]],
        policy_for=configured_policy,
        default_pool="shared-linux",
        actor=ALICE,
    )
    jobs = list(Job.objects.filter(batch=outcome.batch).order_by("pk"))
    rows = UnitOfWork()
    for job, spec in zip(jobs, specs or [actions_spec()], strict=True):
        create_steps(rows, job, spec)
    JobStep.objects.bulk_create(rows.extra_rows)
    values = {
        "run_index": WorkflowRun.objects.filter(repository=repository).count() + 1,
        "workflow_file": ".shithub/workflows/ci.yml",
        "workflow_name": "ci",
        "head_sha": COMMIT,
        "head_ref": "refs/heads/trunk",
        "event": "push",
        "event_payload": {"ref": "refs/heads/trunk"},
        "actor": "alice",
        "job_keys": [spec.job_key for spec in specs or [actions_spec()]],
    }
    run = WorkflowRun.objects.create(batch=outcome.batch, repository=repository, **values | columns)
    return StartedRun(run, jobs)


@dataclass
class RegisteredRunner:
    """A runner and its client."""

    row: ActionsRunner
    client: RunnerClient

    @property
    def worker_id(self) -> str:
        return self.row.worker.worker_id


def register(name: str = "runner-1", **options: Any) -> RegisteredRunner:
    """A new runner of the pool of all projects."""
    PoolFactory()
    row, _, token = actions_runners.register_runner(name=name, cause=Cause(OPERATOR), **options)
    return RegisteredRunner(row, RunnerClient(token))
