"""An upgrade to a made-up next release while processes serve: migrate, then start the new processes beside the old ones."""

import itertools
import json
import logging
import shutil
import socket
import subprocess
import sys
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


COLUMNS = """
    made_up_count = models.PositiveIntegerField(default=7, db_default=7)
    made_up_note = models.TextField(null=True)

    created_at = models.DateTimeField()
"""
MIGRATION = """
from django.db import migrations, models

class Migration(migrations.Migration):
    dependencies = [("runtime_jobs", "0002_triggers_and_storage")]

    operations = [
        migrations.AddField("job", "made_up_count", models.PositiveIntegerField(default=7, db_default=7)),
        migrations.AddField("job", "made_up_note", models.TextField(null=True)),
    ]
"""


@pytest.fixture(scope="module")
def next_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree in which jobs have two more columns, which operations change, and another body of a claim."""
    tree = tmp_path_factory.mktemp("next") / "tree"
    for folder in ("config", "leases", "orchestrator", "runtime_jobs", "templates", "tests", "workers"):
        shutil.copytree(BASE_DIR / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("manage.py", "pyproject.toml"):
        shutil.copy(BASE_DIR / file, tree / file)
    replace(tree / "runtime_jobs/models/jobs.py", "\n    created_at = models.DateTimeField()\n", COLUMNS)
    replace(
        tree / "runtime_jobs/models/jobs.py",
        "        *LANE_FIELDS,\n",
        "        *LANE_FIELDS,\n        *('made_up_count', 'made_up_note'),\n",
    )
    replace(tree / "leases/sql/claim.sql", "    -- 1. The workers:", "    -- 1. Of the next release, the workers:")
    (tree / "runtime_jobs/migrations/0003_made_up.py").write_text(MIGRATION)
    return tree


def replace(file: Path, text: str, other: str) -> None:
    content = file.read_text()
    assert content.count(text) == 1
    file.write_text(content.replace(text, other))


@contextmanager
def database(database_url: str, folder: Path, *, name: str) -> Iterator[dict[str, str]]:
    """Variables of all processes: a database of their own, and leases that outlive the test."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        connection.execute(f"CREATE DATABASE {name} TEMPLATE template0")
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
def release(tree: Path, environment: dict[str, str], folder: Path) -> Iterator[str]:
    """The web process and the scheduler process of one release. Yields the address of the web process."""
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
        process(
            tree, environment, folder / "web.log", "manage.py", "serve", "--host", "127.0.0.1", "--port", str(port)
        ),
        process(tree, environment, folder / "scheduler.log", "manage.py", "runclock"),
    ):
        eventually(answers, STARTED_WITHIN)
        yield url


@pytest.fixture
def seeded(environment: dict[str, str]) -> dict[str, Any]:
    """This release migrates and seeds the database. Returns the names and tokens in it."""
    run(BASE_DIR, environment, "manage.py", "migrate", "--verbosity", "0")
    return json.loads(run(BASE_DIR, environment, "-c", SEED).splitlines()[-1])


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


# Values of the next release in jobs that processes of this one still change.
MARK = """
UPDATE runtime_jobs SET made_up_note = 'kept', made_up_count = 8 WHERE finished_at IS NULL RETURNING job_ulid"""


def execute(environment: dict[str, str], statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(environment["DATABASE_URL"]) as connection:
        cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


def states(environment: dict[str, str]) -> dict[str, str]:
    return dict(execute(environment, "SELECT job_ulid, state FROM runtime_jobs"))


@pytest.mark.django_db
def test_processes_of_two_releases_serve_one_database(next_tree, environment, seeded, tmp_path):
    clients = Clients(seeded)
    with ExitStack() as present:
        old = present.enter_context(release(BASE_DIR, environment, tmp_path / "old"))
        leases = jobs_in_every_state(clients, old)
        assert {"blocked", "leased", "starting", "checking_out", "executing", "uploading"} < set(
            states(environment).values()
        )
        for _ in range(3):
            clients.submit(old)  # queued, while the schema changes

        with loaded(clients, old):
            run(next_tree, environment, "manage.py", "migrate", "--verbosity", "0")
        marked = {job for (job,) in execute(environment, MARK)}
        assert marked
        with loaded(clients, old):
            pass  # the processes of this release on the new schema, with the new functions
        assert requests.get(f"{old}/readyz", timeout=30).status_code == 200
        with release(next_tree, environment, tmp_path / "new") as new:
            with loaded(clients, old, new):
                pass
            present.close()
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
    kept = "SELECT job_ulid FROM runtime_jobs WHERE made_up_note = 'kept' AND made_up_count = 8"
    assert {job for (job,) in execute(environment, kept)} == marked
    assert execute(environment, "SELECT DISTINCT made_up_count FROM runtime_jobs ORDER BY 1") == [(7,), (8,)]
    assert "invariants hold" in run(next_tree, environment, "manage.py", "audit", "--chains")
    run(next_tree, environment, "manage.py", "check", "--database", "default")
