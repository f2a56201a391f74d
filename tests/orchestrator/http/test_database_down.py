"""An outage of the database: the server answers quickly with problem documents, and reconnects by itself."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
import requests

from config import paths as config_paths
from config.postgres import embedded
from tests import prepared_cluster
from tests.live_server import eventually, serving

pytestmark = pytest.mark.slow
TOKEN = {"Authorization": "Bearer rto_api_" + "x" * 43}
JOBS = "/v1/runtime/jobs"
PATIENCE = 20.0  # seconds: the pool's five, and time for a machine under load; a request that hangs takes 30


class Cluster:
    """A PostgreSQL of this module's own, with the tables in it."""

    def __init__(self) -> None:
        self.state = Path(tempfile.mkdtemp(prefix="rto-down-"))
        prepared_cluster.copy_to(self.state)
        self.start()
        self.url = embedded.url(self.state)

    def start(self) -> None:
        embedded.ensure(self.state)

    def stop(self) -> None:
        embedded.release(self.state)

    def plant(self) -> dict[str, str]:
        """A tenant and a worker, with their tokens."""
        environment = os.environ | {"DATABASE_URL": self.url, "STATE_DIR": str(self.state)}
        command = [sys.executable, "manage.py", "seed", "--json"]
        response_body = subprocess.run(
            command, check=True, cwd=config_paths.BASE_DIR, env=environment, stdout=subprocess.PIPE
        )
        return json.loads(response_body.stdout)

    def tell(self, *statements: str, user: str = embedded.NAME) -> None:
        with psycopg.connect(self.url, user=user, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)

    def one(self, query: str) -> object:
        with psycopg.connect(self.url, autocommit=True) as connection:
            return connection.execute(query).fetchone()[0]

    @contextlib.contextmanager
    def running(self, folder: Path, *commands: str):
        """Processes of the product beside its servers. Yields for each the function that returns its log."""
        environment = os.environ | {"DATABASE_URL": self.url, "STATE_DIR": str(self.state)}
        processes = []
        try:
            for command in commands:
                arguments = [sys.executable, "manage.py", command]
                options = {"cwd": config_paths.BASE_DIR, "env": environment, "stdin": subprocess.DEVNULL}
                with (folder / command).open("wb") as log:
                    processes.append(subprocess.Popen(arguments, stdout=log, stderr=log, **options))
            yield [(folder / command).read_text for command in commands]
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait(timeout=30)


@pytest.fixture(scope="module")
def cluster():
    found = Cluster()
    yield found
    found.stop()
    shutil.rmtree(found.state, ignore_errors=True)


@pytest.fixture(scope="module")
def servers(cluster, tmp_path_factory):
    """One of each kind."""
    asgi, wsgi = (tmp_path_factory.mktemp(kind) for kind in ("asgi", "wsgi"))
    with (
        serving(asgi, DATABASE_URL=cluster.url) as first,
        serving(wsgi, kind="wsgi", DATABASE_URL=cluster.url) as second,
    ):
        yield [first, second]


def get(server, path, **headers):
    """The answer, which comes within PATIENCE."""
    then = time.monotonic()
    answer = requests.get(f"{server.url}{path}", headers=headers, timeout=30)
    assert time.monotonic() - then < PATIENCE, path
    return answer


def get_all(servers, *paths):
    """All answers of all servers, asked for at the same time: for each server one for each path."""
    with ThreadPoolExecutor(16) as threads:
        asked = [[threads.submit(get, server, path, **TOKEN) for path in paths] for server in servers]
        return [[call.result() for call in calls] for calls in asked]


BEAT = (
    "DELETE FROM clock_beats",
    "INSERT INTO clock_beats (id, leader, beat_at) VALUES (1, 'test', clock_timestamp() + interval '10 minutes')",
)


OTHERS = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
OTHERS += " AND backend_type = 'client backend'"  # the role may not end an autovacuum worker


def all_become(servers, status, body):
    """Wait until each server's readiness is this one. An answer may be one second old."""
    eventually(lambda: all((a.status_code, a.json()) == (status, body) for (a,) in get_all(servers, "/readyz")))


def test_it_is_ready_when_database_migrations_and_clock_are(servers, cluster):
    cluster.tell("DELETE FROM clock_beats")
    all_become(servers, 503, {"status": "unready", "wrong": ["clock"]})
    cluster.tell(*BEAT)
    all_become(servers, 200, {"status": "ready", "wrong": []})


def test_a_connection_that_was_cut_is_not_used_again(servers, cluster):
    get_all(servers, *[JOBS] * 4)
    cluster.tell(f"SELECT pg_terminate_backend(pid, 10000) {OTHERS}")
    for answers in get_all(servers, *[JOBS] * 4):
        assert [answer.status_code for answer in answers] == [401] * 4


def test_while_it_is_down_every_caller_gets_an_error_and_afterwards_all_is_well(servers, cluster, tmp_path):
    cluster.tell(*BEAT)
    cluster.stop()
    all_become(servers, 503, {"status": "unready", "wrong": ["database"]})
    for alive, jobs, scraped in get_all(servers, "/healthz", JOBS, "/metrics"):
        assert alive.status_code == 200
        assert jobs.headers["Content-Type"] == "application/problem+json"
        assert (jobs.status_code, jobs.json()["code"]) == (503, "database_unavailable")
        assert jobs.headers["Retry-After"] == "2"
        assert "sock" not in jobs.text
        assert (scraped.status_code, "orchestrator_database_up 0.0" in scraped.text) == (200, True)
    # The outage lasts so long that a pool which tries again at growing distances is not going to for some time; and a
    # server that is started meanwhile lives, and waits for its database like the others.
    with serving(tmp_path, DATABASE_URL=cluster.url) as late:
        assert get(late, "/readyz").json()["wrong"] == ["database"]
        cluster.start()
        then = time.monotonic()
        everybody = [*servers, late]
        eventually(lambda: {answer.status_code for (answer,) in get_all(everybody, "/readyz")} == {200})
        assert time.monotonic() - then < 10, "the pool waited longer and longer between its attempts"
        for server, (answer,) in zip(everybody, get_all(everybody, JOBS), strict=True):
            assert answer.status_code == 401
            assert "Traceback" not in server.log()


def test_tables_that_are_not_there_yet_are_named(cluster, tmp_path):
    cluster.tell("CREATE DATABASE bare")
    with serving(tmp_path, DATABASE_URL=embedded.url(cluster.state, "bare")) as server:
        assert get(server, "/readyz").json()["wrong"] == ["migrations"]


STEPS = {
    "org_slug": "demo",
    "project_slug": "demo",
    "job_type": "steps",
    "spec": {"name": "unit", "steps": ["true"], "timeout_seconds": 60},
    "trigger": {"kind": "manual"},
}


def test_a_claim_that_waits_outlives_its_database(servers, cluster):
    """And receives notifications again once PostgreSQL is back."""
    server = servers[0]
    planted = cluster.plant()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(
            requests.post,
            f"{server.url}/v1/runtime/leases",
            json={"worker_id": planted["worker_id"], "wait_seconds": 60, "job_types": ["steps"]},
            headers={"Authorization": f"Bearer {planted['worker_token']}"},
            timeout=90,
        )
        eventually(lambda: "orchestrator_listener_up 1.0" in get(server, "/metrics").text)
        # Before its first attempt has ended, the outage would be its answer.
        eventually(lambda: "orchestrator_waiting_claims 1.0" in get(server, "/metrics").text)
        cluster.stop()
        eventually(lambda: "orchestrator_listener_up 0.0" in get(server, "/metrics").text)
        assert not waiting.done()
        cluster.start()
        eventually(lambda: "orchestrator_listener_up 1.0" in get(server, "/metrics").text)
        assert not waiting.done()
        client = {"Authorization": f"Bearer {planted['api_token']}"}
        answer = requests.post(f"{server.url}/v1/jobs", json=STEPS, headers=client, timeout=30)
        assert answer.status_code == 201, answer.text
        leased = waiting.result(timeout=30)
    assert (leased.status_code, leased.json()["job"]["job_id"]) == (201, answer.json()["job_id"])
    assert "Traceback" not in server.log()


DEMOTIONS = {
    # New sessions are read-only, and there are no others: a primary that was demoted to a stand-by.
    "new sessions": (
        [
            "ALTER DATABASE orchestrator SET default_transaction_read_only = on",
            f"SELECT pg_terminate_backend(pid, 10000) {OTHERS}",
        ],
        ["SET default_transaction_read_only = off", "ALTER DATABASE orchestrator RESET default_transaction_read_only"],
    ),
    # Sessions that exist become read-only, each at its next transaction.
    "all sessions": (
        ["ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()"],
        ["ALTER SYSTEM RESET default_transaction_read_only", "SELECT pg_reload_conf()"],
    ),
}


def test_sessions_that_became_read_only_are_left_and_all_processes_write_again_within_seconds(
    servers, cluster, tmp_path
):
    cluster.tell("DELETE FROM clock_beats")
    planted = cluster.plant()
    client = {"Authorization": f"Bearer {planted['api_token']}"}

    def submits():
        """Submit by as many requests at a time as both pools have connections, and return the responses."""
        with ThreadPoolExecutor(20) as threads:
            calls = [
                threads.submit(requests.post, f"{server.url}/v1/jobs", json=STEPS, headers=client, timeout=30)
                for server in servers * 10
            ]
            return [call.result() for call in calls]

    with cluster.running(tmp_path, "runclock", "runhousekeeping", "rundispatcher") as logs:
        for number, (name, (demote, promote)) in enumerate(DEMOTIONS.items(), 1):
            eventually(lambda: {answer.status_code for answer in submits()} == {201})
            all_become(servers, 200, {"status": "ready", "wrong": []})
            cluster.tell(*demote, user="postgres")
            all_become(servers, 503, {"status": "unready", "wrong": ["database"]})
            for answer in submits():
                assert (answer.status_code, answer.json()["code"]) == (503, "database_unavailable"), name
                assert answer.headers["Retry-After"] == "2"
            eventually(lambda: all(log().count("the database is unavailable") == number for log in logs))  # noqa: B023
            cluster.tell(*promote, user="postgres")
            promoted_at = cluster.one("SELECT clock_timestamp()")
            eventually(lambda: {answer.status_code for answer in submits()} == {201})
            eventually(lambda: cluster.one("SELECT beat_at FROM clock_beats") > promoted_at)  # noqa: B023 of this round
            eventually(lambda: all(log().count("the database is available again") == number for log in logs))  # noqa: B023
            all_become(servers, 200, {"status": "ready", "wrong": []})
            assert {answer.status_code for answer in submits()} == {201}
    for log in [*logs, *(server.log for server in servers)]:
        outages = re.findall("the database is (unavailable|available again)", log())
        assert outages[-4:] == ["unavailable", "available again"] * 2, log()
        others = [line for line in log().splitlines() if " WARNING " in line and "runtime_jobs.db_outage" not in line]
        assert not [line for line in others if "psycopg" in line or "database" in line], others
        assert "Traceback" not in log()
