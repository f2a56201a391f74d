"""The embedded server is there while anybody needs it and gone afterwards, whoever is killed."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from config import embedded_postgres, places

USER = """
import sys
from pathlib import Path
from config import embedded_postgres
embedded_postgres.ensure(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.read()
"""


def eventually(condition: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)


def processes(state: Path) -> dict[str, int]:
    """The keeper and the postmaster of this home by name."""
    found = {}
    home = str(places.home(state))
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if "config.postgres_keeper" in words and home in words:
                found["keeper"] = int(entry.name)
            if words[0].endswith("/postgres") and f"{home}/postgres/data" in words:
                found["server"] = int(entry.name)
    return found


def answers(state: Path) -> bool:
    with contextlib.suppress(psycopg.OperationalError), psycopg.connect(embedded_postgres.url(state)):
        return True
    return False


class Users:
    """Processes that use one installation's server."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.started: list[subprocess.Popen[str]] = []

    def start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", USER, str(self.state)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        user = subprocess.Popen(command, text=True, cwd=places.BASE_DIR, **pipes)
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
def users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Users]:
    import tempfile  # noqa: PLC0415 - pytest's own folders are 0700, which is another test's story

    state = Path(tempfile.mkdtemp(prefix="rto-pg-"))
    (state / "throwaway").touch()
    users = Users(state)
    yield users
    users.kill_all()
    eventually(lambda: not processes(state))
    eventually(lambda: not state.exists())


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
        return "config.postgres_keeper" in words and str(state) in words
    return False


def test_a_killed_user_counts_as_gone(users):
    user = users.ready()
    user.kill()
    user.communicate()
    eventually(lambda: not processes(users.state))


def test_a_starter_killed_halfway_leaves_a_start_that_works(users):
    user = users.start()
    eventually(lambda: "keeper" in processes(users.state))
    user.kill()
    user.communicate()
    (users.state / "throwaway").touch() if users.state.exists() else users.state.mkdir()
    (users.state / "throwaway").touch()
    users.ready()
    assert answers(users.state)


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
    user.kill()
    os.kill(processes(users.state)["keeper"], signal.SIGKILL)
    user.communicate()
    eventually(lambda: not processes(users.state))
    users.ready()
