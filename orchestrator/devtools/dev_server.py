"""Runs an installation on one machine for `manage.py up` and `manage.py demo`: all its kinds of processes."""

import contextlib
import errno
import fcntl
import os
import re
import shlex
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from uuid import UUID

from django.conf import settings
from django.core.management import call_command
from django.db import connections

from orchestrator.devtools import seed
from orchestrator.devtools.bencher_seed import ensure_runner
from orchestrator.devtools.demo import repository
from orchestrator.devtools.process_supervisor import (
    ManagedProcess,
    ProcessSupervisor,
    ProcessSupervisorError,
    child_environment,
)
from runtime_jobs.applied_migrations import are_migrations_pending, unknown_migrations
from runtime_jobs.secret_files import private_file

SERVER_START_TIMEOUT_SECONDS = 60.0
_WITHOUT_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # http_proxy is for other machines


class DevServerError(Exception):
    """Reports in one line why the installation cannot start here."""


@dataclass(frozen=True)
class ListenAddress:
    """Names the host and port that the server listens on."""

    host: str
    port: int

    @property
    def url(self) -> str:
        """Return the base URL for a client on this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104 - compared, not bound
        return self._url_of(host)

    @property
    def is_loopback(self) -> bool:
        """Return whether only this machine can reach the server."""
        with contextlib.suppress(ValueError):
            return ip_address(self.host).is_loopback
        return self.host == "localhost"

    @property
    def is_set_by_operator(self) -> bool:
        """Return whether ALLOWED_HOSTS was given: then no name is added to it."""
        return bool(os.environ.get("ALLOWED_HOSTS") or os.environ.get("ALLOWED_HOSTS_FILE"))

    @property
    def names(self) -> list[str]:
        """Return the names and addresses by which other machines may call the server."""
        if self.is_set_by_operator:
            return [name for name in settings.ALLOWED_HOSTS if not name.startswith((".", "*"))]
        if ip_address_or_none(self.host) in UNSPECIFIED:
            return local_names(only_v4=":" not in self.host)
        return [self.host]

    @property
    def urls(self) -> list[str]:
        """Return the base URLs for clients on other machines."""
        return [self._url_of(name.strip("[]")) for name in self.names]

    @property
    def allowed_hosts(self) -> str:
        """Return the server's ALLOWED_HOSTS: the operator's value, else the default and the names above."""
        if self.is_set_by_operator or self.is_loopback:
            return ",".join(settings.ALLOWED_HOSTS)
        host_names = [f"[{name}]" if ":" in name else name for name in self.names]
        return ",".join(dict.fromkeys([*settings.ALLOWED_HOSTS, *host_names]))

    def _url_of(self, host: str) -> str:
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"


UNSPECIFIED = {ip_address("0.0.0.0"), ip_address("::")}  # noqa: S104 - compared, not bound


def ip_address_or_none(text: str) -> IPv4Address | IPv6Address | None:
    """Return the address that the text spells, or None for a name."""
    try:
        return ip_address(text)
    except ValueError:
        return None


def local_names(*, only_v4: bool) -> list[str]:
    """Return this machine's name and its addresses, without loopback and link-local ones."""
    found = set(re.findall(r"-- ([0-9.]+)\n\s+/32 host LOCAL", _read("/proc/net/fib_trie")))
    if not only_v4:
        found |= {line.split()[0] for line in _read("/proc/net/if_inet6").splitlines()}
    addresses = {ip_address(text if "." in text else ":".join(re.findall("....", text))) for text in found}
    usable = [address for address in addresses if not address.is_loopback and not address.is_link_local]
    by_version = sorted(usable, key=lambda address: (address.version, int(address)))
    return [socket.gethostname(), *map(str, by_version)]


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def prepare() -> seed.SeedData:
    """Migrate the database, seed it, and close all connections, so that the child processes can have them.

    Raises:
        CommandError: `migrate` refuses the database.
    """
    database = connections["default"]
    if are_migrations_pending(database) or unknown_migrations(database):
        call_command("migrate", verbosity=0)
    seed_data = seed.seed_database(
        file=settings.STATE_DIR / "seed.json",
        pool=settings.DEFAULT_POOL,
        repository=repository.build(settings.DEMO_REPOSITORY),
        repo_url=settings.DEMO_REPOSITORY_URL,
    )
    connections.close_all()
    return seed_data


def ensure_local_worker(number: int) -> tuple[str, Path]:
    """Return the name and token file of this machine's worker with that number. The first call registers it."""
    name = f"local-{number}"
    file = settings.STATE_DIR / "workers" / f"{name}.token"
    worker, token = seed.ensure_worker(name, pool=settings.DEFAULT_POOL, token=_kept_token(file))
    seed.write_secret_file(file, f"{token}\n{worker.worker_id}")
    return name, file


def workers(numbers: Sequence[int]) -> list[tuple[str, Path]]:
    """Return name and token file of each of this machine's workers with these numbers."""
    with contextlib.suppress(FileExistsError):
        settings.WORKER_DIR.mkdir(mode=0o711)  # jobs run as other accounts
    found = [ensure_local_worker(number) for number in numbers]
    connections.close_all()
    return found


def image_worker(seed_data: seed.SeedData) -> tuple[str, Path]:
    """Return the name and token file of this machine's worker for images: a runner with the seeded hardware spec."""
    name = "local-images"
    file = settings.STATE_DIR / "workers" / f"{name}.token"
    spec = UUID(seed_data.spec)
    worker, key = ensure_runner("Local images", name, spec, key=_kept_token(file), actor=seed.SEED)
    seed.write_secret_file(file, f"{key}\n{worker.worker_id}")
    connections.close_all()
    return name, file


def _kept_token(file: Path) -> str | None:
    return file.read_text().split()[0] if file.is_file() else None


def server(address: ListenAddress, *sockets: socket.socket, **environment: str) -> ManagedProcess:
    """Return the web server's process, not started.

    Args:
        address: Where it listens.
        sockets: The listening socket that it inherits; without one it creates its own.
        environment: Additional variables.
    """
    options = ["--host", address.host, "--port", str(address.port), "--graceful-seconds", "5", "--log-level", "warning"]
    return ManagedProcess("web", _manage("serve", *options), _environment(address) | environment, sockets=sockets)


def scheduler(address: ListenAddress) -> ManagedProcess:
    """Return the scheduler's process, not started."""
    return ManagedProcess("scheduler", _manage("runclock"), _environment(address))


def housekeeping(address: ListenAddress) -> ManagedProcess:
    """Return the housekeeping process, not started. Jobs run without it, so its end does not end the installation."""
    return ManagedProcess("housekeeping", _manage("runhousekeeping"), _environment(address), is_vital=False)


def dispatcher(address: ListenAddress) -> ManagedProcess:
    """Return the dispatcher process, not started. Jobs run without it, so its end does not end the installation."""
    return ManagedProcess("dispatcher", _manage("rundispatcher"), _environment(address), is_vital=False)


def worker(
    address: ListenAddress,
    name: str,
    token_file: Path,
    *,
    engine: str = "bubblewrap",
    pool: str | None = None,
    is_vital: bool = False,
) -> ManagedProcess:
    """Return a worker's process, not started, with a work directory of its own."""
    options = ["--server", address.url, "--token-file", str(token_file), "--engine", engine]
    options += ["--work-dir", str(settings.WORKER_DIR / name), *(["--pool", pool] if pool else [])]
    return ManagedProcess(name, _manage("runworker", *options), _environment(address), is_vital)


def wait_until_ready(supervisor: ProcessSupervisor, address: ListenAddress) -> None:
    """Return when the server responds, or when a stop was requested.

    Raises:
        ProcessSupervisorError: The server has ended, or does not respond within `SERVER_START_TIMEOUT_SECONDS`.
    """
    deadline = time.monotonic() + SERVER_START_TIMEOUT_SECONDS
    while not supervisor.stop_requests and not responds(address):
        if not supervisor.processes[0].is_running:
            raise ProcessSupervisorError("the server did not start; its last lines above name the reason")
        supervisor.poll()
        if time.monotonic() > deadline:
            raise ProcessSupervisorError(
                f"the server does not respond at {address.url} within {SERVER_START_TIMEOUT_SECONDS:.0f} s"
            )
        time.sleep(0.05)


def listen(host: str, port: int) -> tuple[ListenAddress, socket.socket]:
    """Return the address, with a free port if `port` is 0, and a socket that listens there until it is closed.

    While no web process accepts its connections, such as after a crash, they wait.

    Raises:
        DevServerError: The port is taken, or the host is none of this machine's.
    """
    try:
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, UnicodeError) as error:
        # A name that nothing resolves has one of the resolver's own codes, which are negative.
        code, reason = getattr(error, "errno", -1) or 0, str(getattr(error, "strerror", error)).partition(" (while")[0]
        variable = "HOST" if code < 0 or code == errno.EADDRNOTAVAIL else "PORT"
        raise DevServerError(f"cannot listen on {host}, port {port}: {reason}; choose one with {variable}=") from None
    return ListenAddress(host, listener.getsockname()[1]), listener


@contextlib.contextmanager
def state_dir_lock(state: Path) -> Iterator[None]:
    """Lock the state directory against a second `up` or `demo`.

    Raises:
        DevServerError: Another process has the lock.
    """
    with private_file(state / "up.lock") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DevServerError(
                f"`make up` or `make demo` is running already on {state}: stop it, or name another STATE_DIR="
            ) from None
        yield


def variables_for_shell(port: int = 8000) -> str:
    """Return the variables, quoted for a shell, that a later command needs to find this installation.

    Args:
        port: The port of the server; 8000 needs no variable.
    """
    path = settings.STATE_DIR
    path_text = path.relative_to(settings.ROOT) if path.is_relative_to(settings.ROOT) else path
    state = "" if str(path_text) == ".state" else f"STATE_DIR={shlex.quote(str(path_text))}"
    return " ".join(filter(None, [state, "" if port == 8000 else f"PORT={port}"]))


def responds(address: ListenAddress) -> bool:
    """Return whether a server responds at the address. While none does, the request waits in the socket's queue."""
    try:
        with _WITHOUT_PROXY.open(f"{address.url}/healthz", timeout=2) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _manage(*arguments: str) -> list[str]:
    return [sys.executable, str(settings.ROOT / "manage.py"), *arguments]


def _environment(address: ListenAddress) -> dict[str, str]:
    environment = child_environment(STATE_DIR=str(settings.STATE_DIR))
    environment.setdefault("PUBLIC_URL", address.url)
    environment.setdefault("ALLOWED_HOSTS", address.allowed_hosts)
    return environment
