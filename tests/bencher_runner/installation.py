"""An installation that lives as long as the stories: `manage.py up` in a state directory of its own, and its clients."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import signal
import socket
import string
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import requests

from config import paths
from tests.bencher_runner.proxy import RecordingProxy
from tests.chaos.processes import Part, manage

STARTS_WITHIN = 120.0  # migrations included, on a machine under load
ANSWERS_WITHIN = 30.0
ENDS_WITHIN = 40.0
PROJECT = "demo"  # of `manage.py seed`
# Variables of the caller that would change where an installation is, or where its parts look for each other.
FOREIGN = ("DATABASE_URL", "DATABASE_URL_FILE", "DATABASE_ROLE", "PUBLIC_URL", "ALLOWED_HOSTS", "HOST", "PORT")


@dataclass(frozen=True)
class RunnerIdentity:
    """A runner as the server knows it: its slug and its present key."""

    slug: str
    key: str


@dataclass(frozen=True)
class SubmittedRun:
    """A run with a job: the UUIDs of its report and its job."""

    report: str
    job: str


@dataclass
class Installation:
    """Server, scheduler and PostgreSQL, which end with the block. `keys` has the name of each runner's key."""

    name: str
    logs: Path
    settings: Mapping[str, str] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)

    def __enter__(self) -> Self:
        self.state = Path(tempfile.mkdtemp(prefix=f"rto-bencher-{self.name}-"))
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        kept = {name: value for name, value in os.environ.items() if name not in FOREIGN}
        environment = kept | {"STATE_DIR": str(self.state), "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"} | self.settings
        command = manage("up", "--port", str(self.port), "--workers", "0")
        self._up = Part("up", command, environment, self.logs / f"{self.name}.log")
        self._session = requests.Session()
        self._session.trust_env = False
        try:
            self._up.start()
            self.wait_until_healthy(STARTS_WITHIN)
            self.seed = json.loads((self.state / "seed.json").read_text())
            self.proxy = RecordingProxy(("127.0.0.1", self.port), self.keys).__enter__()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if hasattr(self, "proxy"):
            self.proxy.__exit__()
        self._session.close()
        self._up.end(ENDS_WITHIN)
        _wait_for_postgres(self.state)
        with contextlib.suppress(paths.PathError):
            paths.remove_home(self.state)
        shutil.rmtree(self.state, ignore_errors=True)

    # --- Processes ----------------------------------------------------------------------------------------------------

    def web_process(self) -> int:
        """Return the id of the process that serves HTTP, a child of `manage.py up`."""
        assert self._up.process is not None
        (found,) = [child for child in children(self._up.process.pid) if b"serve" in command_line(child)]
        return found

    def is_healthy(self) -> bool:
        with contextlib.suppress(requests.RequestException):
            return self._session.get(f"{self.url}/healthz", timeout=5).status_code == 200
        return False

    def wait_until_healthy(self, seconds: float = STARTS_WITHIN) -> None:
        deadline = time.monotonic() + seconds
        while not self.is_healthy():
            assert self._up.lives, f"the installation has ended; its log is {self._up.log}"
            assert time.monotonic() < deadline, f"the server does not respond within {seconds:.0f} s"
            time.sleep(0.1)

    # --- The API ------------------------------------------------------------------------------------------------------

    def call(self, method: str, path: str, body: Any = None, *, key: str = "admin_key", status: int = 200) -> Any:
        """Send a request and return the parsed response.

        Args:
            method: The method.
            path: The path.
            body: The JSON body, or None.
            key: The name of a key in the seed.
            status: The status that the response must have.
        """
        headers = {"Authorization": f"Bearer {self.seed[key]}"}
        answer = self._session.request(
            method, self.url + path, json=body, headers=headers, timeout=ANSWERS_WITHIN, allow_redirects=False
        )
        assert answer.status_code == status, f"{method} {path}: {answer.status_code} {answer.text[:500]}"
        return answer.json() if answer.content else None

    def new_spec(self, slug: str, values: Mapping[str, Any]) -> None:
        self.call("POST", "/v0/specs", {"name": slug, "slug": slug, **values}, status=201)

    def new_runner(self, slug: str) -> RunnerIdentity:
        made = self.call("POST", "/v0/runners", {"name": slug, "slug": slug}, status=201)
        return self._identity(slug, made["key"])

    def rotate(self, runner: RunnerIdentity) -> RunnerIdentity:
        """Return the runner with its new key."""
        made = self.call("POST", f"/v0/runners/{runner.slug}/key", status=201)
        return self._identity(runner.slug, made["key"])

    def _identity(self, slug: str, key: str) -> RunnerIdentity:
        """Name the key: `rack`, and `rack#2` after a rotation."""
        number = sum(name.partition("#")[0] == slug for name in self.keys.values()) + 1
        self.keys[key] = slug if number == 1 else f"{slug}#{number}"
        return RunnerIdentity(slug, key)

    def submit(self, job: Mapping[str, Any], adapter: str) -> SubmittedRun:
        """Submit a run with a job as a member of the organization, and return its ids."""
        body = {
            "project": PROJECT,
            "branch": "main",
            "testbed": "rack",
            "start_time": "2026-01-01T00:00:00Z",
            "end_time": "2026-01-01T00:00:00Z",
            "results": [],
            "settings": {"adapter": adapter},
            "job": dict(job),
        }
        report = self.call("POST", "/v0/run", body, key="user_key", status=201)
        return SubmittedRun(report["uuid"], report["job"])

    def job(self, run: SubmittedRun) -> Any:
        return self.call("GET", f"/v0/projects/{PROJECT}/jobs/{run.job}", key="user_key")

    def report(self, run: SubmittedRun) -> Any:
        return self.call("GET", f"/v0/projects/{PROJECT}/reports/{run.report}", key="user_key")


@dataclass
class RunnerProcess:
    """The runner's program, which connects through a proxy. A killed one may leave its benchmark, which ends with it."""

    binary: Path
    folder: Path  # of its temporary files and its log

    def start(
        self, proxy: RecordingProxy, path: str, key: str, *, poll_seconds: int, allows_no_sandbox: bool = True
    ) -> None:
        """Start the program from the main thread.

        Args:
            proxy: The proxy.
            path: The slug of the runner in the path.
            key: The key.
            poll_seconds: The time after which the server answers `no_job`.
            allows_no_sandbox: Whether jobs without sandbox are executed.
        """
        temporary = self.folder / "tmp"
        temporary.mkdir(parents=True, exist_ok=True)
        options = ["--poll-timeout", str(poll_seconds), "--no-auto-update", "--no-tuning"]
        if allows_no_sandbox:
            options.append("--danger-allow-no-sandbox")
        environment = {
            "PATH": os.environ["PATH"],
            "TMPDIR": str(temporary),
            "BENCHER_HOST": proxy.url,
            "BENCHER_RUNNER": path,
            "BENCHER_RUNNER_KEY": key,  # not an argument: those are visible to other accounts
        }
        self.part = Part("runner", [str(self.binary), "up", *options], environment, self.folder / "runner.log")
        self.part.start()

    def kill(self) -> None:
        """End the program by SIGKILL, without its benchmark."""
        self.part.kill()

    def stop(self) -> None:
        """End the program and its benchmark."""
        self.part.end(15)
        process = self.part.process
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # `Part` starts a session, so the group is the program's own

    def log(self) -> str:
        return (self.folder / "runner.log").read_text(errors="replace")


class HostTraces:
    """Removes what the runner leaves on the host, if it was not there before."""

    PLACES = (Path("/sys/fs/cgroup/bencher"), Path("/run/bencher_runner_tuning.lock"))

    def __enter__(self) -> Self:
        self._absent = [place for place in self.PLACES if not place.exists()]
        return self

    def __exit__(self, *_: object) -> None:
        for place in self._absent:
            with contextlib.suppress(OSError):
                if place.is_dir():
                    _remove_cgroup(place)
                else:
                    place.unlink()


def _remove_cgroup(place: Path) -> None:
    """Remove a cgroup, or the folder that the runner made where only version 1 is mounted."""
    with contextlib.suppress(OSError):
        place.rmdir()
        return
    for file in place.iterdir():
        file.unlink()
    place.rmdir()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def unknown_key() -> str:
    """Return a runner key that no server has issued."""
    letters = string.ascii_letters + string.digits
    return "bencher_runner_" + "".join(secrets.choice(letters) for _ in range(30))


def children(process: int) -> list[int]:
    """Return the ids of the child processes."""
    found = []
    for place in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if int((place / "stat").read_text().rpartition(")")[2].split()[1]) == process:
                found.append(int(place.name))
    return found


def command_line(process: int) -> list[bytes]:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
    return []


def _wait_for_postgres(state: Path) -> None:
    """Return when the PostgreSQL of a state directory has ended. Its supervisor has the lock until then."""
    with contextlib.suppress(FileNotFoundError), (paths.home(state) / "postgres.server").open("r+") as lock:
        deadline = time.monotonic() + ENDS_WITHIN
        while time.monotonic() < deadline:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            time.sleep(0.1)
