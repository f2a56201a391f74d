"""PostgreSQL dies under load, or its answer to a COMMIT is lost: nothing acknowledged is lost, nothing happens twice.

On a cluster of this module's own, which may be killed. Faults 18, 19 and 20 of the design."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from random import Random
from urllib.parse import quote

import psycopg
import pytest
import requests

from config import paths
from tests.chaos.client import Client, Credentials, Ledger, path_of
from tests.chaos.processes import Part, Postgres, manage
from tests.integration.losing_commits import losing_commits
from tests.live_server import eventually, serving

pytestmark = pytest.mark.slow

UNREACHABLE = "The database cannot be reached. Repeat the request after Retry-After seconds."
BUILD = """
import json, pathlib, sys, django
django.setup()
from tests.chaos import scenario
made = scenario.build(pathlib.Path(sys.argv[1]), workers=2, runners=0, workflow_runners=0, receiver=None)
workers = [[name, str(file), options] for name, file, options in made.workers]
print(json.dumps([made.credentials.token, [body for body in made.bodies if "org_slug" in body], workers]))
"""


BEGIN_JOBS = """
import json, django
django.setup()
from django.test.utils import setup_test_environment
from tests.orchestrator.protocols.shithub.world import register, start_run
setup_test_environment()
begun = []
for name in ("one", "two"):
    start_run()
    claimed = register(name).client.claim()
    assert claimed.run().status_code == 200
    assert claimed.log(b"first\\n").status_code == 202
    begun.append([claimed.path, claimed.token, claimed.steps[0]["id"]])
print(json.dumps(begun))
"""


class Cluster(Postgres):
    """With tenants and two workers in it."""

    def __init__(self) -> None:
        super().__init__(Path(tempfile.mkdtemp(prefix="rto-faults-")))
        self.environment = os.environ | {
            "DATABASE_URL": self.url,
            "STATE_DIR": str(self.state),
            "DJANGO_SETTINGS_MODULE": "config.settings",
        }
        built = self.tell(sys.executable, "-c", BUILD, str(self.state))
        self.token, self.bodies, self.workers = json.loads(built)
        self.headers = {"Authorization": f"Bearer {self.token}"}

    def tell(self, *command: str) -> str:
        done = subprocess.run(
            command, cwd=paths.BASE_DIR, env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def count(self, question: str) -> int:
        with psycopg.connect(self.url) as connection:
            found = connection.execute(question).fetchone()  # type: ignore[call-overload]
        return int(found[0])


@pytest.fixture(scope="module")
def cluster():
    found = Cluster()
    yield found
    found.leave()
    shutil.rmtree(found.state, ignore_errors=True)


@pytest.fixture(scope="module")
def audited(cluster):
    """The audit of the database finds nothing after all of these tests."""
    yield
    cluster.tell(*manage("audit", "--chains"))


@pytest.fixture
def worker(cluster, tmp_path):
    """Starts a worker of the cluster against a server; ended with the test."""
    started = []

    def start(server) -> Part:
        name, file, options = cluster.workers[0]
        folder = paths.home(cluster.state) / name
        named = ["--server", server.url, "--token-file", file, "--work-dir", str(folder)]
        given = cluster.environment | {"RUNTIME_ORCHESTRATOR_TEST": "1"}
        part = Part(name, manage("runworker", *named, *options), given, tmp_path / name)
        part.start()
        started.append(part)
        return part

    yield start
    for part in started:
        part.kill()


@pytest.fixture
def clock(cluster, tmp_path):
    """The scheduler process, which alone ends a lease that its worker has left."""
    given = cluster.environment | {"DATABASE_URL": cluster.url}
    part = Part("clock", manage("runclock", "--period", "0.5"), given, tmp_path / "clock")
    part.start()
    yield part
    assert part.lives
    part.kill()


@pytest.mark.timeout(180)
@pytest.mark.usefixtures("audited", "clock")
def test_a_database_that_is_killed_under_load_loses_nothing_that_was_acknowledged(cluster, worker, tmp_path):
    ledger, room, over = Ledger(), threading.Event(), threading.Event()
    room.set()
    steps = [body for body in cluster.bodies if "job_type" in body][:1]
    with serving(tmp_path, DATABASE_URL=cluster.url, STATE_DIR=str(cluster.state)) as server:
        at_work = worker(server)
        clients = [
            Client(f"c{number}", server.url, Credentials(cluster.token, ""), steps, ledger, room, over, Random(number))
            for number in range(4)
        ]
        threads = [threading.Thread(target=client.run) for client in clients]
        for thread in threads:
            thread.start()
        try:
            for blow in (
                lambda: cluster.send_signal(signal.SIGQUIT),  # what `pg_ctl -m immediate` sends
                cluster.kill_a_backend,
                lambda: cluster.send_signal(signal.SIGKILL),
            ):
                more = len(ledger.submitted) + 8
                eventually(lambda more=more: len(ledger.submitted) >= more, 40)
                eventually(blow)  # none is there while the server is busy with connections
            more = len(ledger.submitted) + 8
            eventually(lambda: len(ledger.submitted) >= more, 40)
        finally:
            over.set()
            for thread in threads:
                thread.join()
        eventually(lambda: cluster.ask("SELECT count(*) FROM runtime_jobs WHERE finished_at IS NULL") == (0,), 60)
        assert at_work.lives, "the worker has gone on"
        assert "Traceback" not in server.log()
    assert ledger.wrong == []
    assert ledger.unavailable + ledger.unanswered > 0, "somebody has seen the trouble"
    with psycopg.connect(cluster.url) as connection:
        known = {
            job for (job,) in connection.execute("SELECT job_ulid FROM runtime_jobs WHERE retry_of_job_ulid IS NULL")
        }
    assert known == set(ledger.submitted.values()), "every acknowledged job, and no other"


@pytest.mark.usefixtures("audited")
def test_a_commit_whose_answer_is_lost_is_found_by_the_same_request_again(cluster, tmp_path):
    body = next(body for body in cluster.bodies if "job_type" not in body)
    folder = Path(tempfile.mkdtemp(prefix="rto-wire-"))
    folder.chmod(0o711)
    url = f"postgres://orchestrator@/orchestrator?host={quote(str(folder))}"
    before = cluster.count("SELECT count(*) FROM runtime_jobs")
    with (
        losing_commits(folder, paths.socket_folder(paths.home(cluster.state))) as wire,
        serving(tmp_path, DATABASE_URL=url, STATE_DIR=str(cluster.state)) as server,
    ):

        def submit() -> requests.Response:
            headers = cluster.headers | {"Idempotency-Key": "lost"}
            return requests.post(server.url + path_of(body), json=body, headers=headers, timeout=30)

        wire.lose_next()
        first = submit()
        assert (first.status_code, first.json()["code"], first.headers["Retry-After"]) == (
            503,
            "database_unavailable",
            "2",
        )
        assert wire.lost == 1
        assert cluster.count("SELECT count(*) FROM runtime_jobs") == before + 1, "it was committed"
        again = submit()
        assert (again.status_code, again.headers["Idempotency-Replayed"]) == (201, "true")
        job = again.json()["job_id"]

        wire.lose_next()
        cancel = f"{server.url}{path_of(body)}/{job}/cancel"
        assert requests.post(cancel, json={}, headers=cluster.headers, timeout=30).status_code == 503
        assert requests.post(cancel, json={}, headers=cluster.headers, timeout=30).status_code == 200
        assert wire.lost == 2
        assert "Traceback" not in server.log()
    assert cluster.count("SELECT count(*) FROM runtime_jobs") == before + 1
    assert (
        cluster.count(f"SELECT count(*) FROM runtime_job_events WHERE job_ulid = '{job}' AND to_state = 'canceled'")
        == 1
    )
    shutil.rmtree(folder)


USED = "SELECT count(*) FROM actions_used_tokens"
# A chunk waits for the row of its log before it inserts its token, the report of a step in its transaction after that.
LOCKS = ("SELECT FROM step_logs FOR UPDATE", "SELECT FROM runtime_job_steps FOR UPDATE")


@pytest.mark.usefixtures("audited")
def test_calls_during_which_postgresql_is_killed_do_not_use_their_tokens(cluster, tmp_path):
    """Document 003, contract 1.3: the same tokens then count once, and each call has its effect once."""
    jobs = json.loads(cluster.tell(sys.executable, "-c", BEGIN_JOBS))
    patient = f"{cluster.url}&options={quote('-c lock_timeout=60s -c statement_timeout=60s')}"  # the signal ends a call
    with serving(tmp_path, DATABASE_URL=patient, STATE_DIR=str(cluster.state)) as server:

        def call(path: str, token: str, body: object) -> requests.Response:
            headers = {"Authorization": f"Bearer {token}"}
            return requests.post(f"{server.url}{path}", json=body, headers=headers, timeout=60)

        (first, log_token, _), (second, step_token, step) = jobs
        chunk = partial(call, f"{first}/logs", log_token, {"seq": 1, "chunk": "c2Vjb25kCg=="})
        report = partial(call, f"{second}/steps/{step}/status", step_token, {"status": "running"})
        with ThreadPoolExecutor(2) as threads, closing(psycopg.connect(cluster.url)) as holder:
            for lock in LOCKS:
                holder.execute(lock)
            futures = [threads.submit(act) for act in (chunk, report)]
            waiting = f"SELECT 1 FROM pg_stat_activity WHERE {holder.info.backend_pid} = ANY(pg_blocking_pids(pid))"
            eventually(partial(cluster.ask, f"{waiting} OFFSET 1"))
            used = cluster.count(USED)
            assert cluster.send_signal(signal.SIGKILL)
            for response in (future.result(60) for future in futures):
                assert (response.status_code, response.headers["Retry-After"]) == (503, "2")
                assert response.json() == {"error": UNREACHABLE}
        eventually(partial(cluster.ask, "SELECT 1"))
        assert cluster.count(USED) == used
        for act, status in ((chunk, 202), (report, 200)):
            accepted = eventually(partial(available, act))
            assert [accepted.status_code, act().status_code] == [status, 401]
            end = {"status": "completed", "conclusion": "success"}
            path = first if act is chunk else second
            assert call(f"{path}/status", accepted.json()["next_token"], end).status_code == 200
        assert "Traceback" not in server.log()
    assert cluster.count(USED) == used + 4
    assert cluster.count("SELECT count(*) FROM step_logs WHERE next_seq = 2 AND chunk_count = 2") == 1


def available(call: Callable[[], requests.Response]) -> requests.Response | None:
    """Return the response, or None if the server still has no connection."""
    response = call()
    return None if response.status_code == 503 else response
