"""Clients in a process of their own: `python -m benchmarks.load`.

The input is a plan as JSON, the output one line with its tally. Start one with `begun`.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import uvloop

from benchmarks.callers import TenantCaller, WorkerCaller
from benchmarks.clients import LoadClient, run
from benchmarks.histogram import Tally
from config.paths import BASE_DIR

GRACE = 90.0  # seconds that a load may take beyond its time: what was begun is finished


class LoadFailed(Exception):
    """Raised when the clients ended without a tally; `str()` has the last line of their output."""


@dataclass(frozen=True)
class LoadPlan:
    """The work of a load: `flow` of `benchmarks.clients`, by so many `clients`.

    They share out `workers` (id, token). `token` and `bodies` belong to the tenant that submits. `jobs`: how many a
    drain ends at most; `until`: of which tenants how many are enough; `held`: seconds that a worker keeps each.
    """

    flow: str
    host: str
    port: int
    clients: int
    seconds: float
    warmup: float = 0.0
    workers: Sequence[tuple[str, str]] = ()
    token: str = ""
    bodies: Sequence[dict[str, Any]] = ()
    jobs: int = 0
    held: float = 0
    until: Mapping[str, int] = field(default_factory=dict)


class Load:
    """A load that is under way. `tally` waits for its end."""

    def __init__(self, plan: LoadPlan) -> None:
        self.patience = plan.warmup + plan.seconds + GRACE
        self.process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", sys.executable, "-m", "benchmarks.load"],
            cwd=BASE_DIR,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(asdict(plan)))  # not as an argument: it has tokens
        self.process.stdin.close()
        self.process.stdin = None

    def tally(self) -> dict[str, Any]:
        """As `Tally.summary`. Raises LoadFailed."""
        try:
            out, err = self.process.communicate(timeout=self.patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise LoadFailed("it did not end") from None
        if self.process.returncode:
            raise LoadFailed(err.strip().splitlines()[-1] if err.strip() else f"exit code {self.process.returncode}")
        return json.loads(out.splitlines()[-1])


def begun(plan: LoadPlan) -> Load:
    return Load(plan)


def loaded(plan: LoadPlan) -> dict[str, Any]:
    return Load(plan).tally()


async def _run_plan(plan: LoadPlan) -> dict[str, Any]:
    tally = Tally.of(warmup=plan.warmup, seconds=plan.seconds, finishes=plan.flow == "many")
    if plan.jobs:
        tally.facts |= {"jobs": plan.jobs, "until": plan.until, "held": plan.held}
        tally.facts |= {"place": {}, "at": {}, "asked": {}, "ends": {}, "empties": []}
    await asyncio.gather(*(run(plan.flow, _client(plan, number, tally)) for number in range(plan.clients)))
    return tally.summary()


def _client(plan: LoadPlan, number: int, tally: Tally) -> LoadClient:
    insists = plan.flow == "insisting"
    workers = [
        WorkerCaller((worker[0], worker[1]), plan.host, plan.port, tally, insists=insists)
        for worker in plan.workers[number :: plan.clients]
    ]
    tenant = TenantCaller(plan.host, plan.port, plan.token, tally, insists=insists)
    return LoadClient(number, tenant, workers, list(plan.bodies), tally)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(uvloop.run(_run_plan(LoadPlan(**json.load(sys.stdin))))) + "\n")
