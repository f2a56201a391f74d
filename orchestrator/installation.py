"""A whole installation on one machine: server, clock and workers as the members of one crew, for `up` and `demo`."""

import contextlib
import fcntl
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings
from django.core.management import call_command
from django.db import connections
from django.db.migrations.executor import MigrationExecutor

from orchestrator import seed
from orchestrator.crew import Crew, CrewFailed, Member, child_environment
from orchestrator.demo import repository

ANSWERS_WITHIN = 60.0


class InstallationRefused(Exception):
    """It cannot start here; `str()` says in one line why."""


@dataclass(frozen=True)
class Address:
    """Where the server listens."""

    host: str
    port: int

    @property
    def url(self) -> str:
        """Return the address for a client on this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104 - compared, not bound
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"


def prepare() -> seed.Seed:
    """Bring the tables up to date and plant the seed; leave no connection open, it is the children's turn."""
    executor = MigrationExecutor(connections["default"])
    if executor.migration_plan(executor.loader.graph.leaf_nodes()):
        call_command("migrate", verbosity=0)
    planted = seed.plant(
        file=settings.STATE_DIR / "seed.json",
        pool=settings.DEFAULT_POOL,
        repository=repository.build(settings.DEMO_REPOSITORY),
        repo_url=settings.DEMO_REPOSITORY_URL,
    )
    connections.close_all()
    return planted


def enrol_local(number: int) -> tuple[str, Path]:
    """Return the name and the token file of this machine's worker of that number; both are made on first use."""
    name = f"local-{number}"
    file = settings.STATE_DIR / "workers" / f"{name}.token"
    kept = file.read_text().split()[0] if file.is_file() else None
    worker, token = seed.enrol(name, pool=settings.DEFAULT_POOL, token=kept)
    seed.keep(file, f"{token}\n{worker.worker_id}")
    return name, file


def server(address: Address, **environment: str) -> Member:
    """The web server. Its own access log stays off: paths hold lease ids. Connections are kept for longer than workers
    are silent."""
    command = [sys.executable, "-m", "uvicorn", "config.asgi:application", "--app-dir", str(settings.ROOT)]
    command += ["--http", "orchestrator.access.connections:HttpConnection"]
    command += ["--host", address.host, "--port", str(address.port), "--no-access-log", "--no-server-header"]
    command += ["--no-proxy-headers", "--timeout-graceful-shutdown", "5", "--timeout-keep-alive", "75"]
    command += ["--log-level", "warning"]
    return Member("web", command, _environment(address) | environment)


def clock(address: Address) -> Member:
    return Member("clock", _manage("runclock"), _environment(address))


def worker(
    address: Address, name: str, token_file: Path, *, engine: str = "bubblewrap", is_vital: bool = False
) -> Member:
    """A worker that has a folder of its own; the mirrors are those of the settings."""
    options = ["--server", address.url, "--token-file", str(token_file), "--engine", engine]
    options += ["--work-dir", str(settings.WORKER_DIR / name)]
    return Member(name, _manage("runworker", *options), _environment(address), is_vital)


def wait_until_it_answers(crew: Crew, address: Address) -> None:
    """Return when the server answers, or somebody asked to stop. Raises CrewFailed when it does not, or died."""
    deadline = time.monotonic() + ANSWERS_WITHIN
    while not crew.asked and not _answers(address):
        if not crew.members[0].is_running:
            raise CrewFailed("the server did not start; its last lines say why")
        crew.look()
        if time.monotonic() > deadline:
            raise CrewFailed(f"the server does not answer at {address.url}")
        time.sleep(0.05)


def free_address(host: str, port: int) -> Address:
    """Return the address, with a free port if `port` is 0. Raises InstallationRefused if it is taken."""
    try:
        with socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as found:
            return Address(host, found.getsockname()[1])
    except OSError as error:
        raise InstallationRefused(
            f"cannot listen on {host}, port {port}: {error.strerror}; choose one with PORT="
        ) from None


@contextlib.contextmanager
def only_one(state: Path) -> Iterator[None]:
    """Hold the state directory against a second installation. Raises InstallationRefused."""
    with (state / "up.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InstallationRefused(
                f"it is running already on {state}: stop it, or name another STATE_DIR="
            ) from None
        yield


def workers(numbers: Sequence[int]) -> list[tuple[str, Path]]:
    found = [enrol_local(number) for number in numbers]
    connections.close_all()
    return found


def _answers(address: Address) -> bool:
    try:
        with urllib.request.urlopen(f"{address.url}/healthz", timeout=5) as answer:  # noqa: S310 - http, our own
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _manage(*arguments: str) -> list[str]:
    return [sys.executable, str(settings.ROOT / "manage.py"), *arguments]


def _environment(address: Address) -> dict[str, str]:
    own = child_environment(STATE_DIR=str(settings.STATE_DIR))
    own.setdefault("PUBLIC_URL", address.url)
    return own
