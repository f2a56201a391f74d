"""Commits events at a constant rate, in a process of its own: `python -m benchmarks.event_writers`.

Standard input has the plan as JSON. The output is one line: how long it took, and when each job was committed. An event
is the `job.queued` of a new job; the organizations take turns.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import count
from typing import Any

from config.paths import BASE_DIR

THREADS = 4
GRACE = 60.0  # seconds above the time of a plan, in which the process starts and ends
NOTIFY_INTERVAL = 0.025


@dataclass(frozen=True)
class WritePlan:
    """Describes what the writers commit.

    Attributes:
        organizations: The organizations of the jobs.
        pool: The pool in which the jobs wait.
        rate: Events a second; 0: as many as the writers can.
        seconds: For how long.
        channel: A NOTIFY on this channel announces the commits, in a transaction of its own; empty: nothing does.
    """

    organizations: Sequence[str]
    pool: str
    rate: float
    seconds: float
    channel: str = ""


class Writers:
    """The process of the writers, which begins at once."""

    def __init__(self, plan: WritePlan) -> None:
        self.plan = plan
        command = ["setpriv", "--pdeathsig", "KILL", "--", sys.executable, "-m", "benchmarks.event_writers"]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, cwd=BASE_DIR, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(asdict(plan)) + "\n")
        self.process.stdin.flush()

    def result(self) -> dict[str, Any]:
        """Wait for the end. Returns `seconds`, and by the id of each job the time of its commit (monotonic) as `at`.

        Raises:
            RuntimeError: The writers failed, or did not end in time.
        """
        try:
            out, err = self.process.communicate(timeout=self.plan.seconds + GRACE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise RuntimeError("the writers did not end") from None
        if self.process.returncode:
            raise RuntimeError(err.strip().splitlines()[-1] if err.strip() else "the writers failed")
        found: dict[str, Any] = json.loads(out.splitlines()[-1])
        return found


def written(plan: WritePlan) -> dict[str, Any]:
    """Write to the end of the plan, and return the result of `Writers`."""
    return Writers(plan).result()


def main() -> int:
    """Write by the plan of standard input. Returns the exit code."""
    import django  # noqa: PLC0415 - only in the process of the writers

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    django.setup()
    sys.stdout.write(json.dumps(_write(WritePlan(**json.loads(sys.stdin.readline())))) + "\n")
    return 0


def _write(plan: WritePlan) -> dict[str, Any]:
    from django.db import connection  # noqa: PLC0415 - after the settings

    from benchmarks import tenants  # noqa: PLC0415 - likewise
    from orchestrator.pubsub.announcer import Announcer  # noqa: PLC0415 - likewise
    from orchestrator.pubsub.listener import send_notification  # noqa: PLC0415 - likewise
    from tests.factories import submitted_steps  # noqa: PLC0415 - likewise

    announcer = Announcer("events", lambda _: send_notification(plan.channel, ""), interval=NOTIFY_INTERVAL)
    projects = [tenants.project(organization, plan.pool) for organization in plan.organizations]
    committed: dict[str, float] = {}
    began = time.monotonic()

    def submit(thread: int) -> None:
        for number in count(thread, THREADS):
            due = began + number / plan.rate if plan.rate else 0.0
            time.sleep(max(0.0, due - time.monotonic()))
            if max(due, time.monotonic()) - began > plan.seconds:
                break
            job = submitted_steps(projects[number % len(projects)])
            committed[job.job_ulid] = time.monotonic()
            if plan.channel:
                announcer.announce(["event"])
        connection.close()

    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(submit, range(THREADS)))  # raises what a thread has raised
    seconds = time.monotonic() - began
    announcer.flush()
    return {"seconds": seconds, "at": committed}


if __name__ == "__main__":
    sys.exit(main())
