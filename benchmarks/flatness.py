"""What a claim costs with little and with much that waits: 1,000 and 1,000,000 jobs, 1 and 10,000 lanes, with 100,000
jobs of a full tenant ahead. `python -m benchmarks.flatness`; SCALE=0.1 for a tenth of it.

Every figure is the median of claims through the verb, in this process, on a database of its own that is dropped at the
end. The pairs are measured in turns, so that a machine that grows slower does so for both sides."""

import json
import os
import statistics
import sys
import time
from dataclasses import dataclass

import django
from django.test.utils import setup_databases, teardown_databases

from config.embedded_postgres import ensure_unless_given

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
django.setup()

from django.db import connection  # noqa: E402 the settings come first
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from orchestrator import lifecycle  # noqa: E402
from runtime_jobs.models import Job  # noqa: E402
from tests.factories import (  # noqa: E402
    OPERATOR,
    OrganizationFactory,
    PoolFactory,
    ProjectFactory,
    WorkerFactory,
    offer,
    submitted,
)

SCALE = float(os.environ.get("SCALE", "1"))
CLAIMS = 300
ROUND = 25


@dataclass
class Scene:
    """A pool with what waits in it, and a worker without a limit of its own."""

    name: str
    jobs: int
    lanes: int = 1
    blocked: int = 0

    def build(self) -> None:
        PoolFactory(slug=self.name)
        self.worker = WorkerFactory(slug=self.name, pool__slug=self.name, capacity=256)
        if self.blocked:
            _fill(self.name, "full", self.blocked)
            lifecycle.set_limit(org_slug="full", max_active=0, by=OPERATOR, reason="benchmark")
        each = max(1, self.jobs // self.lanes)
        for lane in range(self.lanes):
            _fill(self.name, f"{self.name}-{lane}", each)

    def claim(self) -> float:
        started = time.perf_counter()
        claimed = lifecycle.claim(worker=self.worker, offer=offer(self.worker))
        seconds = time.perf_counter() - started
        assert claimed is not None, self.name
        lifecycle.release(lease_ulid=claimed.lease.lease_ulid, worker=self.worker)
        Job.objects.filter(pk=claimed.job.pk).update(release_count=0)
        return seconds


def _fill(pool: str, org: str, jobs: int) -> None:
    """One job by the verb, the others as its copies: the columns are those of real jobs."""
    project = ProjectFactory(organization=OrganizationFactory(slug=org), pool=pool)
    first = submitted(project)
    if jobs == 1:
        return
    names = [field.column for field in Job._meta.concrete_fields if not field.generated]  # noqa: SLF001 Django's name
    unique = {"id": "nextval('runtime_jobs_id_seq')", "job_ulid": "'rtj_' || lpad(id::text || 'x' || n, 26, '0')"}
    columns = ", ".join(f'"{name}"' for name in names)
    values = ", ".join(unique.get(name, f'"{name}"') for name in names)
    with connection.cursor() as cursor:
        cursor.execute("SET statement_timeout = 0")
        cursor.execute(
            f"INSERT INTO runtime_jobs ({columns}) SELECT {values} FROM runtime_jobs, generate_series(2, %s) n"
            " WHERE id = %s",
            [jobs, first.pk],
        )


def compare(small: Scene, large: Scene) -> tuple[float, float]:
    """Median seconds of a claim in each, measured in turns."""
    for scene in (small, large):
        scene.build()
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE runtime_jobs, lanes, lane_queues, lane_profiles")
    seconds: dict[str, list[float]] = {small.name: [], large.name: []}
    for _ in range(CLAIMS // ROUND):
        for scene in (small, large):
            seconds[scene.name] += [scene.claim() for _ in range(ROUND)]
    return statistics.median(seconds[small.name]), statistics.median(seconds[large.name])


def scaled(number: int) -> int:
    return max(1, int(number * SCALE))


PAIRS = {
    "flat_jobs": (Scene("few-jobs", 1000), Scene("many-jobs", scaled(1_000_000))),
    "flat_lanes": (Scene("one-lane", 1000), Scene("many-lanes", scaled(10_000), lanes=scaled(10_000))),
    "blocked_ahead": (Scene("free", 1000), Scene("behind", 1000, blocked=scaled(100_000))),
}


def main() -> int:
    ensure_unless_given()
    databases = setup_databases(verbosity=0, interactive=False)
    table = Table("figure", "small", "large", "ratio", title="A claim, median")
    figures = {}
    try:
        for name, (small, large) in PAIRS.items():
            before, after = compare(small, large)
            figures[name] = round(after / before, 2)
            table.add_row(name, f"{before * 1000:.2f} ms", f"{after * 1000:.2f} ms", f"{after / before:.2f}")
    finally:
        teardown_databases(databases, verbosity=0)
    Console(stderr=True).print(table)
    sys.stdout.write(json.dumps(figures) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
