"""Lanes: which one a job belongs to, and the calls of the functions in `leases/sql` that keep them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from django.db import connection

from leases.limits import limits_of_queue
from leases.models import Lane, LaneProfile, LaneQueue
from runtime_jobs.models import Job

SQL = Path(__file__).parent / "sql"
# In the order in which one calls another.
FUNCTIONS = ("lanes_take", "lanes_rank", "lanes_settle", "lanes_hand_on", "lanes_end", "lanes_behind", "lanes_advance")


@cache
def sql(name: str) -> str:
    return (SQL / f"{name}.sql").read_text()


def install() -> None:
    """Create or replace the functions; called after every migrate, so that they are those of this code."""
    with connection.cursor() as cursor:
        for name in FUNCTIONS:
            cursor.execute(sql(name))


def lane_of(job: Job) -> int:
    """Return the lane that jobs like this one share; it is made when the first of them comes, and never deleted."""
    alike: list[Any] = [job.pool, job.priority, job.org_slug, job.project_slug, job.job_type, job.least_isolation]
    with connection.cursor() as cursor:
        cursor.execute(sql("lane_of"), [*alike, sorted(job.requirements)])
        found = cursor.fetchone()
    return found[0] if found else _new_lane(job)


def _new_lane(job: Job) -> int:
    profile, _ = LaneProfile.objects.get_or_create(
        job_type=job.job_type, least_isolation=job.least_isolation, requirements=sorted(job.requirements)
    )
    queue, _ = LaneQueue.objects.get_or_create(
        pool=job.pool,
        profile_id=profile.pk,
        org_slug=job.org_slug,
        priority=job.priority,
        defaults={
            "tier": job.priority,
            "limits": lambda: limits_of_queue(org_slug=job.org_slug, job_type=job.job_type),  # type: ignore[misc]
        },
    )
    lane, _ = Lane.objects.get_or_create(
        queue_id=queue.pk, project_slug=job.project_slug, source_address="", concurrency_key=""
    )
    return lane.pk


@dataclass
class Ending:
    """What a transaction has to tell the lanes as its last statement: jobs that wait (again), jobs held no more."""

    entered: list[tuple[int, int, datetime]] = field(default_factory=list)  # job, lane, created_at
    freed: list[int] = field(default_factory=list)
    taken: "Taken | None" = None

    def tell(self) -> None:
        if self.taken:
            self.taken.settle()
        if not self.entered and not self.freed:
            return
        jobs, lanes, ats = [list(column) for column in zip(*self.entered, strict=True)] or [[], [], []]
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT lanes_end(%s::bigint[], %s::bigint[], %s::integer[], %s::timestamptz[])",
                [self.freed, jobs, lanes, ats],
            )


@dataclass(frozen=True)
class Taken:
    """What a claim found. `jobs` are ids of `runtime_jobs`; the rest is for `settle`."""

    jobs: list[int]
    rows: Sequence[tuple[str, int, int]]

    def settle(self) -> None:
        """Write down what was found to be over: the last statement of the claim."""
        lanes = [key for what, key, _ in self.rows if what == "lane"]
        if not self.rows:
            return
        found = [sum(1 for what, _, lane in self.rows if what == "job" and lane == key) for key in lanes]
        full_lanes = [(key, limit) for what, key, limit in self.rows if what == "lane_full"]
        full_queues = [(key, limit) for what, key, limit in self.rows if what == "queue_full"]
        columns = [lanes, found, *_columns(full_lanes), *_columns(full_queues)]
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT lanes_settle({', '.join(['%s::integer[]'] * 6)})", columns)


def _columns(pairs: Iterable[tuple[int, int]]) -> tuple[list[int], list[int]]:
    rows = list(pairs)
    return [first for first, _ in rows], [second for _, second in rows]


def take(*, pool: str, profiles: list[int], worker_id: str, most: int) -> Taken:
    """Move up to `most` of the next jobs to `leased`, each under a new fence."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT * FROM lanes_take(%s, %s::integer[], %s, %s)", [pool, profiles, worker_id, most])
        rows = cursor.fetchall()
    return Taken([key for what, key, _ in rows if what == "job"], rows)


def advance(*, most: int = 50) -> int:
    """Let the bounds of lanes catch up that claims had no time to move. Returns how many were looked at."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT lanes_behind(%s)", [most])
        behind = [row[0] for row in cursor.fetchall()]
    for lane in behind:
        with connection.cursor() as cursor:  # a transaction each: it waits for the guard
            cursor.execute("SELECT lanes_advance(%s)", [lane])
    return len(behind)
