"""The scene of a story: a server on loopback behind a proxy, a private repository, and runners that end with it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.conf import settings

from leases.models import Lease
from orchestrator.core.cause import Cause
from orchestrator.secrets import operations as secret_operations
from orchestrator.services import actions_runners, expiry
from orchestrator.step_logs.step_log_reads import read_step_log
from orchestrator.workflows.run_reads import state_of_run
from runtime_jobs.db_time import database_now
from runtime_jobs.models import Job, JobStep, Repository, WorkflowRun
from tests.factories import ALICE, OPERATOR, PoolFactory
from tests.live_server import Server, eventually, serving
from tests.orchestrator.protocols.shithub.stories import docker, stand_in
from tests.orchestrator.protocols.shithub.stories.recording import API, Call, RecordingProxy
from tests.orchestrator.repositories.world import Origin, mirrored
from tests.workflow_runs import started

LABEL = "ubuntu-latest"
SECONDS = 240.0  # for whatever a story waits for, on a machine under load


@dataclass(frozen=True)
class Program:
    """A runner's program: its command, and variables of its environment."""

    command: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)
    is_real: bool = False


def real_program(binary: str) -> Program:
    """Return the real program."""
    return Program((binary,), {"SHITHUB_RUNNER_CONFIG": os.devnull}, is_real=True)


def stand_in_program() -> Program:
    """Return the stand-in, whose pauses are short."""
    return Program((sys.executable, "-S", str(Path(stand_in.__file__))), {"CANCEL_POLL_SECONDS": "0.2"})


@dataclass
class Installation:
    """A server that can be killed, and a repository `alice/demo` with a first commit."""

    folder: Path
    environment: Mapping[str, str]
    proxy: RecordingProxy
    stack: contextlib.ExitStack
    server: Server | None = None
    count: int = 0

    @property
    def variables(self) -> dict[str, str]:
        """The environment of a process of the installation."""
        return {**os.environ, **self.environment}

    @property
    def lives(self) -> bool:
        return self.server is not None and self.server.process.poll() is None

    def start_server(self) -> None:
        self.count += 1
        folder = self.folder / f"server-{self.count}"
        folder.mkdir()
        self.server = self.stack.enter_context(serving(folder, **self.environment))
        self.proxy.connect_to(self.server.address)

    def kill_server(self) -> None:
        """Kill the server by SIGKILL while no request is under way. Requests are refused until another one starts."""
        assert self.server is not None
        self.proxy.refuse()
        self.server.process.kill()
        self.server.process.wait()


@contextlib.contextmanager
def installation(folder: Path, database_url: str, root_key: str) -> Iterator[Installation]:
    """An installation whose addresses lead to the proxy."""
    with RecordingProxy() as proxy, contextlib.ExitStack() as stack:
        environment = {
            "DATABASE_URL": database_url,
            "ACTIONS_ROOT_KEY": root_key,
            "PUBLIC_URL": proxy.url,
            "ACTIONS_LEASE_SECONDS": "600",  # a server starts within a lease, however slow the machine is
            "REPOSITORY_ROOT": str(folder / "origins"),
            "MIRROR_DIR": str(folder / "mirrors"),
            "STATE_DIR": str(folder / "state"),
            "SECRET_KEY": settings.SECRET_KEY,
        }
        (folder / "origins").mkdir()
        found = Installation(folder, environment, proxy, stack)
        found.start_server()
        yield found


class Scene:
    """One story: its runners, runs and calls."""

    def __init__(self, of: Installation, program: Program, folder: Path) -> None:
        """Prepare.

        Args:
            of: The installation.
            program: The program of the runners.
            folder: A folder for logs, workspaces and the repository.
        """
        self.installation, self.program, self.folder = of, program, folder
        of.proxy.calls = type(of.proxy.calls)()
        self.calls = of.proxy.calls
        self.processes: list[subprocess.Popen[bytes]] = []
        self._containers = folder / "containers"
        self._containers.mkdir()
        (folder / "bin").mkdir()
        command = folder / "bin" / "docker"
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "{Path(docker.__file__)}" "$@"\n')
        command.chmod(0o755)
        PoolFactory()
        origin = Origin(Path(settings.REPOSITORY_ROOT) / f"{folder.name}.git")
        self.commit = origin.commit({"README": b"of the repository\n", "test.sh": b"echo a script of the repository\n"})
        self.repository: Repository = mirrored(origin, full_name="alice/demo", is_private=True)

    # --- What the story does ------------------------------------------------------------------------------------------

    def submit(self, *steps: str, **job: str) -> WorkflowRun:
        """Start a run with one job of these steps, each of which is YAML."""
        return self.submit_file("\n".join(_job("build", steps, job)))

    def submit_file(self, jobs: str, **top: str) -> WorkflowRun:
        lines = ["on: push", *(f"{name}: {value}" for name, value in top.items()), "jobs:", jobs]
        return started("\n".join(lines) + "\n", self.repository, head_sha=self.commit)

    def set_secret(self, name: str, value: str) -> None:
        organization = self.repository.project.organization
        secret_operations.set_secret(
            organization=organization, repository=self.repository, name=name, value=value, cause=Cause(ALICE)
        )

    def start_runner(self, name: str = "runner-1", **variables: str) -> str:
        """Register a runner, start its program with these variables, and return its registration token."""
        _, _, token = actions_runners.register_runner(name=name, labels=[LABEL, "linux"], cause=Cause(OPERATOR))
        self.restart_runner(token, **variables)
        return token

    def restart_runner(self, token: str, **variables: str) -> None:
        number = len(self.processes) + 1
        environment = {
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "HOME": str(self.folder),
            "GIT_CONFIG_NOSYSTEM": "1",
            "SHITHUB_RUNNER_TOKEN": token,
            docker.FOLDER: str(self._containers),
            **self.program.variables,
            **variables,
        }
        options = {
            "--server-url": self.installation.proxy.url,
            "--labels": f"{LABEL},linux",
            "--capacity": "1",
            "--poll-interval": "1s",
            "--workspace-root": str(self.workspaces(number)),
            "--engine": "docker",
            "--image": "none:1",
            "--network": "host",
        }
        words = [word for pair in options.items() for word in pair]
        with self.log_of(number).open("wb") as log:
            process = subprocess.Popen(
                [*self.program.command, "run", *words],
                env=environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.processes.append(process)

    def kill_runner(self, number: int = 1) -> None:
        """Kill a runner's program by SIGKILL."""
        self.processes[number - 1].kill()
        self.processes[number - 1].wait()

    def end(self) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGKILL)
            process.wait()

    def workspaces(self, number: int = 1) -> Path:
        return self.folder / f"workspaces-{number}"

    def release(self, run: WorkflowRun, number: int = 1) -> None:
        """Create the file `go` in the workspace of the only job of a run, for which a step waits."""
        (workspace,) = self.workspaces(number).glob(f"*/{self.job(run).pk}")
        (workspace / "go").touch()

    def release_after_poll(self, run: WorkflowRun) -> None:
        """Create the file `go` right after a cancel-check.

        The real program aborts one that is under way when its last step ends, and has lost its token then.
        """
        before = len(self.calls.all)
        self.calls.wait_for(
            "cancel-check", lambda calls: any(call["path"].endswith("cancel-check") for call in calls[before:]), SECONDS
        )
        self.release(run)

    # --- What must come of it -----------------------------------------------------------------------------------------

    def log_of(self, number: int = 1) -> Path:
        return self.folder / f"runner-{number}.log"

    def job(self, run: WorkflowRun) -> Job:
        return Job.objects.get(batch_id=run.batch_id)

    def wait_for_run(self, run: WorkflowRun, conclusion: str) -> None:
        """Wait for the end of a run, which must have this conclusion."""

        def ended() -> Any:
            self._require_runners()
            state = state_of_run(WorkflowRun.objects.get(pk=run.pk))
            return state if state.status == "completed" else None

        try:
            state = eventually(ended, SECONDS)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.describe(run)}") from error
        assert state.conclusion == conclusion, self.describe(run)
        self.installation.proxy.wait_until_idle()

    def wait_for_output(self, run: WorkflowRun, text: str) -> None:
        """Wait until the log of a run has a text."""
        eventually(lambda: text in "".join(self.logs(run)), SECONDS)

    def wait_for_calls(self, what: str, count: int = 1) -> list[Call]:
        """Wait for successful calls whose path ends so, and return them."""

        def found(calls: list[Call]) -> list[Call]:
            hits = [call for call in calls if call["path"].endswith(what) and call["status"] < 300]
            return hits if len(hits) >= count else []

        calls: list[Call] = self.calls.wait_for(what, found, SECONDS)
        return calls

    def wait_for_status(self, status: int, what: str = "") -> Call:
        """Wait for a call with this status whose path ends so."""

        def found(calls: list[Call]) -> Call | None:
            return next((call for call in calls if call["status"] == status and call["path"].endswith(what)), None)

        call: Call = self.calls.wait_for(f"{status} of {what or API}", found, SECONDS)
        return call

    def steps(self, run: WorkflowRun) -> list[tuple[str, str | None]]:
        steps = JobStep.objects.filter(job=self.job(run)).order_by("index")
        return [(str(step.status), step.conclusion and str(step.conclusion)) for step in steps]

    def logs(self, run: WorkflowRun) -> list[str]:
        """The stored logs of the steps."""
        steps = JobStep.objects.filter(job=self.job(run)).order_by("index")
        return [b"".join(read_step_log(step)).decode() for step in steps]

    def expire(self, run: WorkflowRun) -> Job:
        """Let the lease of a silent runner expire, as the scheduler process does later."""
        job = self.job(run)
        lease = Lease.objects.open().get(job=job)
        later = lease.expires_at + timedelta(minutes=1)  # a last call of the runner may move the end by seconds
        assert expiry.expire(job_ulid=job.job_ulid, now=database_now()) is None, "the lease is alive"
        ended = expiry.expire(job_ulid=job.job_ulid, now=later)
        assert ended is not None
        return ended

    def describe(self, run: WorkflowRun) -> str:
        """Return what is stored about a run, its last calls, and the ends of the logs of the runners."""
        jobs = [(job.pk, job.state, job.failure_reason) for job in Job.objects.filter(batch_id=run.batch_id)]
        calls = [(call["path"], call["status"], call["body"][:80]) for call in self.calls.all[-12:]]
        logs = [self.log_of(number).read_text()[-1500:] for number in range(1, len(self.processes) + 1)]
        return "\n".join(map(str, [*jobs, *calls, *logs]))

    def _require_runners(self) -> None:
        for number, process in enumerate(self.processes, 1):
            assert process.poll() in (None, -signal.SIGKILL), self.log_of(number).read_text()


def _job(key: str, steps: tuple[str, ...], members: Mapping[str, str]) -> list[str]:
    lines = [f"  {key}:", f"    runs-on: {LABEL}"]
    lines += [f"    {name.replace('_', '-')}: {value}" for name, value in members.items()]
    return [*lines, "    steps:", *(f"      - {step}" for step in steps)]
