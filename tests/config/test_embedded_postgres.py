"""The embedded server is there while anybody needs it and gone afterwards, whoever is killed."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from config import paths
from config.postgres import embedded
from tests.live_server import eventually

USER = """
import sys
from pathlib import Path
from config.postgres import embedded
embedded.ensure(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.read()
"""


def processes(state: Path) -> dict[str, int]:
    """The keeper of this home, its postmaster, and the program that makes its data, by name."""
    found = {}
    home = str(paths.home(state))
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if "config.postgres.supervisor" in words and home in words:
                found["keeper"] = int(entry.name)
            if words[0].endswith("/postgres") and f"{home}/postgres/data" in words:
                found["server"] = int(entry.name)
            is_initdb = words[0].endswith("/initdb") and f"{home}/postgres/data.unfinished" in words
            if is_initdb and not _is_fork_of(entry, words):
                found["initdb"] = int(entry.name)
    return found


def _is_fork_of(entry: Path, words: list[str]) -> bool:
    """Return whether a process has the command line of its parent: it has not begun its own program yet."""
    status = (entry / "status").read_text()
    parent = Path("/proc", re.search(r"^PPid:\s+(\d+)", status, re.MULTILINE)[1])
    return (parent / "cmdline").read_bytes().decode(errors="replace").split("\0") == words


def answers(state: Path) -> bool:
    with contextlib.suppress(psycopg.OperationalError), psycopg.connect(embedded.url(state)):
        return True
    return False


def removed(state: Path) -> bool:
    with contextlib.suppress(paths.PathError):
        paths.remove_home(state)
    return not state.exists()


def kill_together(*pids: int) -> None:
    """Kill processes so that none can react to the death of another: all are stopped first."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            os.kill(pid, number)


@contextlib.contextmanager
def killer_at_deletion_of(name: str, pid: int) -> Iterator[None]:
    """Kill the process when it is about to delete what it calls so; at the end wait until it is dead."""
    command = ["strace", "-p", str(pid), "-P", name, "-e", "inject=unlink,unlinkat:signal=KILL"]
    tracer = subprocess.Popen(command, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        assert "attached" in tracer.stderr.readline()
        yield
        _, report = tracer.communicate(timeout=60)
        assert "killed by SIGKILL" in report
    finally:
        tracer.kill()
        tracer.wait()


class Users:
    """Processes that use one installation's server."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.started: list[subprocess.Popen[str]] = []

    def start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", USER, str(self.state)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        user = subprocess.Popen(command, text=True, cwd=paths.BASE_DIR, **pipes)
        self.started.append(user)
        return user

    def ready(self) -> subprocess.Popen[str]:
        user = self.start()
        assert user.stdout.readline() == "ready\n"
        return user

    def end(self, user: subprocess.Popen[str]) -> None:
        user.communicate(timeout=60)
        assert user.returncode == 0

    def kill_all(self) -> None:
        for user in self.started:
            user.kill()
            user.communicate()


@pytest.fixture
def users() -> Iterator[Users]:
    """An installation whose data goes with its server. Not in tmp_path: pytest's folders are 0700, another story."""
    users = Users(Path(tempfile.mkdtemp(prefix="rto-pg-")))
    (users.state / "throwaway").touch()
    yield users
    users.kill_all()
    eventually(lambda: not processes(users.state) and not users.state.exists())


@pytest.fixture
def lasting() -> Iterator[Users]:
    """An installation as `make up` makes one."""
    users = Users(Path(tempfile.mkdtemp(prefix="rto-pg-")))
    yield users
    users.kill_all()
    eventually(lambda: removed(users.state))  # a process leaves /proc shortly before it releases its locks


def test_the_last_user_out_stops_the_server(users):
    first, second = users.ready(), users.ready()
    users.end(first)
    assert answers(users.state)
    users.end(second)
    assert not processes(users.state)


def test_many_starters_at_once_share_one_server(users):
    crowd = [users.start() for _ in range(6)]
    assert [user.stdout.readline() for user in crowd] == ["ready\n"] * 6
    keepers = [line for line in Path("/proc").glob("[0-9]*/cmdline") if _is_keeper_of(line, users.state)]
    assert len(keepers) == 1


def _is_keeper_of(cmdline: Path, state: Path) -> bool:
    with contextlib.suppress(OSError):
        words = cmdline.read_bytes().decode(errors="replace").split("\0")
        return "config.postgres.supervisor" in words and str(state) in words
    return False


def test_a_killed_user_counts_as_gone(users):
    user = users.ready()
    user.kill()
    user.communicate()
    eventually(lambda: not processes(users.state))


def test_a_start_cut_short_leaves_nothing_that_a_later_one_trusts(lasting):
    user = lasting.start()
    initdb = eventually(lambda: processes(lasting.state).get("initdb"))
    os.kill(initdb, signal.SIGSTOP)  # so that it does not end by itself
    os.kill(processes(lasting.state)["keeper"], signal.SIGKILL)
    user.kill()
    user.communicate()
    eventually(lambda: not processes(lasting.state))
    lasting.ready()
    assert answers(lasting.state)
    assert not (lasting.state / "postgres" / "data.unfinished").exists()


def test_a_stale_pid_file_that_names_a_living_process_does_not_stop_a_start(lasting):
    """After a reboot the number in it may be anybody's, also one that PostgreSQL may signal."""
    lasting.end(lasting.ready())
    stranger = subprocess.Popen(["sleep", "600"], **_same_account(lasting.state))
    data, socket = lasting.state / "postgres" / "data", lasting.state / "postgres" / "socket"
    lines = [str(stranger.pid), str(data), "1", "5432", str(socket), "", "1 1", "ready"]
    try:
        for file in (data / "postmaster.pid", socket / ".s.PGSQL.5432.lock"):
            file.write_text("\n".join(lines) + "\n")
        (socket / ".s.PGSQL.5432").touch()
        lasting.ready()
    finally:
        stranger.kill()
        stranger.wait()


def _same_account(state: Path) -> dict[str, int]:
    owner = (state / "postgres").stat().st_uid
    return {"user": owner} if os.geteuid() == 0 else {}


def test_what_was_committed_survives_a_kill_of_everybody(lasting):
    user = lasting.ready()
    with psycopg.connect(embedded.url(lasting.state)) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 1 AS one")
    kill_together(user.pid, *processes(lasting.state).values())
    user.communicate()
    lasting.ready()
    with psycopg.connect(embedded.url(lasting.state)) as connection:
        assert connection.execute("SELECT one FROM kept").fetchone() == (1,)


def test_the_server_is_durable_private_and_off_the_network(lasting):
    lasting.ready()
    folder = lasting.state / "postgres"
    for private in (folder, folder / "data", folder / "socket"):
        assert private.stat().st_mode & 0o777 == 0o700
    expected = {"listen_addresses": "", "fsync": "on", "jit": "off", "max_connections": "200", "data_checksums": "on"}
    with psycopg.connect(embedded.url(lasting.state)) as connection:
        found = {name: connection.execute(f"SHOW {name}").fetchone()[0] for name in expected}
        superuser = connection.execute("SELECT rolsuper FROM pg_roles WHERE rolname = current_user").fetchone()
    assert found == expected
    assert superuser == (False,)


def test_a_start_that_cannot_work_says_why(lasting):
    lasting.end(lasting.ready())
    (lasting.state / "postgres" / "data" / "PG_VERSION").write_text("9.6\n")
    output, _ = lasting.start().communicate(timeout=60)
    assert "EmbeddedPostgresFailed" in output
    assert "initialized by PostgreSQL version 9.6" in output


def test_a_home_in_use_is_not_removed(lasting):
    lasting.ready()
    with pytest.raises(paths.PathError, match="in use"):
        paths.remove_home(lasting.state)


def test_a_killed_server_is_started_again(users):
    users.ready()
    before = processes(users.state)
    os.kill(before["server"], signal.SIGKILL)
    eventually(lambda: processes(users.state).get("server") not in {None, before["server"]} and answers(users.state))
    assert processes(users.state)["keeper"] == before["keeper"]


def test_a_killed_keeper_takes_the_server_along_and_both_come_back(users):
    users.ready()
    before = processes(users.state)
    os.kill(before["keeper"], signal.SIGKILL)
    eventually(lambda: processes(users.state).get("keeper") not in {None, before["keeper"]} and answers(users.state))
    assert processes(users.state)["server"] != before["server"]


def test_nothing_outlives_keeper_and_users_killed_together(users):
    user = users.ready()
    kill_together(user.pid, processes(users.state)["keeper"])
    user.communicate()
    eventually(lambda: not processes(users.state))
    users.ready()


def test_a_removal_cut_short_leaves_nothing_that_a_later_start_trusts(users):
    user = users.ready()
    with killer_at_deletion_of("PG_VERSION", processes(users.state)["keeper"]):
        users.end(user)
    assert not (users.state / "postgres" / "data").exists()
    users.ready()
    assert answers(users.state)


def test_the_marker_of_a_throwaway_is_deleted_last(users):
    """Without it the next start would keep its data. The fixture waits until that start's end has deleted the rest."""
    user = users.ready()
    with killer_at_deletion_of(str(users.state / "throwaway"), processes(users.state)["keeper"]):
        users.end(user)
    assert [entry.name for entry in users.state.iterdir()] == ["throwaway"]
    users.ready()
