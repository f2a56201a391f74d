"""Workflows with the real processes: a signed delivery, two housekeeping processes, a web process and a runner over HTTP."""

import contextlib
import json
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import requests
from django.conf import settings
from django.db import connection, transaction

from config.paths import BASE_DIR
from orchestrator.housekeeping.models import HousekeepingTask
from orchestrator.housekeeping.queue import request_task
from orchestrator.limits.throttles import ThrottleWindow
from orchestrator.workflows.schedules import SCHEDULE_TASK
from orchestrator.workflows.triggers import TRIGGER_TASK
from runtime_jobs.db_time import database_now
from runtime_jobs.models import RejectedWorkflow, Repository, WorkflowRun, WorkflowSchedule, WorkflowTrigger
from tests.factories import api_token
from tests.live_server import Server, eventually, patient, serving
from tests.orchestrator.protocols.github.conftest import PATH, new_secret, payload, ready, signature
from tests.orchestrator.protocols.shithub.runner import ClaimedJobClient, RunnerClient
from tests.orchestrator.protocols.shithub.world import register
from tests.orchestrator.repositories.world import Origin
from tests.suite_functions import audit_findings
from tests.workflow_runs import reread, states, workflow_text

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True), pytest.mark.timeout(600)]

FOLDER = ".shithub/workflows"
CI = workflow_text(
    {
        "build": {"runs_on": "ci", "steps": "[{uses: actions/checkout@v4}, {run: make}]"},
        "test": {"runs_on": "ci", "needs": "build"},
        "deploy": {"runs_on": "ci", "needs": "test"},
        "notify": {"runs_on": "ci", "needs": "test", "if": "always()"},
        "never": {"runs_on": "ci", "if": "shithub.ref == 'refs/heads/other'"},
    },
    name="CI",
)
WAITING = workflow_text({"wait": {"runs_on": "wait"}}, concurrency="wait-${{ shithub.ref }}")
CANCELING = workflow_text({"stop": {"runs_on": "stop"}}, concurrency="{group: stop, cancel-in-progress: true}")
OTHER = workflow_text({"a": None}, on="{push: {branches: [other]}}")
WRONG = "on: push\njobs:\n  build:\n    runs-on: linux\n    step:\n      - run: make\n"


@pytest.fixture(autouse=True)
def audited():
    """Check the invariants after each test."""
    yield
    assert audit_findings(chains=True) == []


@pytest.fixture
def environment(database_url, tmp_path) -> dict[str, str]:
    return {
        "DATABASE_URL": database_url,
        "SECRET_KEY": settings.SECRET_KEY,
        "MIRROR_DIR": str(tmp_path / "mirrors"),
        "REPOSITORY_ROOT": str(tmp_path / "origins"),
    }


@pytest.fixture
def origin(tmp_path) -> Origin:
    (tmp_path / "origins").mkdir()
    return Origin(tmp_path / "origins" / "web.git")


@pytest.fixture
def repository(origin) -> Repository:
    """The repository of the recorded deliveries, without a mirror."""
    return Repository.objects.create(
        project=ready(configured_command=[]), owner="cc-consulting-nv", name="web", origin=str(origin.path)
    )


@contextlib.contextmanager
def housekeeping(environment: dict[str, str], folder: Path, *, number: int = 2, threads: int = 2) -> Iterator[None]:
    """Housekeeping processes, ended with the block."""
    processes = []
    try:
        with (folder / "housekeeping.log").open("ab") as log:
            for place in range(number):
                variables = {**os.environ, **environment, "STATE_DIR": str(folder / f"state-{place}")}
                command = [sys.executable, "manage.py", "runhousekeeping", "--threads", str(threads)]
                processes.append(
                    subprocess.Popen(
                        command, cwd=BASE_DIR, env=variables, stdin=subprocess.DEVNULL, stdout=log, stderr=log
                    )
                )
        yield
        assert [process.poll() for process in processes] == [None] * number
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=30)
            process.kill()
            process.wait()


class Http:
    """Sends requests as Django's test client does, to a real server."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def generic(self, method: str, path: str, body: bytes, *, content_type: str, headers: dict[str, str]) -> Any:
        sent = headers | {"Content-Type": content_type}
        return requests.request(method, self._server.url + path, data=body, headers=sent, timeout=60)


def deliver(server: Server, secret: str, commit: str, before: str, delivery: str) -> int:
    """Deliver a push as GitHub does. Returns the status."""
    body = payload("push.branch")
    body |= {"before": before, "after": commit, "head_commit": body["head_commit"] | {"id": commit}}
    raw = json.dumps(body).encode()
    headers = {
        "Content-Type": "application/json",
        "X-GitHub-Event": "push",
        "X-GitHub-Delivery": delivery,
        "X-Hub-Signature-256": signature(secret, raw),
    }
    return requests.post(server.url + PATH, data=raw, headers=headers, timeout=60).status_code


def is_processed(commit: str) -> bool:
    """Whether the event of a push was processed. A waiting repetition of the task is made due."""
    HousekeepingTask.objects.filter(kind=TRIGGER_TASK, failures__gt=0).update(due_at=database_now())
    return WorkflowTrigger.objects.filter(head_sha=commit, processed_at__isnull=False).exists()


def run_of(name: str, commit: str) -> WorkflowRun:
    return WorkflowRun.objects.select_related("batch").get(workflow_file=f"{FOLDER}/{name}", head_sha=commit)


def test_from_a_signed_delivery_to_the_stored_conclusion(environment, origin, repository, tmp_path, admin_client):
    secret = new_secret(repository.project)
    texts = {"ci.yml": CI, "wait.yaml": WAITING, "stop.yml": CANCELING, "other.yml": OTHER, "wrong.yml": WRONG}
    files = {f"{FOLDER}/{name}": text.encode() for name, text in texts.items()}
    first = origin.commit(files)
    runner = register(capacity=8).client
    with serving(tmp_path, **environment) as server, housekeeping(environment, tmp_path):
        runner = RunnerClient(runner.registration, Http(server))  # type: ignore[arg-type]

        def claim(label: str) -> ClaimedJobClient | None:
            ThrottleWindow.objects.all().delete()  # the limit of 60 a minute has tests of its own
            found = runner.heartbeat(labels=[label], capacity=8)
            assert found.status_code in {200, 204}, found.text
            return ClaimedJobClient(runner, found.json()) if found.status_code == 200 else None

        def begin(label: str) -> ClaimedJobClient:
            job: ClaimedJobClient = eventually(lambda: claim(label))
            assert job.run().status_code == 200
            return job

        assert deliver(server, "wrong", first, "0" * 40, "d0") == 401
        assert deliver(server, secret, first, "0" * 40, "d1") == 202
        assert deliver(server, secret, first, "0" * 40, "d1") == 202  # GitHub repeats a delivery
        assert deliver(server, secret, first, "0" * 40, str(uuid.uuid4())) == 202  # an operator redelivers the event
        eventually(lambda: is_processed(first), 120)

        # One run for each file that matches. The wrong file has none, but diagnostics with path and line.
        started = list(WorkflowRun.objects.order_by("workflow_file").values_list("workflow_file", flat=True))
        assert started == [f"{FOLDER}/{name}" for name in ("ci.yml", "stop.yml", "wait.yaml")]
        assert WorkflowTrigger.objects.count() == 1
        rejected = RejectedWorkflow.objects.get()
        assert (rejected.workflow_file, rejected.head_sha) == (f"{FOLDER}/wrong.yml", first)
        page = admin_client.get(f"/admin/runtime_jobs/rejectedworkflow/{rejected.pk}/change/").content.decode()
        assert "Line 5" in page
        assert "jobs.build.step" in page

        # The jobs in the order of their needs; `always()` after a failure, a false `if`.
        run = run_of("ci.yml", first)
        assert states(run)["never"] == "canceled:condition_false"
        for key, conclusion in (("build", "success"), ("test", "failure"), ("notify", "success")):
            job = begin("ci")
            assert (job.job["job_key"], job.job["run_id"]) == (key, run.pk)
            assert claim("ci") is None  # the others need this one
            assert job.log(b"hello\n").status_code == 202
            for place in range(len(job.steps)):
                assert job.end_step(place, conclusion).status_code == 200
            ended = job.end(conclusion)
            assert ended.status_code == 200, ended.text
        assert ended.json()["run_conclusion"] == "failure"
        assert states(run)["deploy"] == "canceled:dependency_failed"
        read = {"Authorization": f"Bearer {api_token(repository.project.organization)}"}
        found = requests.get(f"{server.url}/v1/batches/{run.batch.batch_ulid}", headers=read, timeout=60).json()
        assert (found["run"]["status"], found["run"]["conclusion"]) == ("completed", "failure")
        conclusions = {job["job_key"]: job["conclusion"] for job in found["jobs"]}
        assert conclusions == {
            "build": "success", "test": "failure", "deploy": "skipped", "notify": "success", "never": "skipped",
        }  # fmt: skip
        query = f"repository=CC-Consulting-nv/web&head_sha={first}"
        checks = requests.get(f"{server.url}/v1/checks?{query}", headers=read, timeout=60).json()
        assert {(check["name"], check["status"]) for check in checks["results"]} == {
            *((key, "completed") for key in conclusions), ("wait", "queued"), ("stop", "queued"),
        }  # fmt: skip

        # A second push: one group waits for the older run, the other one cancels it.
        old_wait, old_stop = begin("wait"), begin("stop")
        second = origin.commit(files | {"README": b"2"}, parent=first)
        assert deliver(server, secret, second, first, "d2") == 202
        eventually(lambda: is_processed(second), 120)
        waiting, stopping = run_of("wait.yaml", second), run_of("stop.yml", second)
        assert (waiting.hold, stopping.hold) == ("concurrency", "")
        assert claim("wait") is None
        new_stop = begin("stop")
        assert new_stop.job["run_id"] == stopping.pk
        assert old_stop.check_cancel().json()["cancelled"] is True
        assert old_stop.end("cancelled", status="cancelled").json()["run_conclusion"] == "cancelled"
        assert reread(run_of("stop.yml", first)).batch.cancel_reason == "superseded"
        assert old_wait.check_cancel().json()["cancelled"] is False
        assert old_wait.end().json()["run_conclusion"] == "success"
        new_wait = begin("wait")
        assert new_wait.job["run_id"] == waiting.pk
        for job in (new_wait, new_stop):
            assert job.end().json()["run_conclusion"] == "success"
    conclusions = WorkflowRun.objects.order_by("workflow_file", "pk").values_list("conclusion", flat=True)
    assert list(conclusions) == ["failure", None, "cancelled", "success", "success", "success"]


def waiting_backends() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute(
            "SELECT count(DISTINCT pid) FROM pg_stat_activity WHERE datname = current_database()"
            " AND wait_event_type = 'Lock' AND pid <> pg_backend_pid()"
        )
        return int(cursor.fetchone()[0])


def test_a_schedule_fires_once_with_two_housekeeping_processes(environment, origin, repository, tmp_path):
    """Both processes have read the schedule as due, and wait for the lock of its repository."""
    nightly = workflow_text({"a": None}, on="{schedule: [{cron: '0 4 * * *'}]}")
    commit = origin.commit({f"{FOLDER}/nightly.yml": nightly.encode()})
    due_at = database_now() - timedelta(minutes=5)
    row = WorkflowSchedule.objects.create(
        repository=repository, workflow_file=f"{FOLDER}/nightly.yml", cron="0 4 * * *", next_at=due_at + timedelta(1)
    )
    # Both wait until this session has seen it, however slow the machine is.
    environment |= {"DATABASE_URL": patient(environment["DATABASE_URL"])}
    with housekeeping(environment, tmp_path, threads=1):
        eventually(lambda: Repository.objects.filter(pk=repository.pk, mirrored_at__isnull=False).exists(), 120)
        with transaction.atomic():
            Repository.objects.select_for_update(no_key=True).get(pk=repository.pk)
            make_due_elsewhere(row, due_at)
            eventually(lambda: waiting_backends() == 2, 120)
            executing = HousekeepingTask.objects.filter(kind=SCHEDULE_TASK).exclude(claimed_by="")
            assert len(set(executing.values_list("claimed_by", flat=True))) == 2
            assert not WorkflowRun.objects.exists()
        eventually(lambda: WorkflowSchedule.objects.get(pk=row.pk).next_at > due_at, 120)
        eventually(lambda: not executing.exists(), 120)
        run = WorkflowRun.objects.get()
        assert (run.event, run.head_sha, run.head_ref) == ("schedule", commit, "refs/heads/main")
        assert run.trigger_id == f"schedule:0 4 * * *:{due_at:%Y-%m-%dT%H:%MZ}"
        # A process that dies before it stores the next time starts nothing a second time.
        WorkflowSchedule.objects.update(next_at=due_at)
        request_task(SCHEDULE_TASK)
        eventually(lambda: WorkflowSchedule.objects.get(pk=row.pk).next_at > due_at, 120)
    assert WorkflowRun.objects.count() == 1


def make_due_elsewhere(row: WorkflowSchedule, due_at: Any) -> None:
    """Make a schedule and two tasks due, committed by another connection than that of the test's open transaction."""

    def commit() -> None:
        WorkflowSchedule.objects.filter(pk=row.pk).update(next_at=due_at)
        request_task(SCHEDULE_TASK)
        request_task(SCHEDULE_TASK, "second")
        connection.close()

    thread = threading.Thread(target=commit)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
