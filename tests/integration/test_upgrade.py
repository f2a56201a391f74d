"""An upgrade from commit 8637103 while its processes serve: migrate, then start the new processes beside the old ones."""

import itertools
import json
import logging
import shutil
import socket
import subprocess
import sys
import tarfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
import requests

from config.paths import BASE_DIR
from tests.factories import SUBMIT_ANY_BODY
from tests.live_server import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

log = logging.getLogger(__name__)

FORMER = "8637103"
ROUNDS = 6  # of each load thread, in each phase of the upgrade
STARTED_WITHIN = 120.0
SEED = """
import json, django
django.setup()
from tests.factories import OrganizationFactory, PlanFactory, ProjectFactory, WorkerFactory, api_token
plan = PlanFactory(priority=100, max_active=500)
organization = OrganizationFactory(slug="sandtrace", plan=plan)
ProjectFactory(organization=organization, slug="web")
workers = [WorkerFactory(capacity=200) for _ in range(3)]
print(json.dumps({"client": api_token(organization), "workers": [(one.worker_id, one.token) for one in workers]}))
"""


def extracted(commit: str, folder: Path) -> Path:
    """The files of a commit, from the history of this clone."""
    git = ["git", "-C", str(BASE_DIR)]
    if (
        shutil.which("git") is None
        or subprocess.run([*git, "cat-file", "-e", f"{commit}^{{commit}}"], capture_output=True, check=False).returncode
    ):
        pytest.skip(f"commit {commit} is not in the history of this clone: fetch it without --depth")
    archive = folder / "tree.tar"
    subprocess.run([*git, "archive", "-o", str(archive), commit], check=True)
    with tarfile.open(archive) as files:
        files.extractall(folder / "tree", filter="data")
    return folder / "tree"


@pytest.fixture(scope="module")
def former_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the former commit."""
    return extracted(FORMER, tmp_path_factory.mktemp("former"))


@contextmanager
def database(database_url: str, folder: Path, *, name: str, template: str = "template0") -> Iterator[dict[str, str]]:
    """Variables of all processes: a database of their own, and leases that outlive the test."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        yield {
            "PATH": "/usr/bin:/bin",
            "DATABASE_URL": urlsplit(database_url)._replace(path=f"/{name}").geturl(),
            "STATE_DIR": str(folder / "state"),
            "DJANGO_SETTINGS_MODULE": "config.settings",
            "DATABASE_POOL_MAX": "8",
            "CLOCK_PERIOD_SECONDS": "0.2",
            "LEASE_TTL_SECONDS": "900",
            "ACKNOWLEDGE_WITHIN_SECONDS": "900",
            "CANCEL_DEADLINE_SECONDS": "900",
        }
        connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


@pytest.fixture
def environment(database_url: str, tmp_path: Path) -> Iterator[dict[str, str]]:
    """An empty database."""
    with database(database_url, tmp_path, name="upgrade") as variables:
        yield variables


def run(tree: Path, environment: dict[str, str], *command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command], cwd=tree, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


@contextmanager
def process(tree: Path, environment: dict[str, str], log: Path, *command: str) -> Iterator[None]:
    with log.open("ab") as output:
        started = subprocess.Popen([sys.executable, *command], cwd=tree, env=environment, stdout=output, stderr=output)
    try:
        yield
    finally:
        started.terminate()
        try:
            started.wait(timeout=30)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()


@contextmanager
def release(tree: Path, environment: dict[str, str], folder: Path, *serve: str) -> Iterator[str]:
    """The web process and the scheduler process of one release. Yields the address of the former."""
    folder.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        try:
            return requests.get(f"{url}/readyz", timeout=5).status_code == 200
        except (requests.ConnectionError, requests.Timeout):
            return False

    with (
        process(tree, environment, folder / "web.log", *serve, "--host", "127.0.0.1", "--port", str(port)),
        process(tree, environment, folder / "scheduler.log", "manage.py", "runclock"),
    ):
        eventually(answers, STARTED_WITHIN)
        yield url


@pytest.fixture(scope="module")
def seeded(former_tree: Path, database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The former commit migrates and seeds the database `upgrade_seeded`. Yields the names and tokens in it."""
    with database(database_url, tmp_path_factory.mktemp("seeded"), name="upgrade_seeded") as variables:
        run(former_tree, variables, "manage.py", "migrate", "--verbosity", "0")
        yield json.loads(run(former_tree, variables, "-c", SEED).splitlines()[-1])


@pytest.fixture
def former_environment(seeded: dict[str, Any], database_url: str, tmp_path: Path) -> Iterator[dict[str, str]]:
    """A copy of the seeded database: the migrations take longer than most that is done with it."""
    with database(database_url, tmp_path, name="upgrade", template="upgrade_seeded") as variables:
        yield variables


class Clients:
    """A client and workers that count every status and know every job that was accepted."""

    def __init__(self, seeded: dict[str, Any]) -> None:
        self.client, self.workers = seeded["client"], seeded["workers"]
        self.statuses: Counter[int] = Counter()
        self.failures: list[str] = []
        self.accepted: set[str] = set()

    def call(self, url: str, path: str, body: dict[str, Any] | None = None, *, worker: int | None = None) -> Any:
        token = self.client if worker is None else self.workers[worker][1]
        headers = {"Authorization": f"Bearer {token}"}
        if body is None:
            answer = requests.get(url + path, headers=headers, timeout=60)
        else:
            answer = requests.post(url + path, json=body, headers=headers, timeout=60)
        self.statuses[answer.status_code] += 1
        if answer.status_code >= 500:
            self.failures.append(f"{answer.status_code} {path} {answer.text[:300]}")
        return answer

    def submit(self, url: str, **changes: Any) -> str:
        answer = self.call(url, "/v1/jobs", SUBMIT_ANY_BODY | changes)
        assert answer.status_code == 201, answer.text
        self.accepted.add(answer.json()["job_id"])
        return str(answer.json()["job_id"])

    def claim(self, url: str, worker: int, *, acknowledge: bool = False) -> dict[str, Any] | None:
        body = {"worker_id": self.workers[worker][0], "job_types": ["steps"], "acknowledge": acknowledge}
        answer = self.call(url, "/v1/runtime/leases", body, worker=worker)
        assert answer.status_code in {201, 204}, answer.text
        return answer.json() if answer.status_code == 201 else None

    def send(self, url: str, lease: dict[str, Any], message: str, body: dict[str, Any], worker: int) -> None:
        answer = self.call(url, f"/v1/runtime/leases/{lease['lease_id']}/{message}", body, worker=worker)
        assert answer.status_code == 200, answer.text

    def finish(self, url: str, lease: dict[str, Any], worker: int) -> None:
        self.send(url, lease, "complete", {"result": {"status": "succeeded", "exit_code": 0}}, worker)

    def load(self, url: str, worker: int, stop: threading.Event) -> None:
        """Submit, claim, heartbeat and complete: some rounds, and on until `stop`."""
        for number in itertools.count():
            if stop.is_set() and number >= ROUNDS:
                return
            self.submit(url, **({"priority": "low"} if number % 3 == 0 else {}))
            lease = self.claim(url, worker, acknowledge=number % 2 == 0)
            if lease is None:
                continue
            self.send(url, lease, "heartbeat", {"phase": "executing"}, worker)
            if number % 5 == 0:
                result = {"status": "failed", "reason": "command_failed", "exit_code": 1}
                self.send(url, lease, "fail", {"result": result}, worker)
            else:
                self.finish(url, lease, worker)


@contextmanager
def loaded(clients: Clients, *urls: str) -> Iterator[None]:
    """Two workers that load each address meanwhile. An exception in a thread is raised at the end."""
    errors: list[BaseException] = []
    stop = threading.Event()

    def target(url: str, worker: int) -> None:
        try:
            clients.load(url, worker, stop)
        except BaseException as error:  # noqa: BLE001 raised below
            errors.append(error)

    threads = [threading.Thread(target=target, args=(url, worker)) for url in urls for worker in (1, 2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(timeout=300)
    assert not any(thread.is_alive() for thread in threads)
    if errors:
        raise errors[0]


def jobs_in_every_state(clients: Clients, url: str) -> dict[str, dict[str, Any]]:
    """Submit and move jobs so that each state has one. Returns the open leases of worker 0, by their phase."""
    ended = {}
    for outcome in ("succeeded", "failed", "canceled"):
        ended[outcome] = clients.submit(url)
        if outcome == "canceled":
            assert clients.call(url, f"/v1/jobs/{ended[outcome]}/cancel", {}).status_code == 200
            continue
        lease = clients.claim(url, 0)
        assert lease is not None
        if outcome == "succeeded":
            clients.finish(url, lease, 0)
        else:
            result = {"status": "failed", "reason": "command_failed", "exit_code": 1}
            clients.send(url, lease, "fail", {"result": result}, 0)
    leases = {}
    for phase in ("granted", "starting", "checking_out", "executing", "uploading", "cancel_requested"):
        job = clients.submit(url)
        lease = clients.claim(url, 0, acknowledge=phase == "granted")
        assert lease is not None
        if phase not in {"granted", "starting", "cancel_requested"}:
            clients.send(url, lease, "heartbeat", {"phase": phase}, 0)
        if phase == "cancel_requested":
            assert clients.call(url, f"/v1/jobs/{job}/cancel", {}).status_code == 202
        leases[phase] = lease
    waits_for = leases["executing"]["job"]["job_id"]
    clients.submit(url, depends_on=[waits_for])
    return leases


def states(environment: dict[str, str]) -> dict[str, str]:
    with psycopg.connect(environment["DATABASE_URL"]) as connection:
        return dict(connection.execute("SELECT job_ulid, state FROM runtime_jobs").fetchall())


@pytest.mark.django_db
def test_upgrade_from_the_former_commit_under_load(former_tree, former_environment, seeded, tmp_path):
    environment, clients = former_environment, Clients(seeded)
    with ExitStack() as former:
        serve = ("-m", "uvicorn", "config.asgi:application", "--no-proxy-headers")
        old = former.enter_context(release(former_tree, environment, tmp_path / "old", *serve))
        leases = jobs_in_every_state(clients, old)
        assert {"blocked", "leased", "starting", "checking_out", "executing", "uploading"} < set(
            states(environment).values()
        )
        for _ in range(3):
            clients.submit(old)  # queued, while the schema changes

        with loaded(clients, old):
            run(BASE_DIR, environment, "manage.py", "migrate", "--verbosity", "0")
        with loaded(clients, old):
            pass  # the former processes on the new schema
        with release(BASE_DIR, environment, tmp_path / "new", "manage.py", "serve") as new:
            with loaded(clients, old, new):
                pass
            former.close()
            with loaded(clients, new):
                clients.send(new, leases["granted"], "acknowledge", {}, 0)
                clients.send(new, leases["cancel_requested"], "acknowledge-cancel", {}, 0)
                for phase in ("granted", "starting", "checking_out", "executing", "uploading"):
                    clients.finish(new, leases[phase], 0)

            def drained() -> bool:
                while lease := clients.claim(new, 0):
                    clients.finish(new, lease, 0)
                return set(states(environment).values()) <= {"succeeded", "failed", "canceled"}

            eventually(drained, 180)
    log.info("answers %s, jobs %s", sorted(clients.statuses.items()), Counter(states(environment).values()))
    assert clients.failures == []
    assert clients.accepted == set(states(environment))
    assert "invariants hold" in run(BASE_DIR, environment, "manage.py", "audit", "--chains")
    run(BASE_DIR, environment, "manage.py", "check", "--database", "default")


def stored(environment: dict[str, str], columns: dict[str, list[str]]) -> dict[str, list[tuple[Any, ...]]]:
    """The rows of jobs, leases and events in the columns that both schemas have."""
    with psycopg.connect(environment["DATABASE_URL"]) as connection:
        return {
            table: connection.execute(f"SELECT {', '.join(names)} FROM {table} ORDER BY id").fetchall()
            for table, names in columns.items()
        }


def columns_of(environment: dict[str, str], *tables: str) -> dict[str, list[str]]:
    query = "SELECT column_name FROM information_schema.columns WHERE table_name = %s ORDER BY 1"
    with psycopg.connect(environment["DATABASE_URL"]) as connection:
        return {table: [name for (name,) in connection.execute(query, [table])] for table in tables}


@pytest.mark.django_db
def test_of_jobs_in_every_state_and_open_leases_the_migrations_move_nothing(
    former_tree, former_environment, seeded, tmp_path
):
    """From the schema of the former commit. The audit of each release finds nothing before and after."""
    environment, clients = former_environment, Clients(seeded)
    serve = ("-m", "uvicorn", "config.asgi:application", "--no-proxy-headers")
    with release(former_tree, environment, tmp_path / "old", *serve) as old:
        leases = jobs_in_every_state(clients, old)
        clients.submit(old)
    assert "invariants hold" in run(former_tree, environment, "manage.py", "audit", "--chains")
    tables = ("runtime_jobs", "runtime_worker_leases", "runtime_job_events")
    former = columns_of(environment, *tables)
    before = stored(environment, former)
    run(BASE_DIR, environment, "manage.py", "migrate", "--verbosity", "0")
    present = columns_of(environment, *tables)
    kept = {table: [name for name in names if name in present[table]] for table, names in former.items()}
    places = {table: [former[table].index(name) for name in names] for table, names in kept.items()}
    assert stored(environment, kept) == {
        table: [tuple(found[place] for place in places[table]) for found in rows] for table, rows in before.items()
    }
    assert len(before["runtime_worker_leases"]) > len(leases)
    assert "invariants hold" in run(BASE_DIR, environment, "manage.py", "audit", "--chains")
