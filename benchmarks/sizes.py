"""Sizes of every scenario: the full form, and the quick one that ends within five minutes on two cores."""

import os
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Sizes:
    """`seconds` is what one load is measured for, after `warmup`. The rest are numbers of rows and of clients."""

    name: str
    seconds: float
    warmup: float
    clients: int
    bulk_clients: int
    rounds: int  # claims over HTTP and from pgbench in turns, so often
    filled: int  # jobs that wait before claims are measured, for each second of single claims
    layouts: tuple[str, ...]
    peer_jobs: int
    limit_claims: int
    limit_clients: int
    limit_seconds: float  # then it ends, with fewer claims
    crowd: int  # jobs of the tenant that has many
    scale: float  # of the million jobs, ten thousand lanes, hundred thousand blocked ones
    polls: int  # that wait, and channels that wait
    executing: int  # jobs on channels, and as many on leases of the native API
    latencies: int  # jobs that are sent one after the other to those that wait
    samples: int  # claims of which a median is made
    cost_slices: int  # of lifecycles by one client, in turns with minimal ones
    cost_rounds: int  # lifecycles of a slice
    cost_seconds: float  # of minimal lifecycles after each slice
    sandbox_runs: int  # jobs in each engine, in turns with bare processes
    worker_jobs: int  # of `true`, run by one worker with eight slots
    budget: float  # seconds after which no further scenario is begun

    @property
    def claim_seconds(self) -> float:
        return self.seconds / 2


FULL = Sizes(
    name="full",
    seconds=20,
    warmup=2,
    clients=16,
    bulk_clients=4,
    rounds=3,
    filled=2_000,
    layouts=("asgi-1", "asgi-2", "wsgi-2"),
    peer_jobs=5_000,
    limit_claims=100_000,
    limit_clients=64,
    limit_seconds=1_200,
    crowd=100_000,
    scale=1,
    polls=2_000,
    executing=1_000,
    latencies=400,
    samples=300,
    cost_slices=5,
    cost_rounds=60,
    cost_seconds=4,
    sandbox_runs=100,
    worker_jobs=400,
    budget=3_600,
)
QUICK = replace(
    FULL,
    name="quick",
    seconds=4,
    warmup=1,
    rounds=1,
    layouts=("asgi-1", "wsgi-2"),
    peer_jobs=500,
    limit_claims=5_000,
    limit_seconds=60,
    crowd=10_000,
    scale=0.05,
    polls=300,
    executing=200,
    latencies=150,
    samples=100,
    cost_slices=2,
    cost_rounds=30,
    cost_seconds=2,
    sandbox_runs=25,
    worker_jobs=80,
    budget=265,
)
# Tests the harness itself within a few minutes. Its figures mean nothing.
TINY = replace(
    QUICK,
    name="tiny",
    seconds=2,
    warmup=0.5,
    filled=500,
    peer_jobs=200,
    limit_claims=400,
    crowd=500,
    scale=0.002,
    polls=100,
    executing=40,
    latencies=40,
    samples=50,
    cost_slices=1,
    cost_rounds=5,
    cost_seconds=1,
    sandbox_runs=5,
    worker_jobs=16,
    budget=900,
)


def chosen() -> Sizes:
    """By QUICK=1 or TINY=1; else the full form."""
    if os.environ.get("TINY", "0") not in {"", "0"}:
        return TINY
    return QUICK if os.environ.get("QUICK", "0") not in {"", "0"} else FULL
