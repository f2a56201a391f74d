"""Starts a PostgreSQL that all processes of an installation share, and stops it when the last of them has ended.

Every process that uses the server has a shared flock on `postgres.users` until it ends. A process that gets the
exclusive flock on `postgres.server` knows that no server runs, and passes the lock to a new supervisor
(config.postgres.supervisor). The kernel releases the locks of killed processes, so kill -9 needs no code of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
from psycopg.conninfo import make_conninfo

from config import paths

NAME = "orchestrator"
START_TIMEOUT_SECONDS = 60.0  # includes the crash recovery of a large database
SUPERVISOR_ATTEMPTS = 2
DISK_FULL = "No space left on device"
LEAST_ROOM = 1 << 20  # bytes; with less even the log may not have the reason

_in_use: dict[Path, int] = {}  # home -> descriptor with this process's share of the lock
_supervisors: dict[Path, int] = {}  # home -> process that this one has started


class EmbeddedPostgresFailed(Exception):
    """Reports that the server did not start, with the last lines of its log."""


def ensure_unless_given() -> None:
    """Start the embedded server, or join the running one, unless DATABASE_URL names another."""
    if not (os.environ.get("DATABASE_URL") or os.environ.get("DATABASE_URL_FILE")):
        ensure(paths.state_dir())


def ensure(state: Path) -> dict[str, str]:
    """Return the connection parameters (libpq keywords: host, user, dbname) of a running server.

    The server runs until this process ends. When it or its supervisor is killed, it is restarted within about a second;
    open connections are lost.

    Raises:
        EmbeddedPostgresFailed: The server did not start.
        PathError: Its files cannot be created.
    """
    home = paths.prepare_home(state)
    if home not in _in_use:
        try:
            _in_use[home] = _lock(home / "postgres.users", fcntl.LOCK_SH)
            _wait_until_ready(home)
        except PermissionError as error:
            raise paths.PathError(f"{error.filename} belongs to another account: name another STATE_DIR") from error
        threading.Thread(target=_restart_supervisor, args=[home], name="postgres-revive", daemon=True).start()
        atexit.register(release, state)
    return _address(home)


def release(state: Path) -> None:
    """End this process's use; if it was the last one, return when the server has ended. Repeated calls do nothing."""
    home = paths.home(state)
    if home not in _in_use:
        return
    with _opened(home / "postgres.users") as users, _opened(home / "postgres.server") as server:
        os.close(_in_use.pop(home))
        while _is_held(server) and not _is_shared(users):
            time.sleep(0.02)


def django_database(state: Path) -> dict[str, Any]:
    """Return Django's settings of the server (ENGINE, NAME, USER, HOST), without starting it."""
    address = _address(paths.home(state))
    names = {"NAME": address["dbname"], "USER": address["user"], "HOST": address["host"]}
    return {"ENGINE": "django.db.backends.postgresql", **names}


def url(state: Path, dbname: str = NAME) -> str:
    """Return the server's DATABASE_URL, for child processes."""
    address = _address(paths.home(state))
    return f"postgres://{address['user']}@/{dbname}?host={quote(address['host'])}"


def _address(home: Path) -> dict[str, str]:
    return {"host": str(paths.socket_folder(home)), "user": NAME, "dbname": NAME}


def _wait_until_ready(home: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    attempts = 0
    while True:
        if attempts < SUPERVISOR_ATTEMPTS:
            attempts += _start_supervisor_if_none(home)
        try:
            _create_database(home)
        except psycopg.OperationalError as error:  # still starting, recovering from a crash, or not there yet
            if time.monotonic() > deadline or (attempts == SUPERVISOR_ATTEMPTS and not _has_supervisor(home)):
                raise EmbeddedPostgresFailed(_log_tail(home)) from error
            time.sleep(0.03)
        else:
            return


def _create_database(home: Path) -> None:
    """Create the role and its database if they are missing. The role is no superuser, so triggers apply to it."""
    conninfo = make_conninfo(**_address(home) | {"user": "postgres", "dbname": "postgres", "connect_timeout": "5"})
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute("SELECT pg_advisory_lock(hashtext('embedded_postgres'))")  # released with the connection
        if not connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [NAME]).fetchone():
            connection.execute("CREATE ROLE orchestrator LOGIN CREATEDB")
        if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [NAME]).fetchone():
            connection.execute("CREATE DATABASE orchestrator OWNER orchestrator")


def _start_supervisor_if_none(home: Path) -> bool:
    with _opened(home / "postgres.server") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        _start_supervisor(home, lock)
    return True


def _start_supervisor(home: Path, lock: int) -> None:
    """Start a supervisor that inherits `lock`. It outlives this process and its terminal, so it is not awaited here."""
    with os.fdopen(os.open(home / "postgres.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as log:
        os.fchmod(log.fileno(), 0o600)
        _supervisors[home] = os.posix_spawn(
            sys.executable,
            [sys.executable, "-m", "config.postgres.supervisor", str(home), "3"],
            {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8", "PYTHONPATH": str(paths.BASE_DIR)},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, log.fileno(), 1),
                (os.POSIX_SPAWN_DUP2, log.fileno(), 2),
                (os.POSIX_SPAWN_DUP2, lock, 3),
            ],
            setsid=True,
        )


def _restart_supervisor(home: Path) -> None:
    """Restart the supervisor whenever it dies, as long as this process uses the server."""
    while True:
        lock = _lock(home / "postgres.server", fcntl.LOCK_EX)
        if dead := _supervisors.pop(home, None):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(dead, 0)  # otherwise it stays a zombie until this process ends
        if home not in _in_use:
            os.close(lock)
            return
        _start_supervisor(home, lock)
        os.close(lock)


def _has_supervisor(home: Path) -> bool:
    with _opened(home / "postgres.server") as lock:
        return _is_held(lock)


def _is_held(descriptor: int) -> bool:
    """Return whether a process has the lock exclusively (a supervisor, also while it stops the server)."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False


def _is_shared(users: int) -> bool:
    """Return whether other users have the lock."""
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return not _is_held(users)
    fcntl.flock(users, fcntl.LOCK_UN)
    return False


def _lock(path: Path, kind: int) -> int:
    """Return a descriptor with the lock. It is a plain number, so only the end of the process closes it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, kind)
    return descriptor


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _log_tail(home: Path) -> str:
    with contextlib.suppress(OSError):
        text = (home / "postgres.log").read_text(errors="replace")[-16384:]
        if DISK_FULL in text or shutil.disk_usage(home).free < LEAST_ROOM:
            return f"PostgreSQL did not start: {DISK_FULL.lower()}: {home}; make room, or name another STATE_DIR"
        lines = text.splitlines()[-5:]
        return f"PostgreSQL did not start, see {home / 'postgres.log'}: " + " | ".join(lines)
    return f"PostgreSQL did not start and left no log in {home}"
