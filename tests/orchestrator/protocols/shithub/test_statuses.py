"""Every status of every call (contract section 2), in one table, which is also the table of the documentation."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from django.db import OperationalError

from config.paths import BASE_DIR
from orchestrator.core.sealing import SealedValueError
from orchestrator.http.auth.authentication import refusals
from orchestrator.limits.throttles import ThrottleWindow
from orchestrator.protocols.shithub.heartbeat import operation as heartbeat_operation
from orchestrator.protocols.shithub.jobs import effects, optimistic
from orchestrator.protocols.shithub.jobs import views as job_views
from orchestrator.services import batches, worker_state
from runtime_jobs.models import Plan, WorkflowRun
from tests.api_client import Caller
from tests.factories import OPERATOR, OrganizationFactory, api_token
from tests.orchestrator.artifacts.conftest import FOLDER, use
from tests.orchestrator.protocols.shithub.conftest import error_of
from tests.orchestrator.protocols.shithub.runner import HEARTBEAT, ClaimedJobClient
from tests.orchestrator.protocols.shithub.test_rerun import FILE, TEXT
from tests.orchestrator.protocols.shithub.world import RegisteredRunner, StartedRun
from tests.orchestrator.repositories.world import Origin, mirrored
from tests.workflow_runs import Runner as WorkflowWorker
from tests.workflow_runs import started

pytestmark = pytest.mark.django_db
DOCUMENT = BASE_DIR / "docs/protocols/shithub.md"
TOO_LARGE = b"x" * ((768 << 10) + 1)


@dataclass
class World:
    """A registered runner, a run with one queued job, and what a row of the table may change."""

    runner: RegisteredRunner
    run: StartedRun
    settings: Any
    patch: pytest.MonkeyPatch
    folder: Any

    def begun(self) -> ClaimedJobClient:
        claimed = self.runner.client.claim()
        assert claimed.run().status_code == 200
        return claimed

    def break_key(self) -> None:
        self.settings.ACTIONS_ROOT_KEY = "short"

    def fail(self, target: Any, name: str, error: Exception) -> None:
        def raise_error(*_args: Any, **_options: Any) -> None:
            raise error

        self.patch.setattr(target, name, raise_error)

    def user(self, *scopes: str) -> Caller:
        return Caller(api_token(self.run.run.repository.project.organization, scopes or ("jobs:write",)))

    def stranger(self) -> Caller:
        return Caller(api_token(OrganizationFactory(slug="other")))

    def throttled(self) -> Caller:
        """A caller whose network has sent too many invalid tokens."""
        self.patch.setattr(refusals, "wait", lambda *_args, **_options: 30.0)
        return self.user()


Row = Callable[[World], Any]
ERROR = SealedValueError("altered")
DATABASE = OperationalError("the connection is closed")
STEP = "steps/{step}/status"
BODIES = {
    "status": {"status": "running"},
    STEP: {"status": "running"},
    "logs": {"seq": 0, "chunk": "aGVsbG8K"},
    "cancel-check": {},
    "artifacts/upload": {"name": "report", "size_bytes": 5},
}
INNER = {
    "status": "report_job",
    STEP: "lock_step",
    "logs": "masks_of",
    "cancel-check": "CallAnswer",
    "artifacts/upload": "upload_url",
}


def send(claimed: ClaimedJobClient, call: str, body: Any = None) -> Any:
    return claimed.call(call.format(step=claimed.steps[0]["id"]), BODIES[call] if body is None else body)


def of_job(call: str, success: int, *, bad: Any = b"[]") -> dict[int, Row]:
    """The rows that all calls with a token of the job have."""

    def lost(world: World) -> Any:
        claimed = world.begun()
        worker_state.revoke(job_ulid=world.run.job.job_ulid, actor=OPERATOR, reason="test")
        return send(claimed, call)

    def without_token(world: World) -> Any:
        claimed = world.begun()
        claimed.token = "wrong"
        return send(claimed, call)

    def failing(error: Exception) -> Row:
        def row(world: World) -> Any:
            claimed = world.begun()
            world.fail(effects, INNER[call], error)
            world.fail(optimistic, "store_call", error)  # the statement of a call without a transaction
            return send(claimed, call)

        return row

    rows: dict[int, Row] = {
        success: lambda world: send(world.begun(), call),
        401: without_token,
        404: lost,
        413: lambda world: send(world.begun(), call, TOO_LARGE),
        500: failing(ERROR),
        503: failing(DATABASE),
    }
    if bad is not None:
        rows[400] = lambda world: send(world.begun(), call, bad)
    return rows


def cancel_path(world: World) -> str:
    return f"/api/v1/jobs/{world.run.job.pk}/cancel"


def beat(world: World, body: Any = None, *, token: str | None = None) -> Any:
    return world.runner.client.post(HEARTBEAT, {"labels": ["ubuntu-latest"]} if body is None else body, token=token)


def heartbeat_429(world: World) -> Any:
    beat(world, {"labels": []})
    ThrottleWindow.objects.update(current=60)
    return beat(world)


def heartbeat_500(world: World) -> Any:
    world.fail(heartbeat_operation, "snapshot_secrets", ERROR)
    return beat(world)


def heartbeat_503(world: World) -> Any:
    world.break_key()
    return beat(world)


def renewed(world: World, token: str | None = None) -> Any:
    claimed = world.begun()
    return world.runner.client.post(f"{claimed.path}/token", token=token)


def token_500(world: World) -> Any:
    world.fail(job_views, "start_chain", ERROR)
    return renewed(world)


def token_503(world: World) -> Any:
    claimed = world.begun()
    world.break_key()
    return world.runner.client.post(f"{claimed.path}/token")


def artifact_402(world: World) -> Any:
    Plan.objects.update(max_stored_bytes=1)
    return send(world.begun(), "artifacts/upload")


def artifact_409(world: World) -> Any:
    claimed = world.begun()
    send(claimed, "artifacts/upload")
    return send(claimed, "artifacts/upload")


def ended_run(world: World, file: str = FILE) -> WorkflowRun:
    """A run of a mirrored repository that has failed."""
    origins = world.folder / "origins"
    origins.mkdir()
    world.settings.REPOSITORY_ROOT, world.settings.MIRROR_DIR = str(origins), str(world.folder / "mirrors")
    origin = Origin(origins / "web.git")
    commit = origin.commit({FILE: TEXT.encode(), ".shithub/workflows/wrong.yml": b"on: push\njobs: wrong\n"})
    origin.branch("main", commit)
    repository = mirrored(origin)
    run = started({"build": None}, repository, workflow_file=file, head_sha=commit)
    if file == FILE:
        WorkflowWorker().run_all(build="failure")
    else:
        batches.cancel_batch(batch_ulid=run.batch.batch_ulid, actor=OPERATOR, deadline_seconds=30)
    return run


def rerun(world: World, run: WorkflowRun | None = None, caller: Caller | None = None) -> Any:
    run = run or ended_run(world)
    caller = caller or Caller(api_token(run.repository.project.organization, ("jobs:write",)))
    return caller.post(f"/api/v1/runs/{run.pk}/rerun")


def rerun_403(world: World) -> Any:
    run = ended_run(world)
    return rerun(world, run, Caller(api_token(run.repository.project.organization, ("jobs:read",))))


TABLE: dict[str, dict[int, Row]] = {
    "POST /api/v1/runners/heartbeat": {
        200: beat,
        204: lambda world: beat(world, {"labels": ["none"]}),
        400: lambda world: beat(world, {"capacity": 65}),
        401: lambda world: beat(world, token="0" * 64),
        413: lambda world: beat(world, TOO_LARGE),
        429: heartbeat_429,
        500: heartbeat_500,
        503: heartbeat_503,
    },
    "POST /api/v1/jobs/{id}/status": of_job("status", 200, bad={"status": "queued"}),
    "POST /api/v1/jobs/{id}/steps/{step_id}/status": of_job(STEP, 200, bad={"status": "queued"}),
    "POST /api/v1/jobs/{id}/logs": of_job("logs", 202, bad={"seq": -1, "chunk": "YQ=="}),
    "POST /api/v1/jobs/{id}/cancel-check": of_job("cancel-check", 200, bad=None),
    "POST /api/v1/jobs/{id}/artifacts/upload": of_job("artifacts/upload", 201, bad={"name": "../x", "size_bytes": 1})
    | {402: artifact_402, 409: artifact_409},
    "POST /api/v1/jobs/{id}/token": {
        200: renewed,
        401: lambda world: renewed(world, "0" * 64),
        404: lambda world: world.runner.client.post(f"/api/v1/jobs/{world.run.job.pk}/token"),
        413: lambda world: world.runner.client.post(f"/api/v1/jobs/{world.run.job.pk}/token", TOO_LARGE),
        500: token_500,
        503: token_503,
    },
    "POST /api/v1/jobs/{id}/cancel": {
        202: lambda world: world.user().post(cancel_path(world)),
        401: lambda world: Caller().post(cancel_path(world)),
        403: lambda world: world.user("jobs:read").post(cancel_path(world)),
        404: lambda world: world.stranger().post(cancel_path(world)),
        429: lambda world: world.throttled().post(cancel_path(world)),
    },
    "POST /api/v1/runs/{id}/rerun": {
        201: rerun,
        401: lambda world: rerun(world, caller=Caller()),
        403: rerun_403,
        404: lambda world: rerun(world, caller=world.stranger()),
        409: lambda world: rerun(world, world.run.run),
        422: lambda world: rerun(world, ended_run(world, ".shithub/workflows/wrong.yml")),
        429: lambda world: rerun(world, world.run.run, world.throttled()),
    },
}
ROWS = [(call, status) for call, rows in TABLE.items() for status in sorted(rows)]


@pytest.fixture
def world(runner, run, settings, monkeypatch, tmp_path) -> World:
    use(settings, FOLDER, location=str(tmp_path / "artifacts"))
    return World(runner, run, settings, monkeypatch, tmp_path)


@pytest.mark.parametrize(("call", "status"), ROWS, ids=str)
def test_each_call_has_each_status(world, call, status):
    response = TABLE[call][status](world)
    if status >= 400:
        error_of(response, status)
        return
    assert response.status_code == status, response.content
    assert response["Cache-Control"] == "no-store"
    if status == 204:
        assert response.content == b""
        return
    assert response["Content-Type"] == "application/json; charset=utf-8"
    assert response.content.endswith(b"\n")
    assert isinstance(json.loads(response.content), dict)


def test_the_documentation_names_these_statuses_and_no_other():
    rows = re.findall(r"^\| `(POST [^`]+)` \|[^|]*\| ([\d, ]+) \|", DOCUMENT.read_text(), re.MULTILINE)
    assert {call: [int(text) for text in statuses.split(",")] for call, statuses in rows} == {
        call: sorted(found) for call, found in TABLE.items()
    }
