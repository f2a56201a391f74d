"""Measures a claim with few and with many waiting jobs.

Up to 1,000,000 jobs, 10,000 lanes, 100,000 jobs of a full tenant ahead, and 3,000 leases of other workers. Each figure
is the median of claims through the operation, in this process. At every size the small pool is measured in turns with
the large one, so that a machine that becomes slower does so for both. Leases concern all pools of a database: one pool
is measured in turns with and without them.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any

from django.db import connection

from benchmarks import lists, plot, tenants
from benchmarks.environment import Cluster
from benchmarks.sizes import Sizes
from orchestrator.services import claiming, heartbeat
from runtime_jobs.models import Job
from tests.factories import PoolFactory, WorkerFactory, limited, offer
from workers.models import Worker

SMALL = 1_000
BACKLOGS = (1_000, 10_000, 100_000, 1_000_000)
LANES = (1, 10, 100, 1_000, 10_000)
BLOCKED = 100_000
LEASED = 3_000
LEASED_TURNS = 2
ROUND = 25


@dataclass
class FilledPool:
    """Represents a pool with its waiting jobs, and a worker that claims and releases. It only grows."""

    name: str

    def __post_init__(self) -> None:
        PoolFactory(slug=self.name, policy="fifo")
        self.worker: Worker = WorkerFactory(slug=self.name, pool__slug=self.name, capacity=tenants.MOST_HELD)
        self.lanes = self.jobs = 0

    def grow(self, jobs: int) -> None:
        """To so many jobs in its first lane."""
        tenants.fill(f"{self.name}-0", self.name, jobs - self.jobs, events=False)
        self.jobs, self.lanes = jobs, max(1, self.lanes)

    def widen(self, lanes: int) -> None:
        """To so many lanes, each of a tenant of its own."""
        tenants.one_each([f"{self.name}-{number}" for number in range(self.lanes, lanes)], self.name)
        self.lanes = lanes

    def claim(self) -> float:
        started = time.perf_counter()
        claimed = claiming.claim(worker=self.worker, offer=offer(self.worker, job_types=("steps",)))
        seconds = time.perf_counter() - started
        assert claimed is not None, self.name
        heartbeat.release(lease_ulid=claimed.lease.lease_ulid, worker=self.worker)
        Job.objects.filter(pk=claimed.job.pk).update(release_count=0)
        return seconds


@dataclass(frozen=True)
class Point:
    """Milliseconds of a claim: with so many waiting, and in the small pool at the same time."""

    size: int
    large: float
    small: float

    @property
    def ratio(self) -> float:
        return round(self.large / self.small, 2)


def measure(_cluster: Cluster, sizes: Sizes, _before: dict[str, Any]) -> dict[str, Any]:
    """Return `flat_jobs`, `flat_lanes`, `blocked_ahead` and `flat_leases`: the largest ÷ the small, 1.0 is flat.

    `flatness` has the points, `lists` the pages while all those jobs exist, of these `dashboard_ms` and `api_jobs_ms`.
    """
    curves = {"flat_jobs": _backlog(sizes), "flat_lanes": _lanes(sizes), "blocked_ahead": _blocked(sizes)}
    curves["flat_leases"] = _leased(sizes)
    pictures = {
        "claim-cost-backlog": plot.Chart("A claim's cost, by the jobs that wait", "jobs", curves["flat_jobs"]),
        "claim-cost-lanes": plot.Chart("A claim's cost, by the lanes that have jobs", "lanes", curves["flat_lanes"]),
    }
    pages = lists.pages("many-jobs-0", "many-jobs", scale=sizes.scale)
    return {
        **{name: points[-1].ratio for name, points in curves.items()},
        "flatness": {name: [vars(point) for point in points] for name, points in curves.items()},
        "lists": pages,
        "dashboard_ms": pages["dashboard_ms"],
        "api_jobs_ms": pages["api_jobs_ms"],
        "api_jobs_slowest": pages["api_jobs_slowest"],
        "pictures": {name: chart.drawn() for name, chart in pictures.items()},
    }


def _backlog(sizes: Sizes) -> list[Point]:
    small, large = FilledPool("few-jobs"), FilledPool("many-jobs")
    small.grow(SMALL)
    found = []
    for jobs in _scaled(BACKLOGS, sizes):
        large.grow(jobs)
        found.append(_compared(small, large, jobs, sizes.samples))
    return found


def _lanes(sizes: Sizes) -> list[Point]:
    small, large = FilledPool("one-lane"), FilledPool("many-lanes")
    small.grow(SMALL)
    found = []
    large.grow(SMALL)
    for lanes in _scaled(LANES, sizes):
        large.widen(lanes)
        found.append(_compared(small, large, lanes, sizes.samples))
    return found


def _blocked(sizes: Sizes) -> list[Point]:
    """The tenant that may run nothing is older than who is served, so all its jobs are ahead."""
    small, large = FilledPool("free"), FilledPool("behind")
    small.grow(SMALL)
    blocked = max(1, int(BLOCKED * sizes.scale))
    tenants.fill("full", large.name, blocked, events=False)
    limited("full", max_active=0)
    large.grow(SMALL)
    return [_compared(small, large, blocked, sizes.samples)]


def _leased(sizes: Sizes) -> list[Point]:
    """Measure one pool while no worker, and while others, have leases: none, many, none, many, none."""
    pool, holders = FilledPool("beside-leases"), FilledPool("leased")
    leased = max(50, int(LEASED * sizes.scale))
    pool.grow(SMALL)
    holders.grow(leased + SMALL)
    workers = [
        WorkerFactory(slug=f"holder-{number}", pool__slug=holders.name, capacity=tenants.MOST_HELD)
        for number in range(-(-leased // tenants.MOST_HELD))
    ]
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(2 * LEASED_TURNS + 1):
        held = _hold(workers, leased) if turn % 2 else []
        _vacuum()
        _warm_up(pool)
        seconds[bool(held)] += [pool.claim() for _ in range(max(ROUND, sizes.samples // LEASED_TURNS))]
        for worker, lease_ulid in held:
            heartbeat.release(lease_ulid=lease_ulid, worker=worker)
    medians = {is_leased: round(statistics.median(found) * 1000, 3) for is_leased, found in seconds.items()}
    return [Point(leased, medians[True], medians[False])]


def _hold(workers: list[Worker], number: int) -> list[tuple[Worker, str]]:
    """Let the workers claim so many jobs, and return the leases."""
    held = []
    for place in range(number):
        worker = workers[place // tenants.MOST_HELD]
        claimed = claiming.claim(worker=worker, offer=offer(worker, job_types=("steps",)))
        assert claimed is not None, worker.slug
        held.append((worker, claimed.lease.lease_ulid))
    return held


def _scaled(steps: tuple[int, ...], sizes: Sizes) -> list[int]:
    """The steps up to the largest that this form measures, which is always one of them."""
    largest = max(steps[0], int(steps[-1] * sizes.scale))
    return [step for step in steps if step < largest] + [largest]


def _compared(small: FilledPool, large: FilledPool, size: int, samples: int) -> Point:
    _vacuum()
    seconds: dict[str, list[float]] = {small.name: [], large.name: []}
    for pool in (small, large):
        _warm_up(pool)
    for _ in range(max(1, samples // ROUND)):
        for pool in (small, large):
            seconds[pool.name] += [pool.claim() for _ in range(ROUND)]
    medians = {name: statistics.median(found) * 1000 for name, found in seconds.items()}
    return Point(size, round(medians[large.name], 3), round(medians[small.name], 3))


def _vacuum() -> None:
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE runtime_jobs, runtime_worker_leases, lanes, lane_queues, lane_profiles")


def _warm_up(pool: FilledPool) -> None:
    for _ in range(ROUND):  # plans, and pages in memory
        pool.claim()
