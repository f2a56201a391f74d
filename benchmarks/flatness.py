"""Measures a claim with few and with many waiting jobs.

Up to 1,000,000 jobs, 10,000 lanes, and 100,000 jobs of a full tenant ahead. Each figure is the median of claims through
the operation, in this process. At every size the small scenario is measured in turns with the large one, so that a
machine that becomes slower does so for both.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any

from django.db import connection

from benchmarks import lists, plot, tenants
from benchmarks.environment import Stage
from benchmarks.sizes import Sizes
from orchestrator import services
from runtime_jobs.models import Job
from tests.factories import PoolFactory, WorkerFactory, offer
from workers.models import Worker

SMALL = 1_000
BACKLOGS = (1_000, 10_000, 100_000, 1_000_000)
LANES = (1, 10, 100, 1_000, 10_000)
BLOCKED = 100_000
ROUND = 25


@dataclass
class Scene:
    """A pool with what waits in it, and a worker without a limit of its own. It only grows."""

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
        claimed = services.claim(worker=self.worker, offer=offer(self.worker, job_types=("steps",)))
        seconds = time.perf_counter() - started
        assert claimed is not None, self.name
        services.release(lease_ulid=claimed.lease.lease_ulid, worker=self.worker)
        Job.objects.filter(pk=claimed.job.pk).update(release_count=0)
        return seconds


@dataclass(frozen=True)
class Point:
    """Milliseconds of a claim: with so many waiting, and in the small scene at the same time."""

    size: int
    large: float
    small: float

    @property
    def ratio(self) -> float:
        return round(self.large / self.small, 2)


def measure(_stage: Stage, sizes: Sizes, _before: dict[str, Any]) -> dict[str, Any]:
    """Return `flat_jobs`, `flat_lanes` and `blocked_ahead`: the largest against the small, 1.0 is flat.

    `flatness` has the points, `lists` the pages while all those jobs exist.
    """
    curves = {"flat_jobs": _backlog(sizes), "flat_lanes": _lanes(sizes), "blocked_ahead": _blocked(sizes)}
    pictures = {
        "claim-cost-backlog": plot.Chart("A claim's cost, by the jobs that wait", "jobs", curves["flat_jobs"]),
        "claim-cost-lanes": plot.Chart("A claim's cost, by the lanes that have jobs", "lanes", curves["flat_lanes"]),
    }
    return {
        **{name: points[-1].ratio for name, points in curves.items()},
        "flatness": {name: [vars(point) for point in points] for name, points in curves.items()},
        "lists": lists.pages("many-jobs-0"),
        "pictures": {name: chart.drawn() for name, chart in pictures.items()},
    }


def _backlog(sizes: Sizes) -> list[Point]:
    small, large = Scene("few-jobs"), Scene("many-jobs")
    small.grow(SMALL)
    found = []
    for jobs in _scaled(BACKLOGS, sizes):
        large.grow(jobs)
        found.append(_compared(small, large, jobs, sizes.samples))
    return found


def _lanes(sizes: Sizes) -> list[Point]:
    small, large = Scene("one-lane"), Scene("many-lanes")
    small.grow(SMALL)
    found = []
    large.grow(SMALL)
    for lanes in _scaled(LANES, sizes):
        large.widen(lanes)
        found.append(_compared(small, large, lanes, sizes.samples))
    return found


def _blocked(sizes: Sizes) -> list[Point]:
    """The tenant that may run nothing is older than who is served, so all its jobs are ahead."""
    small, large = Scene("free"), Scene("behind")
    small.grow(SMALL)
    blocked = max(1, int(BLOCKED * sizes.scale))
    tenants.fill("full", large.name, blocked, events=False)
    tenants.limited("full", 0)
    large.grow(SMALL)
    return [_compared(small, large, blocked, sizes.samples)]


def _scaled(steps: tuple[int, ...], sizes: Sizes) -> list[int]:
    """The steps up to the largest that this form measures, which is always one of them."""
    largest = max(steps[0], int(steps[-1] * sizes.scale))
    return [step for step in steps if step < largest] + [largest]


def _compared(small: Scene, large: Scene, size: int, samples: int) -> Point:
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE runtime_jobs, lanes, lane_queues, lane_profiles")
    seconds: dict[str, list[float]] = {small.name: [], large.name: []}
    for scene in (small, large):  # once unmeasured: plans and pages
        for _ in range(ROUND):
            scene.claim()
    for _ in range(max(1, samples // ROUND)):
        for scene in (small, large):
            seconds[scene.name] += [scene.claim() for _ in range(ROUND)]
    medians = {name: statistics.median(took) * 1000 for name, took in seconds.items()}
    return Point(size, round(medians[large.name], 3), round(medians[small.name], 3))
