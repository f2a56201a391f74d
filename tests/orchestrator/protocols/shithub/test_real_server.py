"""A runner against real servers: the walk by curl, limits and counters over two processes, and errors of the database."""

import base64
import contextlib
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import requests
from django.db import connection, transaction

from config.paths import BASE_DIR
from leases.models import Lease
from orchestrator.core.cause import Cause
from orchestrator.core.metrics_aggregation import EventCounter
from orchestrator.core.metrics_models import Count
from orchestrator.job_tokens.models import UsedToken
from orchestrator.limits.throttles import ThrottleWindow
from orchestrator.protocols.shithub.heartbeat_rate import WINDOW_SECONDS
from orchestrator.secrets.operations import set_secret
from orchestrator.services import actions_runners, cancellation, expiry
from runtime_jobs.db_time import database_now
from runtime_jobs.models import Job, Project
from runtime_jobs.states import JobState
from tests.factories import OPERATOR, PoolFactory, api_token
from tests.live_server import Server, eventually, serving
from tests.orchestrator.maintenance.test_retention_of_runs import run_ended
from tests.orchestrator.protocols.shithub.world import actions_spec, make_repository, start_run
from tests.orchestrator.repositories.world import Origin, mirrored
from tests.workflow_runs import workflow_text

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]
ROOT_KEY = base64.b64encode(b"\x42" * 32).decode()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The repositories of the installation."""
    found = tmp_path_factory.mktemp("repositories")
    (found / "origins").mkdir()
    return found


@pytest.fixture(scope="module")
def environment(database_url, folder) -> dict[str, str]:
    folders = {"REPOSITORY_ROOT": str(folder / "origins"), "MIRROR_DIR": str(folder / "mirrors")}
    return {"DATABASE_URL": database_url, "SECRET_KEY": "s" * 50, "ACTIONS_ROOT_KEY": ROOT_KEY} | folders


@pytest.fixture(scope="module")
def servers(environment, tmp_path_factory) -> Iterator[list[Server]]:
    """Two processes of one installation."""
    folders = [tmp_path_factory.mktemp(f"server-{number}") for number in range(2)]
    with serving(folders[0], **environment) as first, serving(folders[1], **environment) as second:
        yield [first, second]


@pytest.fixture
def token(db) -> str:
    """The registration token of a runner."""
    PoolFactory()
    _, _, found = actions_runners.register_runner(name="runner-1", cause=Cause(OPERATOR))
    return found


@pytest.fixture
def printed_token(environment, tmp_path) -> str:
    """The registration token that `manage.py runner register` prints, whose process counts the registration."""
    PoolFactory()
    found = register(environment, tmp_path, "--name", "runner-1", "--output", "json")
    assert found.returncode == 0, found.stderr
    (line,) = found.stdout.splitlines()
    return str(json.loads(line)["token"])


def register(environment: dict[str, str], folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `manage.py runner register` in a process of its own."""
    command = [sys.executable, "manage.py", "runner", "register", *arguments]
    variables = {**os.environ, **environment, "STATE_DIR": str(folder)}
    return subprocess.run(command, cwd=BASE_DIR, env=variables, capture_output=True, text=True, check=False)


def test_register_prints_64_digits_once_and_the_database_has_only_their_hash(environment, tmp_path):
    PoolFactory()
    found = register(environment, tmp_path, "--name", "runner-1", "--output", "json")
    assert (found.returncode, found.stderr) == (0, "")
    token = json.loads(found.stdout)["token"]
    assert re.fullmatch("[0-9a-f]{64}", token)
    assert found.stdout.count(token) == 1
    digest = hashlib.sha256(bytes.fromhex(token)).hexdigest()
    assert [tables_with(text) for text in (token, digest)] == [[], ["actions_registration_tokens"]]
    for name in ("runner-1", "not a name"):
        refused = register(environment, tmp_path, "--name", name, "--output", "json")
        assert (refused.returncode, refused.stdout) == (1, "")
        assert len(refused.stderr.splitlines()) == 1


def tables_with(digits: str) -> list[str]:
    """Return the tables of which a row contains these hexadecimal digits, also as bytes: PostgreSQL writes `\\x…`."""
    found = []
    with connection.cursor() as cursor:
        for table in connection.introspection.table_names(cursor):
            cursor.execute(f'SELECT EXISTS (SELECT FROM "{table}" t WHERE strpos(t::text, %s) > 0)', [digits])
            found += [table] if cursor.fetchone()[0] else []
    return found


def test_the_walk_of_the_documentation(servers, environment, tmp_path):
    """The commands of docs/protocols/shithub.md, as they are but for addresses."""
    PoolFactory()
    started = start_run()
    text = (BASE_DIR / "docs/protocols/shithub.md").read_text()
    section = text.partition("## A walk by curl")[2].partition("\n## ")[0]
    script = "\n".join(re.findall(r"```sh\n(.*?)```", section, re.DOTALL))
    for written, here in {
        ".venv/bin/python manage.py": f"{sys.executable} {BASE_DIR / 'manage.py'}",
        "http://127.0.0.1:8000": servers[0].url,
    }.items():
        assert written in script
        script = script.replace(written, here)
    variables = {**os.environ, **environment, "STATE_DIR": str(tmp_path)}
    command = ["bash", "-euo", "pipefail", "-c", script]
    found = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr + found.stdout
    claimed = json.loads((tmp_path / "claim.json").read_text())
    assert set(claimed) == {"token", "expires_at", "job"}
    assert set(claimed["job"]) == MEMBERS_OF_A_JOB
    assert {frozenset(step) for step in claimed["job"]["steps"]} == {MEMBERS_OF_A_STEP}
    answers = [json.loads(line) for line in found.stdout.splitlines()]
    tokens = [answer.pop("next_token", None) for answer in answers]
    assert [answer.pop("next_token_expires_at", "")[-1:] for answer in answers] == ["Z"] * 4 + [""]
    assert [token is None for token in tokens] == [False] * 4 + [True]
    assert answers == [
        {"status": "running", "conclusion": None},
        {"accepted": True},
        {"status": "completed", "conclusion": "success"},
        {"cancelled": False},
        {"status": "completed", "conclusion": "success", "run_status": "completed", "run_conclusion": "success"},
    ]
    started.job.refresh_from_db()
    assert started.job.state == JobState.SUCCEEDED


MEMBERS_OF_A_JOB = {
    *("id", "run_id", "repo_id", "run_index", "workflow_file", "workflow_name", "checkout_url", "checkout_token"),
    *("head_sha", "head_ref", "event", "event_payload", "job_key", "job_name", "runs_on", "needs", "if"),
    *("timeout_minutes", "permissions", "secrets", "mask_values", "env", "steps"),
    *("environment", "environment_url", "variables"),
}
MEMBERS_OF_A_STEP = frozenset(
    {
        *("id", "index", "step_id", "name", "if", "run", "uses", "working_directory", "env", "with"),
        "continue_on_error",
    }
)


def curl(server: Server, path: str, token: str, body: str) -> tuple[int, Any]:
    """Send a request as the walk of the documentation does; return its status and its document."""
    command = ["curl", "-sS", "-m", "60", "-w", "\n%{http_code}", "-H", f"Authorization: Bearer {token}"]
    found = subprocess.run(
        [*command, "--data-binary", body, f"{server.url}{path}"], capture_output=True, text=True, check=True
    )
    text, _, status = found.stdout.rpartition("\n")
    return int(status), json.loads(text) if text.strip() else None


def post(server: Server, path: str, token: str, body: Any) -> requests.Response:
    headers = {"Authorization": f"Bearer {token}"}
    return requests.post(f"{server.url}{path}", json=body, headers=headers, timeout=60)


def claim(server: Server, token: str) -> dict[str, Any]:
    response = post(server, "/api/v1/runners/heartbeat", token, {"labels": ["ubuntu-latest"]})
    assert response.status_code == 200, response.text
    return response.json()


def test_the_walk_by_curl(servers, token):
    first, second = servers
    labels = '{"labels": ["ubuntu-latest"], "capacity": 1}'
    assert curl(first, "/api/v1/runners/heartbeat", token, labels) == (204, None)
    started = start_run()
    status, claimed = curl(first, "/api/v1/runners/heartbeat", token, labels)
    assert (status, claimed["job"]["id"]) == (200, started.job.pk)
    path, step = f"/api/v1/jobs/{started.job.pk}", claimed["job"]["steps"][1]["id"]
    following = claimed["token"]
    chunk = base64.b64encode(b"hello\n").decode()
    found = []
    for number, (call, body) in enumerate(
        [
            ("status", '{"status": "running"}'),
            ("logs", json.dumps({"seq": 0, "chunk": chunk, "step_id": step})),
            (f"steps/{step}/status", '{"status": "completed", "conclusion": "success"}'),
            ("cancel-check", "{}"),
        ]
    ):
        status, document = curl(servers[number % 2], f"{path}/{call}", following, body)
        following = document.pop("next_token")
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", document.pop("next_token_expires_at"))
        found.append((status, document))
    assert found == [
        (200, {"status": "running", "conclusion": None}),
        (202, {"accepted": True}),
        (200, {"status": "completed", "conclusion": "success"}),
        (200, {"cancelled": False}),
    ]
    end = '{"status": "completed", "conclusion": "success"}'
    assert curl(second, f"{path}/status", following, end) == (
        200,
        {"status": "completed", "conclusion": "success", "run_status": "completed", "run_conclusion": "success"},
    )
    assert curl(first, f"{path}/status", following, end)[0] == 401
    started.job.refresh_from_db()
    assert started.job.state == JobState.SUCCEEDED
    for log in (first.log(), second.log()):
        assert token not in log
        assert "eyJ" not in re.sub(r"eyJ:[0-9a-f]{16}", "", log)
        assert following not in log


def test_the_61st_heartbeat_of_a_minute_over_two_processes_is_429(servers, token):
    def beat(number: int) -> int:
        return post(servers[number % 2], "/api/v1/runners/heartbeat", token, {}).status_code

    def begin_window_anew() -> None:
        """However slow the machine is, one window is enough."""
        ThrottleWindow.objects.update(ends_at=database_now() + timedelta(seconds=WINDOW_SECONDS))

    assert beat(0) == 204
    begin_window_anew()
    assert [beat(number) for number in range(1, 60)] == [204] * 59
    begin_window_anew()
    assert [beat(number) for number in range(4)] == [429] * 4


def test_a_claim_whose_answer_is_never_read_goes_back_to_the_queue(servers, token):
    started = start_run()
    with servers[0].connect() as line:
        body = b'{"labels": ["ubuntu-latest"]}'
        head = f"POST /api/v1/runners/heartbeat HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
        line.sendall(head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        eventually(lambda: Lease.objects.open().exists())
    later = database_now() + timedelta(seconds=61)
    assert expiry.expire(job_ulid=started.job.job_ulid, now=later).state == JobState.QUEUED
    started.job.refresh_from_db()
    assert (started.job.attempt, started.job.automatic_retries_spent) == (1, 0)
    assert claim(servers[1], token)["job"]["id"] == started.job.pk


def test_a_call_whose_connection_to_the_database_is_killed_is_503_and_has_not_used_its_token(servers, token):
    started = start_run()
    claimed = claim(servers[0], token)
    path = f"/api/v1/jobs/{started.job.pk}/status"
    answers: list[requests.Response] = []

    def report() -> None:
        answers.append(post(servers[0], path, claimed["token"], {"status": "running"}))

    thread = threading.Thread(target=report)
    with transaction.atomic():
        Job.objects.select_for_update().get(pk=started.job.pk)  # so that the call waits after it has used its token
        thread.start()
        killed = eventually(_kill_waiting_backends)
    thread.join(60)
    assert killed >= 1
    assert answers[0].status_code == 503, answers[0].text
    assert set(answers[0].json()) == {"error"}
    assert UsedToken.objects.count() == 0
    assert post(servers[1], path, claimed["token"], {"status": "running"}).status_code == 200


def _kill_waiting_backends() -> int:
    query = """
        SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
         WHERE datname = current_database() AND wait_event_type = 'Lock' AND pid <> pg_backend_pid()
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")  # a transaction sees one snapshot of all processes otherwise
        cursor.execute(query)
        return int(cursor.fetchone()[0])


def start_runs_of_groups(server: Server, folder: Path, project: Project) -> None:
    """Start two runs of a group that waits, and two of a group that cancels older runs. No runner has their label."""
    files = {"waits": "deploy", "replaces": "{group: check, cancel-in-progress: true}"}
    origin = Origin(folder / "origins" / "groups.git")
    texts = {
        f".shithub/workflows/{name}.yml": workflow_text({"a": None}, on="workflow_dispatch", concurrency=group).encode()
        for name, group in files.items()
    }
    origin.branch("main", origin.commit(texts))
    mirrored(origin, full_name="alice/groups", project=project)
    token = api_token(project.organization, ("jobs:write",))
    for file in sorted(texts) * 2:
        body = {"org_slug": project.organization.slug, "repository": "alice/groups", "workflow_file": file}
        response = post(server, "/v1/batches", token, body | {"ref": "main"})
        assert response.status_code == 201, response.text


def prune(environment: dict[str, str], folder: Path) -> None:
    """Run `manage.py prune` in a process of its own, which writes its counters when it ends."""
    variables = {**os.environ, **environment, "STATE_DIR": str(folder)}
    command = [sys.executable, "manage.py", "prune"]
    found = subprocess.run(command, cwd=BASE_DIR, env=variables, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr


def actions_counters(server: Server) -> dict[str, float]:
    """Read `/metrics`. The server writes what it has counted first."""
    lines = requests.get(f"{server.url}/metrics", timeout=30).text.splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if line.startswith("shithub_actions_"))
    return {name: float(value) for name, value in pairs if not name.endswith("_created")}


def test_the_counters_of_a_session_are_the_same_in_both_processes(
    servers, printed_token, environment, folder, settings, tmp_path
):
    """A scripted session makes each of the eight counters of document 003 count something."""
    first, second = servers
    settings.ACTIONS_ROOT_KEY = ROOT_KEY
    settings.REPOSITORY_ROOT, settings.MIRROR_DIR = environment["REPOSITORY_ROOT"], environment["MIRROR_DIR"]
    for server in servers:
        actions_counters(server)  # so that what earlier tests have counted is written, and deleted here
    Count.objects.exclude(name="actions_registrations").delete()
    EventCounter().go_on()  # counts from now on
    repository = make_repository()
    organization = repository.project.organization
    set_secret(organization=organization, repository=repository, name="A", value="hunter2", cause=Cause(OPERATOR))
    start_run(repository, [actions_spec(), actions_spec(job_key="other")])
    waiting = start_run(repository, [actions_spec(job_key="third")])
    claimed = claim(first, printed_token)
    path = f"/api/v1/jobs/{claimed['job']['id']}"
    step = claimed["job"]["steps"][0]["id"]
    running = post(first, f"{path}/status", claimed["token"], {"status": "running"})
    printed = {"seq": 0, "step_id": step, "chunk": base64.b64encode(b"hunter2 and hunter2\n").decode()}
    logged = post(second, f"{path}/logs", running.json()["next_token"], printed)
    assert logged.status_code == 202
    assert post(second, f"{path}/status", claimed["token"], {"status": "running"}).status_code == 401
    assert post(second, f"{path}/cancel-check", "a.b.c", {}).status_code == 401
    ended = {"status": "completed", "conclusion": "timed_out"}
    timed_out = post(second, f"{path}/steps/{step}/status", logged.json()["next_token"], ended)
    assert post(first, f"{path}/status", timed_out.json()["next_token"], ended).status_code == 200
    assert post(second, "/api/v1/runners/heartbeat", printed_token, {"labels": ["none"]}).status_code == 204
    cancellation.cancel(job_ulid=waiting.job.job_ulid, actor=OPERATOR, deadline_seconds=30)
    start_runs_of_groups(first, folder, repository.project)
    run_ended(repository, 366)
    EventCounter().go_on()  # the events of the old run
    prune(environment, tmp_path)
    expected = {
        "shithub_actions_runner_registrations_total": 1.0,
        'shithub_actions_runner_heartbeats_total{result="claimed"}': 1.0,
        'shithub_actions_runner_heartbeats_total{result="no_job"}': 1.0,
        'shithub_actions_runner_jwt_total{result="issued"}': 5.0,
        'shithub_actions_runner_jwt_total{result="rejected"}': 1.0,
        'shithub_actions_runner_jwt_total{result="replay"}': 1.0,
        'shithub_actions_jobs_cancelled_total{reason="user"}': 1.0,
        'shithub_actions_jobs_cancelled_total{reason="concurrency"}': 1.0,
        'shithub_actions_jobs_cancelled_total{reason="timeout"}': 0.0,
        "shithub_actions_concurrency_queued_total": 1.0,
        'shithub_actions_log_scrub_replacements_total{location="server"}': 2.0,
        'shithub_actions_runs_pruned_total{kind="chunks"}': 0.0,
        'shithub_actions_runs_pruned_total{kind="blobs"}': 1.0,
        'shithub_actions_runs_pruned_total{kind="runs"}': 1.0,
        'shithub_actions_runs_pruned_total{kind="jwt_used"}': 0.0,
        "shithub_actions_step_timeouts_total": 1.0,
    }

    def is_counted() -> bool:
        EventCounter().go_on()  # as the scheduler process does, once no older transaction is open
        return all(actions_counters(server) == expected for server in servers)

    with contextlib.suppress(AssertionError):
        eventually(is_counted)
    assert [set(actions_counters(server).items()) ^ set(expected.items()) for server in servers] == [set(), set()]
