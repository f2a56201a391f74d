"""Lanes: which one a job belongs to, and the calls of the functions in `leases/sql` that keep them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from django.db import connection, transaction

from leases.advisory_locks import JOBS_OF_ADDRESS, QUEUES_OF_ORGANIZATION, advisory_xact_lock
from leases.models import Lane, LaneProfile, LaneQueue, LimitKind, LimitScope
from leases.scheduling import submit_quotas
from leases.scheduling.fair_share import ensure_share
from leases.scheduling.limit_attachment import limits_for_lane, limits_for_queue
from leases.scheduling.limits import KeyRoom, LimitTarget, set_limit
from leases.scheduling.plan_limits import sync_plan_limits
from runtime_jobs.models import Job

# Jobs of that priority and more are counted by the limit, not held (document 002).
BELOW = {LimitKind.SOURCE_ADDRESS: 100, LimitKind.CONCURRENCY: None}
SQL = Path(__file__).parent.parent / "sql"
# In the order in which one calls another.
FUNCTIONS = (
    *("lanes_tokens", "submit_quota_waiting", "submit_quota"),
    *("lanes_room", "lanes_full", "lanes_hold", "lanes_take", "lanes_rank", "lanes_charge", "lanes_hand_on"),
    *("lanes_settle", "lanes_show", "lanes_keep", "lanes_end", "lanes_prune", "lanes_due", "lanes_behind"),
    "lanes_advance",
)


@cache
def sql(name: str) -> str:
    return (SQL / f"{name}.sql").read_text()


def install() -> None:
    """Create or replace the functions; called after every migrate, so that they are those of this code."""
    with transaction.atomic(), connection.cursor() as cursor:  # all or none: they call each other
        for name in FUNCTIONS:
            cursor.execute(sql(name))


def get_lane(job: Job) -> int:
    """Return the lane that jobs like this one share; it is made when the first of them comes, and pruned when it has
    been empty for a while. So a transaction that puts a job into it ends with `lanes_end` or `lanes_keep`."""
    alike: list[Any] = [job.pool, job.priority, job.org_slug, job.project_slug, _address(job), job.concurrency_key]
    with connection.cursor() as cursor:
        cursor.execute(sql("lane_of"), [*alike, job.job_type, job.least_isolation, sorted(job.requirements)])
        found = cursor.fetchone()
    return found[0] if found else _new_lane(job)


def _address(job: Job) -> str:
    """Where the job came from, if that limits it."""
    return str(job.source_address or "") if job.limited_by_address else ""


def _new_lane(job: Job) -> int:
    advisory_xact_lock(
        QUEUES_OF_ORGANIZATION, job.org_slug
    )  # who puts a limit on the organization finds this lane, or waits
    ensure_share(job.pool, job.org_slug)
    sync_plan_limits(job.org_slug)
    queue = _queue_of(job)
    narrower = {"source_address": _address(job), "concurrency_key": job.concurrency_key}
    _limit_once(LimitTarget(LimitScope.ADDRESS, "", narrower["source_address"]), LimitKind.SOURCE_ADDRESS)
    _limit_once(LimitTarget(LimitScope.KEY, job.org_slug, job.concurrency_key), LimitKind.CONCURRENCY)
    alike = {"project_slug": job.project_slug} | narrower
    limits = limits_for_lane(org_slug=job.org_slug, **alike)
    lane, _ = Lane.objects.get_or_create(queue_id=queue.pk, **alike, defaults={"limits": limits})
    return lane.pk


def _queue_of(job: Job) -> LaneQueue:
    profile, _ = LaneProfile.objects.get_or_create(
        job_type=job.job_type, least_isolation=job.least_isolation, requirements=sorted(job.requirements)
    )
    alike = {"pool": job.pool, "profile_id": profile.pk, "org_slug": job.org_slug, "priority": job.priority}
    limits = limits_for_queue(org_slug=job.org_slug, job_type=job.job_type, priority=job.priority)
    queue, _ = LaneQueue.objects.get_or_create(**alike, defaults={"tier": job.priority, "limits": limits})
    return queue


def _limit_once(subject: LimitTarget, kind: LimitKind) -> None:
    """One job at a time of those that came from one address, or that name one key."""
    if not subject.key:
        return
    if subject.scope == LimitScope.ADDRESS:
        advisory_xact_lock(
            JOBS_OF_ADDRESS, subject.key
        )  # no claim takes a job from there that this limit would not know of
    if subject.limit(kind) is None:
        if subject.scope == LimitScope.KEY:
            KeyRoom([(subject.org_slug, subject.key)]).take(subject.org_slug, subject.key)
        set_limit(kind, subject, max_active=1, binds_below=BELOW[kind])


@dataclass
class LaneUpdates:
    """What a transaction has to tell the lanes as its last statement: jobs that wait (again), jobs held no more."""

    entered: list[tuple[int, int, datetime]] = field(default_factory=list)  # job, lane, created_at
    freed: list[int] = field(default_factory=list)
    taken: "ClaimResult | None" = None
    kept: list[int] = field(default_factory=list)  # lanes of jobs that do not wait there yet
    arrivals: dict[str, submit_quotas.Arrivals] = field(default_factory=dict)  # new waiting jobs, by organization

    def arrived(self, org_slug: str) -> None:
        """Count one more waiting job of the organization."""
        self.arrivals.setdefault(org_slug, submit_quotas.Arrivals()).jobs += 1

    def enforce(self, org_slug: str, terms: submit_quotas.QuotaTerms) -> None:
        """Refuse the new waiting jobs of the organization if its quota is short when the transaction ends."""
        self.arrivals.setdefault(org_slug, submit_quotas.Arrivals()).terms = terms

    @property
    def again(self) -> bool:
        return self.taken is not None and self.taken.again

    def tell(self) -> None:
        if self.taken:
            self.taken.settle()
        arrived = sorted((org_slug, arrivals) for org_slug, arrivals in self.arrivals.items() if arrivals.jobs)
        parts = [
            submit_quotas.take(org_slug, arrivals) for org_slug, arrivals in arrived
        ]  # evaluated from left to right
        if self.entered or self.freed:
            jobs, lanes, ats = [list(column) for column in zip(*self.entered, strict=True)] or [[], [], []]
            values: list[Any] = [self.freed, jobs, lanes, ats]
            parts.append(("lanes_end(%s::bigint[], %s::bigint[], %s::integer[], %s::timestamptz[])", values))
        if self.kept:
            parts.append(("lanes_keep(%s::integer[])", [self.kept]))
        if not parts:
            return
        with submit_quotas.short_quotas(), connection.cursor() as cursor:
            cursor.execute(
                f"SELECT {', '.join(call for call, _ in parts)}", [value for _, values in parts for value in values]
            )


@dataclass(frozen=True)
class ClaimResult:
    """What a claim found. `jobs` are ids of `runtime_jobs`; the rest is for `settle`."""

    jobs: list[int]
    rows: Sequence[tuple[str, int, int]]

    @property
    def is_due(self) -> bool:
        """Nothing was found, but somebody's time has come."""
        return any(what == "due" for what, _, _ in self.rows)

    @property
    def again(self) -> bool:
        """Nothing was found, and it could not be told that there is nothing: worth a second try at once."""
        return any(what in {"due", "again"} for what, _, _ in self.rows)

    def settle(self) -> None:
        """Write down what was found to be over: the last statement of the claim."""
        if self.is_due:
            activate_due()
            return
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


@dataclass(frozen=True)
class ProfileFilter:
    """Which profiles a worker is good enough for: those of these job types that ask for one of these isolations, and
    for nothing beyond what it offers."""

    job_types: list[str]
    isolations: list[str]
    offers: list[str]


_TAKE = """SELECT * FROM lanes_take(
    %s,
    ARRAY(SELECT id::integer FROM lane_profiles WHERE job_type = ANY (%s::text[]) AND least_isolation = ANY (%s::text[])
             AND requirements <@ %s::varchar[]),
    %s, %s)"""


def claim(*, pool: str, fitting: ProfileFilter, worker_id: str, most: int) -> ClaimResult:
    """Move up to `most` of the next jobs to `leased`, each under a new fence."""
    with connection.cursor() as cursor:
        cursor.execute(_TAKE, [pool, fitting.job_types, fitting.isolations, fitting.offers, worker_id, most])
        rows = cursor.fetchall()
    return ClaimResult([key for what, key, _ in rows if what == "job"], rows)


def activate_due(*, most: int = 200) -> int:
    """Put back into the choice what was held until a time that has come. Returns how much."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT lanes_due(%s)", [most])
        return int(cursor.fetchone()[0])


def apply_aging(*, most: int = 500) -> int:
    """Lift the priority of what has waited long. Returns how many queues."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT lanes_age(%s)", [most])
        return int(cursor.fetchone()[0])


def stale_lanes(*, most: int = 50) -> list[int]:
    """Lanes whose bounds claims had no time to move."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT lanes_behind(%s)", [most])
        return [row[0] for row in cursor.fetchall()]


def advance_cursor(lane: int) -> None:
    """Let its bound catch up: a transaction of its own, since it waits for the guard."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT lanes_advance(%s)", [lane])


def notify_throttled_pools() -> None:
    """Call those who wait in pools where one may start now under the rate of a pool or a job type. The rates of
    organizations and projects say at their queues and lanes when that is."""
    with connection.cursor() as cursor:
        cursor.execute(sql("throttled"))
