"""`manage.py runworker` as a real process, for tests that send it signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


class WorkerProcess:
    """One process of the command; what it logs goes to a file."""

    def __init__(
        self,
        environment: Mapping[str, str],
        log: Path,
        *arguments: str,
        program: Path = ROOT / "manage.py",
        container: Sequence[str] = (),
    ) -> None:
        self.log_file = log
        command = [*container, sys.executable, str(program), "runworker", *arguments]
        given = {"PATH": os.environ["PATH"], "RUNTIME_ORCHESTRATOR_TEST": "1", "ORCH_TEST": "1", **environment}
        with log.open("ab") as file:
            self.process = subprocess.Popen(command, env=given, cwd="/", stdout=file, stderr=file)

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self, seconds: float = 120) -> int:
        """Wait for the end, and return the exit status. The limit includes the start, which a busy machine makes long."""
        return self.process.wait(seconds)

    def end_anyway(self) -> None:
        """Leave nothing running, also not what a test has stopped."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.kill()


def processes_with(word: str) -> list[int]:
    """Return the live processes of this machine with `word` in their command line."""
    found = []
    for place in Path("/proc").iterdir():
        if place.name.isdigit() and int(place.name) != os.getpid():
            try:
                words = (place / "cmdline").read_bytes()
            except OSError:
                continue
            if word.encode() in words:
                found.append(int(place.name))
    return found
