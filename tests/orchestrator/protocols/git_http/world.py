"""A job of a workflow run in execution by a runner, and clients of git."""

import base64
import os
import subprocess
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

from leases.models import Lease
from orchestrator.core.cause import Cause
from orchestrator.job_tokens.claims import TokenPurpose, new_token, sign
from orchestrator.services import batches, claiming
from orchestrator.services.actions_runners import register_runner
from orchestrator.services.batches import BatchJob, BatchSubmission
from runtime_jobs.db_time import database_now
from runtime_jobs.models import Job, Repository, WorkflowRun
from runtime_jobs.specs import JOB_TYPES
from runtime_jobs.specs.actions import ActionsSpec, ActionsStep
from tests.factories import ALICE, OPERATOR, TIMINGS, PoolFactory, offer
from workers.models import Worker

ROOT_KEY = base64.b64encode(b"\x42" * 32).decode()


@dataclass(frozen=True)
class RunningJob:
    """A job that a runner has claimed."""

    repository: Repository
    job: Job
    run: WorkflowRun
    worker: Worker
    lease: Lease

    def token(self, purpose: TokenPurpose = TokenPurpose.CHECKOUT, *, age: timedelta = timedelta(0), **claims) -> str:
        """A token of this job, with other claims where they are given."""
        token = new_token(
            purpose,
            runner_id=self.worker.pk,
            job_id=self.job.pk,
            run_id=self.run.pk,
            repository_id=self.repository.pk,
            fence=self.lease.fence,
            chain=0,
            now=database_now() - age,
        )
        return sign(replace(token, **claims))


def running_job(repository: Repository, commit: str = "5" * 40, *, now: datetime | None = None) -> RunningJob:
    """A claimed job of a run of this repository, since `now`."""
    number = WorkflowRun.objects.count() + 1
    project = repository.project
    step = ActionsStep(index=0, uses="actions/checkout@v4")
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
        [BatchJob(ActionsSpec(job_key="build", job_name="build", steps=(step,), timeout_minutes=5))],
        policy_for=lambda kind: JOB_TYPES[kind].policy(**TIMINGS),
        default_pool="shared-linux",
        actor=ALICE,
        now=now,
    )
    run = WorkflowRun.objects.create(
        batch=outcome.batch,
        repository=repository,
        run_index=number,
        workflow_file=".shithub/workflows/ci.yml",
        head_sha=commit,
        head_ref="refs/heads/main",
        event="push",
    )
    PoolFactory()
    runner, _, _ = register_runner(name=f"runner-{number}", cause=Cause(OPERATOR))
    worker = runner.worker
    offered = offer(worker, job_types=("actions",))
    claimed = claiming.claim(worker=worker, offer=offered, acknowledge=False, now=now)
    return RunningJob(repository, claimed.lease.job, run, worker, claimed.lease)


def basic(secret: str, user: str = "shithub-actions") -> str:
    """The value of a header with this password."""
    return "Basic " + base64.b64encode(f"{user}:{secret}".encode()).decode()


def run_git(*arguments: str, at: Path, secret: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """Run git as a client has it: without prompts, and with the secret where the runner sends it."""
    helper = "!f() { echo username=shithub-actions; echo password=$TOKEN; }; f"
    options = ["-c", f"credential.helper={helper}"] if secret else []
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_TERMINAL_PROMPT": "0",
        "TOKEN": secret,
        **variables,
    }
    command = ["git", *options, *arguments]
    return subprocess.run(command, cwd=at, env=environment, capture_output=True, text=True, check=False, timeout=120)
