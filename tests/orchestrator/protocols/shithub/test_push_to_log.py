"""A push becomes a stored log: every process of an installation works, and this one only calls them over HTTP."""

import contextlib
import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from config.paths import BASE_DIR
from orchestrator.core.cause import Cause
from orchestrator.repositories.operations import add_repository
from runtime_jobs.models import LogChunk, StepLog
from tests.factories import OPERATOR, api_token
from tests.live_server import eventually
from tests.orchestrator.protocols.github.conftest import PATH, new_secret, payload, ready, signature
from tests.orchestrator.protocols.shithub.stories.scene import SECONDS, Installation, Scene, stand_in_program
from tests.orchestrator.repositories.world import Origin

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]
FILE = ".shithub/workflows/ci.yml"
WORKFLOW = b"""
name: CI
on: push
jobs:
  build:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
      - run: cat README; echo "$MESSAGE"
        env: {MESSAGE: "${{ shithub.sha }}"}
  report:
    needs: build
    if: always()
    runs-on: ubuntu-latest
    steps: [run: echo reported]
"""


class Caller:
    """A client with an API token."""

    def __init__(self, of: Installation, token: str) -> None:
        self._url, self._session = of.proxy.url, requests.Session()
        self._session.headers["Authorization"] = f"Bearer {token}"

    def get(self, path: str) -> requests.Response:
        answer = self._session.get(f"{self._url}{path}", timeout=60)
        assert answer.status_code == 200, answer.text
        return answer

    def runs(self, repository: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get(f"/v1/batches?repository={repository}").json()["results"]
        return found

    def ended_run(self, repository: str) -> dict[str, Any] | None:
        return next((run for run in self.runs(repository) if run["run"]["completed_at"]), None)

    def log(self, job_id: str) -> str:
        return self.get(f"/v1/jobs/{job_id}/logs").text


def push(of: Installation, secret: str, commit: str) -> int:
    """Deliver a push as GitHub does, and return the status."""
    body = payload("push.branch")
    body |= {"after": commit, "head_commit": body["head_commit"] | {"id": commit}}
    owner = body["repository"]["owner"] | {"login": "pushed"}
    body["repository"] |= {"full_name": "pushed/web", "name": "web", "owner": owner}
    raw = json.dumps(body).encode()
    headers = {
        "Content-Type": "application/json",
        "X-GitHub-Event": "push",
        "X-GitHub-Delivery": str(uuid.uuid4()),
        "X-GitHub-Hook-ID": "292430182",
        "X-Hub-Signature-256": signature(secret, raw),
    }
    return requests.post(f"{of.proxy.url}{PATH}", data=raw, headers=headers, timeout=60).status_code


@pytest.fixture
def processes(story_installation, tmp_path) -> Iterator[Path]:
    """The scheduler and housekeeping. The value is the folder of their logs."""
    with contextlib.ExitStack() as stack:
        for name in ("runclock", "runhousekeeping"):
            log = stack.enter_context((tmp_path / f"{name}.log").open("wb"))
            command = [sys.executable, "manage.py", name]
            process = subprocess.Popen(
                command,
                cwd=BASE_DIR,
                env=story_installation.variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
        yield tmp_path


@pytest.fixture
def scene(story_installation, tmp_path) -> Iterator[Scene]:
    folder = tmp_path / "runner"
    folder.mkdir()
    found = Scene(story_installation, stand_in_program(), folder)
    yield found
    found.end()


def test_a_push_is_executed_and_its_log_is_stored_in_objects(story_installation, processes, scene):
    project = ready("pushed", configured_command=[], repositories=["pushed/web"])
    origin = Origin(Path(story_installation.environment["REPOSITORY_ROOT"]) / "pushed.git")
    commit = origin.commit({FILE: WORKFLOW, "README": b"of the pushed commit\n"})
    add_repository(
        project=project, full_name="pushed/web", origin=str(origin.path), is_private=True, cause=Cause(OPERATOR)
    )
    scene.start_runner("of-pushes")
    secret = new_secret(project)
    assert [push(story_installation, secret, commit) for _ in range(2)] == [202, 202]
    caller = Caller(story_installation, api_token(project.organization))
    run = eventually(lambda: caller.ended_run("pushed/web"), SECONDS)
    assert (run["run"]["conclusion"], run["run"]["event"], run["git_commit"]) == ("success", "push", commit)
    assert len(caller.runs("pushed/web")) == 1, "one run of two deliveries"
    jobs = {job["job_key"]: job for job in caller.get(f"/v1/batches/{run['batch_id']}").json()["jobs"]}
    logs = {key: caller.log(job["job_id"]) for key, job in jobs.items()}
    assert logs["build"].endswith(f"of the pushed commit\n{commit}\n")
    assert logs["report"] == "reported\n"
    eventually(lambda: StepLog.objects.exclude(object_key="").count() == 3 and not LogChunk.objects.exists(), SECONDS)
    assert {key: caller.log(job["job_id"]) for key, job in jobs.items()} == logs, "from the objects"
