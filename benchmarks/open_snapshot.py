"""Measures the pages that a claim reads while another transaction keeps a snapshot open, as a backup does for an hour.

No vacuum may remove the row versions that jobs leave behind meanwhile. A REPEATABLE READ transaction is held while so
many jobs are submitted, claimed and completed, then it ends and the tables are vacuumed. Counted are the pages that the
statement of a claim reads, by EXPLAIN in a transaction that is rolled back: a count, which no load of the machine
changes. A few tenants have waiting jobs all the time, so that lanes and queues have a head that moves.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from django.db import connection, transaction

from benchmarks import tenants
from benchmarks.environment import Cluster
from benchmarks.sizes import Sizes
from leases.scheduling.generations import Generations
from orchestrator.services import claiming, job_end
from orchestrator.services.submission import submit
from runtime_jobs.specs import JOB_TYPES
from tests.factories import ALICE, TIMINGS, PoolFactory, WorkerFactory, offer, steps_spec, submission
from workers.models import Worker

POOL = "open-snapshot"
ENDED = 100_000  # jobs that end under the snapshot, scaled
TENANTS = 4
WAITING = 50  # jobs of each
SAMPLES = 15
POINTS = 8
TABLES = (
    *("runtime_jobs", "runtime_worker_leases", "workers_worker", "lanes", "lane_heads", "lane_queues", "queue_heads"),
    *("lane_profiles", "lane_generations", "lane_limit_slots"),
)
JOBS_A_ROUND = 150  # of the scheduler process, about as many as end in a second


def measure(cluster: Cluster, sizes: Sizes, _before: dict[str, Any]) -> dict[str, Any]:
    """Return `open_snapshot`: pages of a claim by the jobs that have ended, and `open_snapshot_pages`, their ratio."""
    scene = Scene()
    ended = max(POINTS, int(ENDED * sizes.scale))
    scene.run(2 * WAITING)  # plans, and a first turn of each tenant
    with snapshot(cluster.url()):
        points = [(0, scene.pages())]
        for _ in range(POINTS):
            scene.run(ended // POINTS)
            points.append((scene.ended, scene.pages()))
        by_relation = scene.pages_by_relation(cluster)
    vacuum()
    vacuumed = scene.pages()
    return {
        "open_snapshot": {"points": points, "vacuumed": vacuumed, "largest": by_relation},
        "open_snapshot_pages": round(points[-1][1] / vacuumed, 2),
    }


class Scene:
    """Represents a pool in which a few tenants have waiting jobs, and one worker that runs them."""

    def __init__(self) -> None:
        pool = PoolFactory(slug=POOL, policy="fifo")
        self.worker: Worker = WorkerFactory(slug=POOL, pool=pool, capacity=tenants.MOST_HELD)
        self.offer = offer(self.worker, job_types=("steps",))
        self.projects = [tenants.project(f"{POOL}-{number}", POOL) for number in range(TENANTS)]
        self.generations = Generations()
        self.submitted = self.ended = 0
        for _ in range(TENANTS * WAITING):
            self._submit()

    def run(self, jobs: int) -> None:
        """Submit, claim and complete so many jobs, one after the other."""
        for _ in range(jobs):
            self._submit()
            lease = self._claim()
            job_end.complete(lease_ulid=lease.lease_ulid, worker=self.worker, exit_code=0, result={})
            self.ended += 1
            if self.ended % JOBS_A_ROUND == 0:  # the one task of the scheduler process that these pages depend on
                self.generations.renew()

    def pages(self) -> int:
        """Return the median of the pages that a claim reads."""
        return int(statistics.median(self._explained() for _ in range(SAMPLES)))

    def pages_by_relation(self, cluster: Cluster) -> dict[str, float]:
        """Return the relations of which a claim reads most pages, with their number."""
        before = _read_pages(cluster)
        for _ in range(SAMPLES):
            self._explained()
        difference = Counter(_read_pages(cluster))
        difference.subtract(before)
        return {name: round(pages / SAMPLES, 1) for name, pages in difference.most_common(8)}

    def _submit(self) -> None:
        project = self.projects[self.submitted % TENANTS]
        policy = JOB_TYPES["steps"].policy(**TIMINGS)
        submit(submission(project, steps_spec()), policy=policy, default_pool=POOL, actor=ALICE)
        self.submitted += 1

    def _claim(self) -> Any:
        claimed = claiming.claim(worker=self.worker, offer=self.offer)
        assert claimed is not None
        return claimed.lease

    def _explained(self) -> int:
        """Return the pages of one claim, which is undone."""
        with transaction.atomic():
            with explained() as pages:
                self._claim()
            transaction.set_rollback(True)
        return sum(pages)


@contextmanager
def snapshot(url: str) -> Iterator[None]:
    """Keep a snapshot open."""
    with psycopg.connect(url, options="-c idle_in_transaction_session_timeout=0") as other:
        other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        other.execute("SELECT count(*) FROM lane_profiles")
        yield
        other.rollback()


@contextmanager
def explained() -> Iterator[list[int]]:
    """Explain each claim before it is executed. Yields the list of their pages."""
    found: list[int] = []

    def explain(execute: Any, sql: str, params: Sequence[Any], many: bool, context: dict[str, Any]) -> Any:
        if " claim(" in sql:
            with transaction.atomic():
                plan = context["cursor"].connection.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}", params)
                (top,) = plan.fetchone()[0] if not isinstance(plan, str) else json.loads(plan)
                found.append(top["Plan"]["Shared Hit Blocks"] + top["Plan"]["Shared Read Blocks"])
                transaction.set_rollback(True)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(explain):
        yield found


def vacuum() -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"VACUUM ANALYZE {', '.join(TABLES)}")


def _read_pages(cluster: Cluster) -> dict[str, int]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_force_next_flush()")
        cursor.execute("SELECT 1")
    with cluster.superuser() as session:
        return dict(
            session.execute(
                "SELECT relname, heap_blks_hit + heap_blks_read FROM pg_statio_user_tables"
                " UNION ALL SELECT indexrelname, idx_blks_hit + idx_blks_read FROM pg_statio_user_indexes"
            ).fetchall()
        )
