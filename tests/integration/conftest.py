"""A whole installation as real processes: the server and the clock on the suite's database, workers as a test wants."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from django.utils.timezone import now

from leases.models import Lease
from orchestrator.audit.runner import run_audit
from runtime_jobs.db_time import database_now
from runtime_jobs.models import Job, JobEvent, Project
from runtime_jobs.specs import JOB_TYPES
from runtime_jobs.states import FINAL_STATES
from tests.factories import ProjectFactory, WorkerFactory, submitted
from tests.workers.agent.repositories import Repository
from tests.workers.agent.scripted import wait_until
from tests.workers.agent.worker_process import ROOT, WorkerProcess

SEEN_WITHIN = 90.0  # seconds; for a machine under load


class Installation:
    """Where the server listens, and what processes of it need in their environment."""

    def __init__(self, url: str, environment: dict[str, str]) -> None:
        self.url = url
        self.environment = environment


@pytest.fixture(scope="package")
def installation(database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """One server and one clock for all tests here: what a test changes is in the database, which it leaves empty."""
    state = tmp_path_factory.mktemp("installation")
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    environment = {
        "PATH": "/usr/bin:/bin",
        "DATABASE_URL": database_url,
        "STATE_DIR": str(state),
        "PUBLIC_URL": url,
        "CLOCK_PERIOD_SECONDS": "0.5",
        "DATABASE_POOL_MAX": "8",
    }
    serve = [sys.executable, "manage.py", "serve", "--port", str(port)]
    clock = [sys.executable, "manage.py", "runclock"]
    with (state / "log").open("wb") as log:
        processes = [
            subprocess.Popen(command, env=environment, cwd=ROOT, stdout=log, stderr=log) for command in (serve, clock)
        ]
    try:
        wait_until(lambda: _answers(url), 60)
        yield Installation(url, environment)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/healthz", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@pytest.fixture
def root() -> Iterator[Path]:
    """Where repositories and workers have their folders: other accounts can walk through it."""
    path = Path(tempfile.mkdtemp(prefix="rto-integration-", dir="/tmp"))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def commit(root: Path) -> str:
    return Repository(root / "mirrors" / "acme" / "web.git").commit({"name": b"x"})


@pytest.fixture
def project(transactional_db: None) -> Project:
    """Its jobs accept any isolation, so that the null engine may run them."""
    return ProjectFactory(repositories=["acme/web"], least_isolation="none")


class Yard:
    """Submits jobs, starts workers, and waits for their results."""

    def __init__(self, installation: Installation, project: Project, root: Path, commit: str) -> None:
        self.installation = installation
        self.project = project
        self.root = root
        self.commit = commit
        self.processes: list[WorkerProcess] = []

    def submit(self, *command: str, ttl: int = 20, acknowledge_within: int = 30, retries: int = 1) -> Job:
        policy = JOB_TYPES["runtime"].policy(
            lease_ttl_seconds=ttl,
            heartbeat_interval_seconds=1,
            acknowledge_within_seconds=min(acknowledge_within, ttl),
            max_requeues=5,
            automatic_retries=retries,
        )
        return submitted(
            self.project,
            policy=policy,
            repo_url="https://github.com/acme/web.git",
            owner="acme",
            repo="web",
            git_commit=self.commit,
            command=command,
            allow_network=False,
        )

    def enrol(self, name: str) -> Path:
        """Return the token file of a new worker."""
        worker = WorkerFactory(slug=name, capacity=2)
        file = self.root / f"{name}.token"
        file.touch(mode=0o600)
        file.write_text(f"{worker.token}\n{worker.worker_id}\n")
        return file

    def start(
        self,
        token_file: Path,
        *arguments: str,
        engine: str = "null",
        container: Sequence[str] = (),
        **environment: str,
    ) -> WorkerProcess:
        """Start a worker that has the folder of its name; `environment` adds to the installation's."""
        mirrors = f'{{"https://github.com/": "{self.root}/mirrors/"}}'
        # A worker has no database: what it is given cannot connect.
        given = self.installation.environment | {"DATABASE_URL": "postgres://nobody@127.0.0.1:1/nothing"}
        options = ["--server", self.installation.url, "--token-file", str(token_file), "--engine", engine]
        options += ["--work-dir", str(self.root / token_file.stem), *arguments]
        log = self.root / f"log-{len(self.processes)}"
        process = WorkerProcess(given | {"GIT_MIRRORS": mirrors} | environment, log, *options, container=container)
        self.processes.append(process)
        return process

    def until(self, job: Job, true: Callable[[Job], Any], seconds: float = SEEN_WITHIN) -> Job:
        """Return the job as it is once `true` of it."""

        def look() -> Job | None:
            found = Job.objects.get(pk=job.pk)
            return found if true(found) else None

        try:
            found: Job = wait_until(look, seconds)
        except AssertionError:
            raise AssertionError(f"not so within {seconds:.1f} s:\n{self.story(job)}") from None
        return found

    def story(self, job: Job) -> str:
        """Return what happened so far, for readers of a failed test."""
        events = JobEvent.objects.filter(job_id=job.job_ulid).order_by("seq")
        lines = [f"{event.created_at:%T.%f} {event.event_type} {event.to_state or ''}" for event in events]
        leases = Lease.objects.filter(job_id=job.job_ulid).order_by("fence")
        lines += [f"lease {lease.fence}: {lease.state} until {lease.expires_at:%T.%f}" for lease in leases]
        return "\n".join([*lines, f"now {now():%T.%f}", *(process.log for process in self.processes)])

    def lapse(self, job: Job) -> None:
        """Let the lease of the job end now, as if its worker had been silent for all its time."""
        assert Lease.objects.open().filter(job_id=job.job_ulid).update(expires_at=database_now()) == 1

    def ended(self, job: Job, seconds: float = SEEN_WITHIN) -> Job:
        return self.until(job, lambda found: found.state in FINAL_STATES, seconds)

    def retries_of(self, job: Job) -> list[Job]:
        return list(Job.objects.filter(retry_of_job_ulid=job.job_ulid))


@pytest.fixture
def yard(installation: Installation, project: Project, root: Path, commit: str) -> Iterator[Yard]:
    """At the end nothing of it runs, and every invariant holds."""
    made = Yard(installation, project, root, commit)
    yield made
    for process in made.processes:
        process.end_anyway()
    assert run_audit(chains=True) == []
