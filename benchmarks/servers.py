"""Starts our server in each of the compared layouts, on a free loopback port, with the default settings."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.environment import Cluster
from config.paths import BASE_DIR
from orchestrator.devtools import dev_server
from orchestrator.devtools.dev_server import ListenAddress
from orchestrator.devtools.process_supervisor import child_environment

ANSWERS_WITHIN = 60.0


class NeverAnswered(Exception):
    """A server that was started and did not answer; its log says why."""


def free_address() -> ListenAddress:
    """A port of the loopback on which no server listens."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return ListenAddress("127.0.0.1", found.getsockname()[1])


def command(layout: str, address: ListenAddress) -> list[str]:
    """`asgi-N`: what `make up` starts, in N processes. `wsgi-N`: granian in N processes of 8 threads."""
    kind, _, processes = layout.partition("-")
    if kind == "asgi":
        return [*dev_server.server(address).command, *(["--workers", processes] if processes != "1" else [])]
    options = ["--interface", "wsgi", "--host", address.host, "--port", str(address.port), "--workers", processes]
    return [sys.executable, "-m", "granian", *options, "--blocking-threads", "8", "--no-ws", "config.wsgi:application"]


@dataclass
class Serving:
    """A server that answers. `start` again after `kill`."""

    cluster: Cluster
    layout: str
    address: ListenAddress
    environment: dict[str, str]
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self.cluster.logs / f"{self.layout}.log").open("ab") as log:
            self.process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", *command(self.layout, self.address)],
                cwd=BASE_DIR,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._wait()

    @property
    def pids(self) -> list[int]:
        """Of its processes that serve: the first one's children that are servers too, else itself."""
        assert self.process is not None
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        serving = [int(pid) for pid in children if b"resource_tracker" not in Path(f"/proc/{pid}/cmdline").read_bytes()]
        return serving or [self.process.pid]

    def kill(self) -> None:
        """As a power cut does it to all its processes."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def _wait(self) -> None:
        assert self.process is not None
        until = time.monotonic() + ANSWERS_WITHIN
        while not dev_server.responds(self.address):
            if self.process.poll() is not None or time.monotonic() > until:
                raise NeverAnswered(self.layout)
            time.sleep(0.05)


@contextlib.contextmanager
def serving(cluster: Cluster, layout: str, *, libraries: Sequence[Path] = (), **environment: str) -> Iterator[Serving]:
    """`libraries`: folders of packages that our own environment does not have. Raises NeverAnswered."""
    address = free_address()
    own = child_environment(PUBLIC_URL=address.url, **environment)
    if libraries:
        own["PYTHONPATH"] = os.pathsep.join(map(str, libraries))
    server = Serving(cluster, layout, address, own)
    try:
        server.start()
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def scheduler(cluster: Cluster) -> Iterator[None]:
    """The product's clock, as it runs beside every server."""
    with _running(cluster, "clock", "runclock"):
        yield


@contextlib.contextmanager
def dispatcher(cluster: Cluster) -> Iterator[subprocess.Popen[bytes]]:
    """The product's dispatcher, with its database role."""
    with _running(cluster, "dispatcher", "rundispatcher", DATABASE_ROLE="dispatcher", LOG_LEVEL="WARNING") as process:
        yield process


@contextlib.contextmanager
def _running(cluster: Cluster, name: str, command: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    with (cluster.logs / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", sys.executable, str(BASE_DIR / "manage.py"), command],
            env=child_environment(**environment),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        yield process
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
        process.wait()


def resident_bytes(process_id: int, name: str) -> int:
    """Return the resident memory of a process: `VmRSS` is that of now, `VmHWM` the largest since it started."""
    lines = Path(f"/proc/{process_id}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))
