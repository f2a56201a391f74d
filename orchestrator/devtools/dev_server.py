"""A whole installation on one machine: server, clock and workers as the members of one crew, for `up` and `demo`."""

import contextlib
import errno
import fcntl
import os
import re
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from django.conf import settings
from django.core.management import call_command
from django.db import connections
from django.db.migrations.executor import MigrationExecutor

from orchestrator.devtools import seed
from orchestrator.devtools.demo import repository
from orchestrator.devtools.process_supervisor import (
    ManagedProcess,
    ProcessSupervisor,
    ProcessSupervisorError,
    child_environment,
)

ANSWERS_WITHIN = 60.0


class DevServerError(Exception):
    """It cannot start here; `str()` says in one line why."""


@dataclass(frozen=True)
class ListenAddress:
    """Where the server listens."""

    host: str
    port: int

    @property
    def url(self) -> str:
        """Return the address for a client on this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104 - compared, not bound
        return self._url_of(host)

    @property
    def is_loopback(self) -> bool:
        """Say whether only this machine reaches it."""
        with contextlib.suppress(ValueError):
            return ip_address(self.host).is_loopback
        return self.host == "localhost"

    @property
    def is_set_by_operator(self) -> bool:
        """Say whether ALLOWED_HOSTS was given: then nothing is added to it."""
        return bool(os.environ.get("ALLOWED_HOSTS") or os.environ.get("ALLOWED_HOSTS_FILE"))

    @property
    def names(self) -> list[str]:
        """Return the names and addresses by which other machines may call it."""
        if self.is_set_by_operator:
            return [name for name in settings.ALLOWED_HOSTS if not name.startswith((".", "*"))]
        if ip_address_or_none(self.host) in UNSPECIFIED:
            return local_names(only_v4=":" not in self.host)
        return [self.host]

    @property
    def urls(self) -> list[str]:
        return [self._url_of(name.strip("[]")) for name in self.names]

    @property
    def allowed_hosts(self) -> str:
        """Return ALLOWED_HOSTS for the server: the operator's, else its default and the names above."""
        if self.is_set_by_operator or self.is_loopback:
            return ",".join(settings.ALLOWED_HOSTS)
        written = [f"[{name}]" if ":" in name else name for name in self.names]
        return ",".join(dict.fromkeys([*settings.ALLOWED_HOSTS, *written]))

    def _url_of(self, host: str) -> str:
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"


UNSPECIFIED = {ip_address("0.0.0.0"), ip_address("::")}  # noqa: S104 - compared, not bound


def ip_address_or_none(text: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(text)
    except ValueError:
        return None


def local_names(*, only_v4: bool) -> list[str]:
    """Return this machine's name and its addresses, without those that only itself can use."""
    found = set(re.findall(r"-- ([0-9.]+)\n\s+/32 host LOCAL", _read("/proc/net/fib_trie")))
    if not only_v4:
        found |= {line.split()[0] for line in _read("/proc/net/if_inet6").splitlines()}
    addresses = {ip_address(text if "." in text else ":".join(re.findall("....", text))) for text in found}
    usable = [one for one in addresses if not one.is_loopback and not one.is_link_local]
    return [socket.gethostname(), *(str(one) for one in sorted(usable, key=lambda one: (one.version, int(one))))]


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def prepare() -> seed.SeedData:
    """Bring the tables up to date and plant the seed; leave no connection open, it is the children's turn."""
    executor = MigrationExecutor(connections["default"])
    if executor.migration_plan(executor.loader.graph.leaf_nodes()):
        call_command("migrate", verbosity=0)
    planted = seed.seed_database(
        file=settings.STATE_DIR / "seed.json",
        pool=settings.DEFAULT_POOL,
        repository=repository.build(settings.DEMO_REPOSITORY),
        repo_url=settings.DEMO_REPOSITORY_URL,
    )
    connections.close_all()
    return planted


def ensure_local_worker(number: int) -> tuple[str, Path]:
    """Return the name and the token file of this machine's worker of that number; both are made on first use."""
    name = f"local-{number}"
    file = settings.STATE_DIR / "workers" / f"{name}.token"
    kept = file.read_text().split()[0] if file.is_file() else None
    worker, token = seed.ensure_worker(name, pool=settings.DEFAULT_POOL, token=kept)
    seed.write_secret_file(file, f"{token}\n{worker.worker_id}")
    return name, file


def server(address: ListenAddress, **environment: str) -> ManagedProcess:
    """The web server."""
    options = ["--host", address.host, "--port", str(address.port), "--graceful-seconds", "5", "--log-level", "warning"]
    return ManagedProcess("web", _manage("serve", *options), _environment(address) | environment)


def clock(address: ListenAddress) -> ManagedProcess:
    return ManagedProcess("clock", _manage("runclock"), _environment(address))


def worker(
    address: ListenAddress, name: str, token_file: Path, *, engine: str = "bubblewrap", is_vital: bool = False
) -> ManagedProcess:
    """A worker that has a folder of its own; the mirrors are those of the settings."""
    options = ["--server", address.url, "--token-file", str(token_file), "--engine", engine]
    options += ["--work-dir", str(settings.WORKER_DIR / name)]
    return ManagedProcess(name, _manage("runworker", *options), _environment(address), is_vital)


def wait_until_it_answers(crew: ProcessSupervisor, address: ListenAddress) -> None:
    """Return when the server answers, or somebody asked to stop. Raises CrewFailed when it does not, or died."""
    deadline = time.monotonic() + ANSWERS_WITHIN
    while not crew.asked and not _answers(address):
        if not crew.members[0].is_running:
            raise ProcessSupervisorError("the server did not start; its last lines say why")
        crew.look()
        if time.monotonic() > deadline:
            raise ProcessSupervisorError(f"the server does not answer at {address.url}")
        time.sleep(0.05)


def free_address(host: str, port: int) -> ListenAddress:
    """Return the address, with a free port if `port` is 0. Raises InstallationRefused if it is taken."""
    try:
        with socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as found:
            return ListenAddress(host, found.getsockname()[1])
    except OSError as error:
        # A name that nothing resolves has one of the resolver's own codes, which are negative.
        is_host = (error.errno or 0) < 0 or error.errno == errno.EADDRNOTAVAIL
        variable, reason = "HOST" if is_host else "PORT", str(error.strerror).partition(" (while")[0]
        raise DevServerError(f"cannot listen on {host}, port {port}: {reason}; choose one with {variable}=") from None


@contextlib.contextmanager
def state_dir_lock(state: Path) -> Iterator[None]:
    """Hold the state directory against a second installation. Raises InstallationRefused."""
    with (state / "up.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DevServerError(f"it is running already on {state}: stop it, or name another STATE_DIR=") from None
        yield


def workers(numbers: Sequence[int]) -> list[tuple[str, Path]]:
    found = [ensure_local_worker(number) for number in numbers]
    connections.close_all()
    return found


def _answers(address: ListenAddress) -> bool:
    try:
        with urllib.request.urlopen(f"{address.url}/healthz", timeout=5) as answer:  # noqa: S310 - http, our own
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _manage(*arguments: str) -> list[str]:
    return [sys.executable, str(settings.ROOT / "manage.py"), *arguments]


def _environment(address: ListenAddress) -> dict[str, str]:
    own = child_environment(STATE_DIR=str(settings.STATE_DIR))
    own.setdefault("PUBLIC_URL", address.url)
    own.setdefault("ALLOWED_HOSTS", address.allowed_hosts)
    return own
