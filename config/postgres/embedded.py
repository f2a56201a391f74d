"""A real PostgreSQL of the installation's own, shared by all its processes, gone when the last of them ends.

Every user holds a shared flock on `postgres.users` for its whole life. Whoever gets the exclusive flock on
`postgres.server` knows that no server lives, and hands that lock to a new supervisor (config.postgres.supervisor).
The kernel drops the locks of killed processes, so kill -9 of any party needs no case of its own.
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
START_TIMEOUT_SECONDS = 60.0  # seconds that a start may take: a crash recovery of a large database is part of it
SUPERVISOR_ATTEMPTS = 2
DISK_FULL = "No space left on device"
LEAST_ROOM = 1 << 20  # with less not even the log may say why

_in_use: dict[Path, int] = {}  # home -> descriptor that holds our share of its lock
_supervisors: dict[Path, int] = {}  # home -> process that this one has started


class EmbeddedPostgresFailed(Exception):
    """The server did not come up; `str()` has the last lines of its log."""


def ensure_unless_given() -> None:
    """Start the embedded server, or join the running one, unless DATABASE_URL names another."""
    if not (os.environ.get("DATABASE_URL") or os.environ.get("DATABASE_URL_FILE")):
        ensure(paths.state_dir())


def ensure(state: Path) -> dict[str, str]:
    """Return how to connect (libpq's keywords: host, user, dbname) to a server that answers.

    It answers until this process ends, also when the server or its keeper is killed meanwhile (after a second or so;
    open connections are lost). Raises EmbeddedPostgresFailed, places.PlaceRefused.
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
    """Stop being a user; return when the server is gone if this was the last one. Again: nothing."""
    home = paths.home(state)
    if home not in _in_use:
        return
    with _opened(home / "postgres.users") as users, _opened(home / "postgres.server") as server:
        os.close(_in_use.pop(home))
        while _is_held(server) and not _is_shared(users):
            time.sleep(0.02)


def django_database(state: Path) -> dict[str, Any]:
    """Return what DATABASES needs to reach the server, without starting it: ENGINE, NAME, USER, HOST."""
    address = _address(paths.home(state))
    names = {"NAME": address["dbname"], "USER": address["user"], "HOST": address["host"]}
    return {"ENGINE": "django.db.backends.postgresql", **names}


def url(state: Path, dbname: str = NAME) -> str:
    """Return the same as a DATABASE_URL, for child processes."""
    address = _address(paths.home(state))
    return f"postgres://{address['user']}@/{dbname}?host={quote(address['host'])}"


def _address(home: Path) -> dict[str, str]:
    return {"host": str(paths.socket_folder(home)), "user": NAME, "dbname": NAME}


def _wait_until_ready(home: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    keepers = 0
    while True:
        if keepers < SUPERVISOR_ATTEMPTS:
            keepers += _start_supervisor_if_none(home)
        try:
            _create_database(home)
        except psycopg.OperationalError as error:  # still starting, recovering from a crash, or not there yet
            if time.monotonic() > deadline or (keepers == SUPERVISOR_ATTEMPTS and not _has_supervisor(home)):
                raise EmbeddedPostgresFailed(_log_tail(home)) from error
            time.sleep(0.03)
        else:
            return


def _create_database(home: Path) -> None:
    """Make the role and its database unless they are there. The role is not a superuser: triggers bind it."""
    conninfo = make_conninfo(**_address(home) | {"user": "postgres", "dbname": "postgres", "connect_timeout": "5"})
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute("SELECT pg_advisory_lock(hashtext('embedded_postgres'))")  # let go with the connection
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
    """Start a keeper that inherits `lock`; it outlives this process and its terminal, so nobody waits for it."""
    with (home / "postgres.log").open("ab") as log:
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
    """Wait for the death of the keeper, as often as it dies, and start another: this process still needs the server."""
    while True:
        lock = _lock(home / "postgres.server", fcntl.LOCK_EX)
        if dead := _supervisors.pop(home, None):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(dead, 0)  # or it stays a zombie as long as we live
        if home not in _in_use:
            os.close(lock)
            return
        _start_supervisor(home, lock)
        os.close(lock)


def _has_supervisor(home: Path) -> bool:
    with _opened(home / "postgres.server") as lock:
        return _is_held(lock)


def _is_held(descriptor: int) -> bool:
    """Say whether anybody holds the lock exclusively: the keeper the server's, or, while it stops it, the users'."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False


def _is_shared(users: int) -> bool:
    """Say whether other users hold the lock."""
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return not _is_held(users)
    fcntl.flock(users, fcntl.LOCK_UN)
    return False


def _lock(path: Path, kind: int) -> int:
    """Return a descriptor that holds the lock. Only its number is kept, so nothing but the process's end closes it."""
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
