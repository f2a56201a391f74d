"""The processes of an installation, which can be killed and started again.

None of them outlives this process: the kernel kills each when the thread that started it ends, so all are started from
the main thread.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psycopg

from config import paths
from config.postgres import embedded
from tests import prepared_cluster
from tests.orchestrator.artifacts import nanio_server


@dataclass
class Part:
    """One process and how to start it; all of its lives write to one log."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", *self.command],
                cwd=paths.BASE_DIR,
                env=dict(self.environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def lives(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def signal(self, number: signal.Signals) -> bool:
        """Return whether the process was alive."""
        if self.process is None or not self.lives:
            return False
        self.process.send_signal(number)
        return True

    def kill(self) -> bool:
        heard = self.signal(signal.SIGKILL)
        if self.process is not None:
            self.process.wait()
        return heard

    def end(self, seconds: float) -> None:
        """Ask once, and kill after so long."""
        if self.process is None:
            return
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        self.kill()


def manage(*arguments: str) -> list[str]:
    return [sys.executable, str(paths.BASE_DIR / "manage.py"), *arguments]


def serve(port: int) -> list[str]:
    return manage("serve", "--port", str(port), "--graceful-seconds", "5")


class Storage:
    """A bucket of a real S3 server, as a process.

    Attributes:
        part: The process.
        variables: The settings of an installation that uses the bucket.
    """

    def __init__(self, state: Path) -> None:
        folder = state / "s3"
        folder.mkdir()
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        environment = {"PATH": os.environ["PATH"], "HOME": str(folder)}
        environment |= {"NANIO_ACCESS_KEY": nanio_server.ACCESS_KEY, "NANIO_SECRET_KEY": nanio_server.SECRET_KEY}
        command = [str(Path(sys.executable).with_name("nanio")), "serve", "--data-dir", str(folder / "data")]
        command += ["--host", "127.0.0.1", "--port", str(self._port)]
        self.part = Part("storage", command, environment, folder / "log")
        self.variables = {
            "ARTIFACTS_BUCKET": nanio_server.BUCKET,
            "ARTIFACTS_ENDPOINT_URL": self.url,
            "ARTIFACTS_REGION": nanio_server.REGION,
            "AWS_ACCESS_KEY_ID": nanio_server.ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": nanio_server.SECRET_KEY,
        }

    def start(self, seconds: float) -> None:
        """Start the process, and create the bucket when it answers.

        Raises:
            TimeoutError: It does not answer within so many seconds.
        """
        self.part.start()
        until = time.monotonic() + seconds
        while not self.answers():
            if time.monotonic() > until:
                raise TimeoutError("nanio does not answer")
            time.sleep(0.05)
        nanio_server.client_of(self.url).create_bucket(Bucket=nanio_server.BUCKET)

    def answers(self) -> bool:
        """Return whether the server accepts a connection."""
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
            return True
        return False


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


class Postgres:
    """The embedded server of this run. Its keeper starts it again whenever it dies."""

    def __init__(self, state: Path) -> None:
        self.state = state
        if prepared_cluster.FOLDER in os.environ:  # below the test suite
            prepared_cluster.copy_to(state)
        embedded.ensure(state)
        self.url = embedded.url(state)

    def pid(self) -> int | None:
        """The postmaster, if one lives on our data."""
        data = paths.home(self.state) / "postgres" / "data"
        with contextlib.suppress(OSError, ValueError, IndexError):
            pid = int((data / "postmaster.pid").read_text().split()[0])
            if Path(f"/proc/{pid}/cwd").readlink() == data.resolve():
                return pid
        return None

    def send_signal(self, number: signal.Signals) -> bool:
        pid = self.pid()
        if pid is not None:
            os.kill(pid, number)
        return pid is not None

    def kill_a_backend(self) -> bool:
        """The postmaster then ends all of them, and recovers."""
        try:
            with psycopg.connect(self.url, connect_timeout=2) as connection:
                question = "SELECT pid FROM pg_stat_activity WHERE application_name = 'orchestrator-api' LIMIT 1"
                found = connection.execute(question).fetchone()
        except psycopg.Error:
            return False
        if found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(found[0], signal.SIGKILL)
        return found is not None

    def demote(self) -> bool:
        """Let new sessions be read-only, as those of a stand-by are, and end all others."""
        return self._administer(
            f"ALTER DATABASE {embedded.NAME} SET default_transaction_read_only = on",
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'client backend'"
            " AND pid <> pg_backend_pid()",
        )

    def promote(self) -> bool:
        return self._administer(
            "SET default_transaction_read_only = off",
            f"ALTER DATABASE {embedded.NAME} RESET default_transaction_read_only",
        )

    def _administer(self, *statements: str) -> bool:
        """Execute statements as the superuser. Returns whether the server has executed them."""
        try:
            with psycopg.connect(self.url, user="postgres", connect_timeout=2, autocommit=True) as connection:
                for statement in statements:
                    connection.execute(statement)
        except psycopg.Error:
            return False
        return True

    def ask(self, question: str, *values: object) -> tuple[object, ...] | None:
        """Return the first row, or None while the database is down."""
        try:
            with psycopg.connect(self.url, connect_timeout=2, options="-c statement_timeout=3s") as connection:
                return connection.execute(question, values).fetchone()  # type: ignore[call-overload]
        except psycopg.Error:
            return None

    def leave(self) -> None:
        embedded.release(self.state)
        paths.remove_home(self.state)
