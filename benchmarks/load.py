"""Runs clients in a separate process, `python -m benchmarks.load`, which `begun` starts.

Standard input has the plan as JSON. The output is one line with the tally.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import uvloop

from benchmarks.callers import RunnerCaller, TenantCaller, WorkerCaller
from benchmarks.clients import RUNNER_FLOWS, LoadClient, run
from benchmarks.histogram import Tally
from config.paths import BASE_DIR

GRACE = 90.0  # seconds above the time of a load, in which its last requests end


class LoadFailed(Exception):
    """Reports that the clients ended without a tally. The message is the last line of their output."""


@dataclass(frozen=True)
class LoadPlan:
    """The work of a load.

    Attributes:
        flow: The flow of `benchmarks.clients`.
        host: The address of the server.
        port: Its port.
        clients: The number of clients.
        seconds: The time that is measured.
        warmup: Seconds before it.
        workers: Ids and tokens of the workers, or names and registration tokens of runners. Each client has an equal
            part of them.
        token: The API token of the tenant that submits.
        tokens: Those of several tenants instead. Each client submits for one of them, with the body of the same number.
        bodies: The bodies of the submits.
        jobs: The maximum number of jobs that a drain ends.
        held: Seconds that a worker keeps each of these.
        rate: Lifecycles/s that the clients of a paced load begin together.
        until: The number of jobs of each tenant after which a drain ends.
    """

    flow: str
    host: str
    port: int
    clients: int
    seconds: float
    warmup: float = 0.0
    workers: Sequence[tuple[str, str]] = ()
    token: str = ""
    tokens: Sequence[str] = ()
    bodies: Sequence[dict[str, Any]] = ()
    jobs: int = 0
    held: float = 0
    rate: float = 0
    until: Mapping[str, int] = field(default_factory=dict)


class Load:
    """A load that runs. `tally` waits for its end."""

    def __init__(self, plan: LoadPlan) -> None:
        self.patience = plan.warmup + plan.seconds + GRACE
        # Files and not pipes: a summary may be longer than a pipe, and wait for its reader. `tally` closes them.
        self.out, self.err = (tempfile.TemporaryFile("w+") for _ in range(2))  # noqa: SIM115 closed by `tally`
        self.process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", sys.executable, "-m", "benchmarks.load"],
            cwd=BASE_DIR,
            stdin=subprocess.PIPE,
            stdout=self.out,
            stderr=self.err,
            text=True,
        )
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(asdict(plan)))  # not as an argument: the plan contains tokens
        self.process.stdin.close()
        self.process.stdin = None

    def tally(self) -> dict[str, Any]:
        """Return `Tally.summary` of the clients.

        Raises:
            LoadFailed: The clients did not end in time, or failed.
        """
        try:
            self.process.wait(timeout=self.patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise LoadFailed(f"The clients did not end within {self.patience:g} s.") from None
        with self.out, self.err:
            self.out.seek(0), self.err.seek(0)
            out, err = self.out.read(), self.err.read()
        if self.process.returncode:
            raise LoadFailed(err.strip().splitlines()[-1] if err.strip() else f"exit code {self.process.returncode}")
        return json.loads(out.splitlines()[-1])


def begun(plan: LoadPlan) -> Load:
    """Start a load."""
    return Load(plan)


def loaded(plan: LoadPlan) -> dict[str, Any]:
    """Run a load to its end, and return its tally."""
    return Load(plan).tally()


async def _run_plan(plan: LoadPlan) -> dict[str, Any]:
    tally = Tally.of(warmup=plan.warmup, seconds=plan.seconds, finishes=plan.flow == "many")
    if plan.jobs:
        tally.facts |= {"jobs": plan.jobs, "until": plan.until, "held": plan.held}
        tally.facts |= {"place": {}, "at": {}, "asked": {}, "ends": {}, "empties": []}
    if plan.rate:
        every = plan.clients / plan.rate
        tally.facts |= {"clients": plan.clients, "every": every, "submitted": {}, "leased": {}, "claims": []}
    await asyncio.gather(*(run(plan.flow, _client(plan, number, tally)) for number in range(plan.clients)))
    return tally.summary()


def _client(plan: LoadPlan, number: int, tally: Tally) -> LoadClient:
    insists = plan.flow == "insisting"
    caller = RunnerCaller if plan.flow in RUNNER_FLOWS else WorkerCaller
    workers = [
        caller((worker[0], worker[1]), plan.host, plan.port, tally, insists=insists)
        for worker in plan.workers[number :: plan.clients]
    ]
    place = number % len(plan.tokens) if plan.tokens else 0
    token, bodies = (plan.tokens[place], [plan.bodies[place]]) if plan.tokens else (plan.token, list(plan.bodies))
    tenant = TenantCaller(plan.host, plan.port, token, tally, insists=insists)
    return LoadClient(number, tenant, workers, bodies, tally)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(uvloop.run(_run_plan(LoadPlan(**json.load(sys.stdin))))) + "\n")
