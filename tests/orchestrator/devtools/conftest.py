"""Whole installations as real processes, each with a state directory and a PostgreSQL of its own."""

import contextlib
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from config import paths
from tests import prepared_cluster
from tests.live_server import eventually

MANAGE = paths.BASE_DIR / "manage.py"


class Installation:
    """A state directory that other accounts can reach, as an ordinary clone's is; pytest's own folders are 0700."""

    def __init__(self) -> None:
        self.state = Path(tempfile.mkdtemp(prefix="rto-house-"))
        (self.state / "throwaway").touch(mode=0o600)
        self.started: list[LaunchedProcess] = []

    @property
    def environment(self) -> dict[str, str]:
        """As a newcomer's shell: nothing of the test run's own, no terminal."""
        ours = (
            "DATABASE_URL",
            "DJANGO_SETTINGS_MODULE",
            "STATE_DIR",
            "PORT",
            "HOST",
            "ALLOWED_HOSTS",
            "WORKERS",
            "COLUMNS",
            "LOG_LEVEL",
        )
        kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        return kept | {"STATE_DIR": str(self.state)}

    def manage(self, *arguments: str, **variables: str) -> "LaunchedProcess":
        return self.run([sys.executable, str(MANAGE), *arguments], **variables)

    def run(self, command: list[str], **variables: str) -> "LaunchedProcess":
        launched = LaunchedProcess(command, self.environment | variables)
        self.started.append(launched)
        return launched

    def processes(self) -> set[int]:
        """Every living process that names this state directory: in its command, or as its STATE_DIR."""
        found = set()
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
                if os.fsencode(self.state) in words and int(entry.name) != os.getpid():
                    found.add(int(entry.name))
        return found

    def end(self) -> None:
        for launched in self.started:
            launched.process.kill()
            launched.process.wait()
        eventually(lambda: not self.processes())
        shutil.rmtree(self.state, ignore_errors=True)


def exposed(folder: Path) -> list[str]:
    """Name what other accounts of the machine can read, list or change below the folder, as they can reach it.

    Jobs and PostgreSQL run as other accounts, so they may traverse folders, and read the demo's repository and the
    programs of PostgreSQL.
    """
    found = []
    for path in folder.iterdir():
        mode = path.lstat().st_mode
        if path.is_symlink():
            found += exposed(path) if path.name == "home" else []
            continue
        if path.is_dir():
            if mode & stat.S_IXOTH and path.name != "demo.git" and not path.name.startswith("pgserver-"):
                found += [f"{stat.filemode(mode)} {path}"] if mode & 0o066 else []
                found += exposed(path)
        elif mode & 0o077:
            found.append(f"{stat.filemode(mode)} {path}")
    return found


class LaunchedProcess:
    """A process of an installation and its output so far."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = subprocess.Popen(command, env=environment, text=True, start_new_session=True, **pipes)
        self.lines: list[str] = []
        self.errors: list[str] = []
        self._readers = [
            threading.Thread(target=self._read, args=pair, daemon=True)
            for pair in ((self.process.stdout, self.lines), (self.process.stderr, self.errors))
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: Iterator[str], into: list[str]) -> None:
        for line in stream:
            into.append(line.rstrip("\n"))  # noqa: PERF401 - others look at the list meanwhile
        stream.close()

    def printed(self, words: str) -> bool:
        assert self.process.poll() is None or any(words in line for line in self.lines), self.everything()
        return any(words in line for line in self.lines)

    def wait(self, seconds: float = 120) -> int:
        code = self.process.wait(seconds)
        for reader in self._readers:
            reader.join(10)
        return code

    def signal(self, number: int = signal.SIGINT) -> None:
        self.process.send_signal(number)

    def everything(self) -> str:
        return "\n".join([*self.lines, "--- stderr", *self.errors])


@pytest.fixture
def installation() -> Iterator[Installation]:
    """Without a PostgreSQL: what a first start finds."""
    made = Installation()
    yield made
    made.end()


@pytest.fixture
def migrated(installation: Installation) -> Installation:
    """With a database that has all migrations: what a second start finds."""
    prepared_cluster.copy_to(installation.state)
    return installation


@dataclass(frozen=True)
class TwoDemos:
    """An installation in which a demo was interrupted and another one was not. No process of it runs."""

    installation: Installation
    interrupted: LaunchedProcess
    left_by_interrupted: set[int]
    complete: LaunchedProcess
    left_by_complete: set[int]


@pytest.fixture(scope="package")
def demos() -> Iterator[TwoDemos]:
    """Two demos, the first of them on an empty state directory. Each takes many processes, so tests of two files share them."""
    made = Installation()
    try:
        (made.state / "throwaway").unlink()  # the second one, and `up`, find the database of the first
        # Its worker waits before the upload, so that the signal comes while the job runs, however late it is sent.
        interrupted = made.manage("demo", ORCH_TEST="1", ORCH_FP="worker.upload.before=sleep:10")
        eventually(lambda: interrupted.printed("executing"), 240)  # the first start migrates the database
        interrupted.signal(signal.SIGINT)
        interrupted.wait()
        left = made.processes()
        complete = made.manage("demo")
        complete.wait()
        yield TwoDemos(made, interrupted, left, complete, made.processes())
    finally:
        made.end()
