"""The data directory of an embedded PostgreSQL with all migrations, made once in a run of the suite and then copied.

`initdb` and the migrations take longer than most tests that need a cluster of their own. So do the test processes: each
has one. A copy starts within a second.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psycopg

from config import paths
from config.postgres import embedded
from config.postgres.supervisor import PostgresSupervisor

FOLDER = "PREPARED_CLUSTER_FOLDER"  # variable with the folder, for the other test processes
START_SECONDS = 60.0


def open_folder() -> None:
    """Create the folder of this run, in the first process of it."""
    folder = Path(tempfile.mkdtemp(prefix="rto-prepared-"))
    folder.chmod(0o711)  # PostgreSQL may have an account of its own
    os.environ[FOLDER] = str(folder)


def remove_folder() -> None:
    """Remove what `open_folder` has created."""
    folder = Path(os.environ.pop(FOLDER))
    for place in (paths.home(folder / "state"), folder):
        shutil.rmtree(place, ignore_errors=True)


def copy_to(state: Path) -> None:
    """Give a new state directory the prepared data, before a process starts its PostgreSQL."""
    source = _prepared()
    home = paths.prepare_home(state)
    target = home / "postgres"
    paths.prepare_private(target, paths.postgres_account(home))
    subprocess.run(["cp", "--archive", "--reflink=auto", source, target / "data"], check=True)


def _prepared() -> Path:
    """Return the data directory. The first caller of all test processes creates it, and the others wait."""
    folder = Path(os.environ[FOLDER])
    state, complete = folder / "state", folder / "complete"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not complete.exists():
            _create(state)
            complete.touch()
    return paths.home(state) / "postgres" / "data"


def _create(state: Path) -> None:
    state.mkdir()
    state.joinpath("throwaway").touch()  # no fsync
    with Path(os.devnull).open() as lock:
        supervisor = PostgresSupervisor(paths.prepare_home(state), lock.fileno())
        supervisor.prepare()
        server = supervisor.start()
    try:
        _wait_until_ready(server, supervisor.home)
        environment = os.environ | {"STATE_DIR": str(state), "DATABASE_URL": embedded.url(state)}
        command = [sys.executable, "manage.py", "migrate", "--verbosity", "0"]
        subprocess.run(command, check=True, cwd=paths.BASE_DIR, env=environment)
    finally:
        server.send_signal(signal.SIGINT)
        server.wait()


def _wait_until_ready(server: subprocess.Popen[bytes], home: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            embedded._create_database(home)
        except psycopg.OperationalError:
            if server.poll() is not None or time.monotonic() > deadline:
                raise
            time.sleep(0.03)
        else:
            return
