"""Workflow jobs by our own worker in a real sandbox: from the file of a repository to the ends of its steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.cause import Cause
from orchestrator.secrets.operations import set_secret
from orchestrator.services.cancellation import cancel
from runtime_jobs.models import Job, JobStep, LogChunk, Project, StepAnnotation, WorkflowRun
from runtime_jobs.states import JobState
from tests.factories import ALICE, WorkerFactory
from tests.integration.conftest import Yard
from tests.orchestrator.repositories.world import Origin, mirrored
from tests.workers.agent.scripted import wait_until
from tests.workers.agent.worker_process import WorkerProcess
from tests.workflow_runs import Runner, job_of, started

pytestmark = [pytest.mark.slow, pytest.mark.root]
SECRET = "hunter2-correct-horse"


class Workflows:
    """Starts runs of a repository with a mirror, and a worker with the label of their jobs."""

    def __init__(self, yard: Yard) -> None:
        self.yard = yard
        origin = Origin(yard.root / "origin.git")
        first = origin.commit({"old": b""})
        self.commit = origin.commit({"src/name": b"tree\n", "run.sh": b"echo ran\n"}, parent=first)
        origin.branch("main", self.commit)
        project = Project.objects.get(pk=yard.project.pk)
        self.repository = mirrored(origin, full_name="alice/demo", is_private=True, project=project)

    def start(self, text: str, **changes: Any) -> WorkflowRun:
        return started(text, self.repository, head_sha=self.commit, **changes)

    def worker(self) -> WorkerProcess:
        worker = WorkerFactory(labels=["linux"], capacity=1)
        file = self.yard.root / "own.token"
        file.write_text(f"{worker.token}\n{worker.worker_id}\n")
        file.chmod(0o600)
        return self.yard.start(file, engine="bubblewrap")

    def ended(self, run: WorkflowRun, key: str = "build") -> Job:
        return self.yard.ended(job_of(run, key))


@pytest.fixture
def workflows(yard: Yard, settings: Any) -> Workflows:
    settings.STATE_DIR = Path(yard.installation.environment["STATE_DIR"])
    settings.ACTIONS_ROOT_KEY = ""
    settings.MIRROR_DIR, settings.REPOSITORY_ROOT = str(settings.STATE_DIR / "mirrors"), str(yard.root)
    return Workflows(yard)


def log_of(job: Job, step: int) -> str:
    rows = LogChunk.objects.filter(job_id=job.job_ulid, step=step).order_by("seq").values_list("chunk", flat=True)
    return b"".join(map(bytes, rows)).decode()


def conclusions(job: Job) -> list[str]:
    return list(JobStep.objects.filter(job=job).order_by("index").values_list("conclusion", flat=True))


FILE = """
on: push
env: {STAGE: test}
jobs:
  build:
    runs-on: linux
    steps:
      - run: test ! -e run.sh
      - uses: actions/checkout@v4
      - run: |
          cat name
          echo "$STAGE $GITHUB_REF_NAME $TOKEN ${{ secrets.TOKEN }} ${{ shithub.event.head_commit.message }}"
          echo "VERSION=1.2" >> "$GITHUB_ENV"
          printf 'LONG<<END\\na\\nb\\nEND\\n' >> "$SHITHUB_ENV"
          mkdir "$HOME/bin"; printf '#!/bin/sh\\necho tool' > "$HOME/bin/tool"; chmod +x "$HOME/bin/tool"
          echo "$HOME/bin" >> "$GITHUB_PATH"
          echo "all well" >> "$GITHUB_STEP_SUMMARY"
          echo "::warning file=run.sh::careful"
        working-directory: src
        env: {TOKEN: '${{ secrets.TOKEN }}'}
      - run: 'echo "$VERSION $LONG ${{ env.VERSION }}"; tool'
        if: env.VERSION == '1.2'
      - run: exit 9
        continue-on-error: true
      - run: echo never
        if: failure()
      - run: |
          false
          echo unreached
      - run: echo never
      - run: echo cleanup
        if: always()
"""


def test_a_job_runs_as_its_file_says(workflows: Workflows) -> None:
    organization = workflows.repository.project.organization
    set_secret(organization=organization, repository=None, name="TOKEN", value=SECRET, cause=Cause(ALICE))
    message = '"; touch /job/owned; echo "$(id)'
    run = workflows.start(FILE, event_payload={"head_commit": {"message": message}})
    worker = workflows.worker()
    job = workflows.ended(run)
    assert job.state == JobState.FAILED, worker.log
    assert (job.failure_reason, job.exit_code) == ("command_failed", 1)
    assert job.failure_message == "Step 7 of 9: The script ended with code 1."
    expected = ["success"] * 4 + ["failure", "skipped", "failure", "skipped", "success"]
    assert conclusions(job) == expected, worker.log
    printed = log_of(job, 2)
    assert printed.startswith(f"tree\ntest main *** *** {message}\n")
    assert "[summary\nall well\n]" in printed
    assert log_of(job, 3) == "1.2 a\nb 1.2\ntool\n"
    assert (log_of(job, 5), log_of(job, 6), log_of(job, 8)) == ("", "[The script ended with code 1.]\n", "cleanup\n")
    assert list(StepAnnotation.objects.values_list("message", flat=True)) == ["careful"]
    wait_until(lambda: WorkflowRun.objects.get(pk=run.pk).conclusion == "failure")


HOSTILE = """
on: push
jobs:
  build:
    runs-on: linux
    timeout-minutes: 1
    steps:
      - run: |
          git init -q . ; git config core.sshCommand "touch /tmp/x"; ln -s /etc etc
      - uses: actions/checkout@v4
      - run: test ! -e etc; sh run.sh
      - run: rm "$GITHUB_ENV"; ln -s /etc/passwd "$GITHUB_ENV"
        continue-on-error: true
      - run: head -c 300000 /dev/zero | tr '\\0' a > "$GITHUB_PATH"
        continue-on-error: true
      - run: echo 'LD_PRELOAD=/job/x.so' > "$GITHUB_ENV"
        continue-on-error: true
      - run: echo "${{ secrets.MISSING }}"
        continue-on-error: true
      - id: places
        run: echo up=../.. >> "$GITHUB_OUTPUT"
      - {run: echo never, working-directory: "${{ steps.places.outputs.up }}", continue-on-error: true}
      - {run: echo never, working-directory: missing, continue-on-error: true}
      - run: echo begun; sleep 300
      - run: echo never
        if: always()
"""


def test_hostile_files_fail_their_step_and_a_cancel_ends_the_job(workflows: Workflows) -> None:
    run = workflows.start(HOSTILE)
    worker = workflows.worker()
    job = job_of(run, "build")
    wait_until(lambda: "begun" in log_of(job, 10), 60)
    cancel(job_ulid=job.job_ulid, actor=ALICE, deadline_seconds=30)
    job = workflows.ended(run)
    assert job.state == JobState.CANCELED, worker.log
    assert conclusions(job) == ["success"] * 3 + ["failure"] * 4 + ["success"] + ["failure"] * 2 + ["cancelled"] * 2
    assert log_of(job, 3) == "[GITHUB_ENV: The step has replaced the file.]\n"
    assert log_of(job, 4) == "[GITHUB_PATH: The file has more than 262,144 bytes.]\n"
    assert log_of(job, 5) == "[GITHUB_ENV: A step may not set LD_PRELOAD.]\n"
    assert log_of(job, 8) == "[The working directory is no directory in the workspace.]\n"
    assert log_of(job, 9) == "[The working directory is no directory in the workspace.]\n"
    assert log_of(job, 6) == "[The secret MISSING does not exist.]\n"


REAL = """
on: push
defaults: {run: {working-directory: src}}
concurrency: "${{ github.workflow }}-${{ github.ref }}"
jobs:
  build:
    runs-on: linux
    if: github.event_name == 'push'
    defaults: {run: {shell: bash, working-directory: .}}
    steps:
      - uses: actions/checkout@11bd71901bbe5b1630ceea73d27597364c9af683
        with: {fetch-depth: 0}
      - id: get-version
        run: |
          echo "version=$(git -c safe.directory=/job rev-list --count HEAD)" >> "$GITHUB_OUTPUT"
          printf 'text<<END\\n"; exit 3; "\\nEND\\n' >> "$GITHUB_OUTPUT"
      - run: echo "${{ steps.get-version.outputs.version }} ${{ steps.get-version.outputs.text }} ${{ runner.os }}"
      - id: fails
        run: false | true
        continue-on-error: true
      - shell: sh
        run: false | true
      - shell: python
        run: import os; print(os.environ["V"])
        env: {V: "${{ steps.fails.outcome }} ${{ steps.fails.conclusion }} ${{ job.status }} ${{ github.repository }}"}
      - if: steps.get-version.outputs.version != '2'
        run: exit 1
  plain:
    runs-on: linux
    steps: [{run: exit 0}]
"""


def test_what_other_runners_cannot_execute_is_offered_to_own_workers_alone(workflows: Workflows) -> None:
    run = workflows.start(REAL)
    foreign = Runner()
    assert foreign.claim_all() == ["plain"]
    foreign.end("plain")
    worker = workflows.worker()
    job = workflows.ended(run)
    assert job.state == JobState.SUCCEEDED, worker.log
    assert conclusions(job) == ["success"] * 3 + ["failure"] + ["success"] * 2 + ["skipped"]
    assert log_of(job, 2) == '2 "; exit 3; " Linux\n'
    assert log_of(job, 5) == "failure success success alice/demo\n"
    assert WorkflowRun.objects.get(pk=run.pk).concurrency_group == "-refs/heads/main"
