"""Runs `checkout_process` for a checkout of this repository, this one or another, and reads its figures."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any, TextIO

from config import paths

SCRIPT = Path(__file__).resolve().parent / "checkout_process.py"
SCENARIOS = ("five", "three", "two", "many")
MANY = 64  # jobs of one batch call in `checkout_process`
EMPTY = ("empty", "floor")  # answered without an operation: by the event loop, and by a thread with a valid token
TIMED, COUNTED = ("python_ms", "postgres_ms"), ("statements", "trips", "wal_bytes")
# Of the other installation of this machine; each checkout has its own.
FOREIGN = ("DATABASE_URL", "DATABASE_URL_FILE", "DATABASE_ROLE", "DJANGO_SETTINGS_MODULE", "PYTHONPATH", "LOG_LEVEL")

Figures = dict[str, dict[str, float]]  # operation -> figure -> mean of one slice


class MeasuredCheckoutFailed(Exception):
    """Reports that a checkout's process ended or refused a scenario; `str()` says why."""


@dataclass
class MeasuredCheckout:
    """A checkout with its own PostgreSQL, database and process."""

    name: str
    folder: Path
    process: subprocess.Popen[str]
    log: Path

    def read(self) -> dict[str, Any]:
        """Return the next message of the process.

        Raises:
            MeasuredCheckoutFailed: The process has ended, or reports an error.
        """
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            tail = self.log.read_text(errors="replace").strip().splitlines()[-3:]
            raise MeasuredCheckoutFailed(f"{self.name}: its process ended: {' | '.join(tail)}")
        message = json.loads(line)
        if "error" in message:
            raise MeasuredCheckoutFailed(f"{self.name}: {message['error']}")
        return message

    def slice(self, scenario: str, mode: str, rounds: int) -> Figures:
        """Return the means of each operation, and of `lifecycle`: all operations of a round together.

        Args:
            scenario: One of `SCENARIOS`.
            mode: `timed` for processor time, `counted` for statements, round trips and bytes of WAL.
            rounds: Lifecycles, or batches of `MANY` jobs.
        """
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"scenario": scenario, "mode": mode, "rounds": rounds}) + "\n")
        self.process.stdin.flush()
        return summarized(self.read()["records"], jobs=MANY if scenario == "many" else 1, mode=mode)


def summarized(records: list[tuple[str, dict[str, float]]], *, jobs: int, mode: str) -> Figures:
    """Return the figures of each operation for a job, with their sum as `lifecycle` (without EMPTY).

    They are means of processor times, and medians of counts: a call may meet autovacuum or the first change of a page
    after a checkpoint, which writes the whole page.
    """
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for operation, figures in records:
        for name, value in figures.items():
            found[operation][name].append(value / (1 if operation in EMPTY else jobs))
    typical = mean if mode == "timed" else median
    result = {operation: {name: typical(values) for name, values in row.items()} for operation, row in found.items()}
    empty = {name: result.pop(name) for name in EMPTY if name in result}
    names = {name for row in result.values() for name in row}
    return {**result, "lifecycle": {name: sum(row[name] for row in result.values()) for name in names}, **empty}


@contextlib.contextmanager
def started(
    folder: Path, *, name: str, backlog: int = 0, leased: int = 0, layout: str = ""
) -> Iterator[MeasuredCheckout]:
    """Start the process of a checkout; its PostgreSQL ends with it.

    Args:
        folder: The checkout, with its environment in `.venv` (else this interpreter is used).
        name: Label in messages.
        backlog: Jobs of another tenant that wait in the pool all the time.
        leased: Leases that other workers hold all the time.
        layout: A layout of `benchmarks.servers`: then a server runs, and the first message has its address.
    """
    folder = folder.resolve()
    state = paths.state_dir() / "compare" / f"{folder.name}-{hashlib.sha256(bytes(folder)).hexdigest()[:6]}"
    state.mkdir(parents=True, exist_ok=True)
    python = folder / ".venv" / "bin" / "python"
    environment = {key: value for key, value in os.environ.items() if key not in FOREIGN}
    command = [str(python if python.exists() else sys.executable), str(SCRIPT), str(folder), "prepare"]
    log = state / "process.log"
    with log.open("w") as errors:
        process = _popen([*command, str(backlog), str(leased), layout], environment | {"STATE_DIR": str(state)}, errors)
    try:
        yield MeasuredCheckout(name, folder, process, log)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
        process.kill()
        process.wait()


def _popen(command: list[str], environment: dict[str, str], errors: TextIO) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", "--", *command],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
    )
