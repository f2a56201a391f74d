"""Lanes: find or create the lane of a job, and write the lane updates of an operation."""

import json
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from django.db import connection

from leases.advisory_locks import JOBS_OF_ADDRESS, QUEUES_OF_ORGANIZATION, advisory_xact_lock
from leases.models import Lane, LaneHead, LaneProfile, LaneQueue, LimitKind, LimitScope, QueueHead
from leases.scheduling import submit_quotas
from leases.scheduling.fair_share import ensure_share
from leases.scheduling.limit_attachment import limits_for_lane, limits_for_queue
from leases.scheduling.limits import KeyRoom, LimitTarget, set_limit
from leases.scheduling.plan_limits import sync_plan_limits
from leases.scheduling.reused_ids import get_or_create
from runtime_jobs.models import Job

# Jobs of this priority or a higher one are counted by the limit, not stopped (document 002).
BINDS_BELOW = {LimitKind.SOURCE_ADDRESS: 100, LimitKind.CONCURRENCY: None}

_LANES = """lane_profiles p
  JOIN lane_queues q ON q.profile_id = p.id
  JOIN lanes l ON l.queue_id = q.id"""
_FIND_LANE = f"""
SELECT l.id
  FROM {_LANES}
 WHERE q.pool = %s AND q.priority = %s AND q.org_slug = %s
   AND l.project_slug = %s AND l.source_address = %s AND l.concurrency_key = %s
   AND p.job_type = %s AND p.least_isolation = %s AND p.requirements = %s::varchar[]"""  # noqa: S608 our own text
# LIMIT keeps the planner from a join of all lanes: it estimates the arrays at ten rows at least.
_FIND_LANES = f"""
SELECT k.n, lane.id
  FROM unnest(%s::text[], %s::integer[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[],
              %s::text[])
       WITH ORDINALITY AS k(pool, priority, org, project, address, key, job_type, isolation, requirements, n)
 CROSS JOIN LATERAL (
       SELECT l.id
         FROM {_LANES}
        WHERE q.pool = k.pool AND q.priority = k.priority AND q.org_slug = k.org
          AND l.project_slug = k.project AND l.source_address = k.address AND l.concurrency_key = k.key
          AND p.job_type = k.job_type AND p.least_isolation = k.isolation
          AND p.requirements = ARRAY(SELECT json_array_elements_text(k.requirements::json))::varchar[]
        LIMIT 1) lane"""  # noqa: S608 our own text


class LaneKey(NamedTuple):
    """The values that determine a lane.

    Attributes:
        pool: The slug of the pool.
        priority: The priority of the jobs.
        org_slug: Their organization.
        project_slug: Their project.
        source_address: Their source address if a limit of that address applies to them, else an empty string.
        concurrency_key: Their concurrency key, or an empty string.
        job_type: Their type.
        least_isolation: Their minimum isolation.
        requirements: The capabilities that they need, sorted.
    """

    pool: str
    priority: int
    org_slug: str
    project_slug: str
    source_address: str
    concurrency_key: str
    job_type: str
    least_isolation: str
    requirements: tuple[str, ...]

    @classmethod
    def of(cls, job: Job) -> "LaneKey":
        """Return the key of the lane that jobs like this one share."""
        return cls(
            job.pool,
            job.priority,
            job.org_slug,
            job.project_slug,
            _address(job),
            job.concurrency_key,
            job.job_type,
            job.least_isolation,
            tuple(sorted(job.requirements)),
        )


def find_lanes(keys: Collection[LaneKey]) -> dict[LaneKey, int]:
    """Return the ids of the lanes that exist, with one statement.

    A lane is pruned when it has been empty for a while: see `get_lane`.
    """
    if not keys:
        return {}
    named = list(keys)
    columns = [list(column) for column in zip(*named, strict=True)]
    columns[-1] = [json.dumps(requirements) for requirements in columns[-1]]
    with connection.cursor() as cursor:
        cursor.execute(_FIND_LANES, columns)
        return {named[n - 1]: lane for n, lane in cursor.fetchall()}


def get_lane(job: Job) -> int:
    """Return the id of the lane that jobs like this one share; create the lane for the first of them.

    A lane is pruned when it has been empty for a while. A transaction that puts a job into the lane must therefore end
    with the lanes of `write_changes`, which checks that the lane still exists.
    """
    key = LaneKey.of(job)
    with connection.cursor() as cursor:
        cursor.execute(_FIND_LANE, [*key[:-1], list(key.requirements)])
        found = cursor.fetchone()
    return found[0] if found else _create_lane(job)


def _address(job: Job) -> str:
    """Return the source address if a limit of that address applies to the job, else an empty string."""
    return str(job.source_address or "") if job.limited_by_address else ""


def _create_lane(job: Job) -> int:
    # A transaction that puts a limit on the organization sees this lane, or waits for this transaction.
    advisory_xact_lock(QUEUES_OF_ORGANIZATION, job.org_slug)
    ensure_share(job.pool, job.org_slug)
    sync_plan_limits(job.org_slug)
    queue = _get_or_create_queue(job)
    key = {"source_address": _address(job), "concurrency_key": job.concurrency_key}
    _ensure_limit(LimitTarget(LimitScope.ADDRESS, "", key["source_address"]), LimitKind.SOURCE_ADDRESS)
    _ensure_limit(LimitTarget(LimitScope.KEY, job.org_slug, job.concurrency_key), LimitKind.CONCURRENCY)
    attributes = {"project_slug": job.project_slug} | key
    limits = limits_for_lane(org_slug=job.org_slug, **attributes)
    lane, is_new = get_or_create(Lane, queue_id=queue.pk, **attributes, defaults={"limits": limits})
    if is_new:
        LaneHead.objects.create(lane_id=lane.pk, queue_id=queue.pk)
    return lane.pk


def _get_or_create_queue(job: Job) -> LaneQueue:
    profile, _ = LaneProfile.objects.get_or_create(
        job_type=job.job_type, least_isolation=job.least_isolation, requirements=sorted(job.requirements)
    )
    attributes = {"pool": job.pool, "profile_id": profile.pk, "org_slug": job.org_slug, "priority": job.priority}
    limits = limits_for_queue(org_slug=job.org_slug, job_type=job.job_type, priority=job.priority)
    queue, is_new = get_or_create(LaneQueue, **attributes, defaults={"limits": limits})
    if is_new:
        QueueHead.objects.create(queue_id=queue.pk, pool=job.pool, profile_id=profile.pk, tier=job.priority)
    return queue


def _ensure_limit(subject: LimitTarget, kind: LimitKind) -> None:
    """Limit the jobs from one address, or with one concurrency key, to one at a time."""
    if not subject.key:
        return
    if subject.scope == LimitScope.ADDRESS:
        # Without this lock a claim could start a job from the address that the new limit does not count.
        advisory_xact_lock(JOBS_OF_ADDRESS, subject.key)
    if subject.limit(kind) is None:
        if subject.scope == LimitScope.KEY:
            KeyRoom([(subject.org_slug, subject.key)]).take(subject.org_slug, subject.key)
        set_limit(kind, subject, max_active=1, binds_below=BINDS_BELOW[kind])


@dataclass
class LaneUpdates:
    """The changes that the last statement of a transaction writes to the lanes.

    Attributes:
        entered: Jobs that wait (again): id, lane, `created_at`.
        freed: Ids of jobs that are no longer leased.
        kept: Lanes of new jobs that are blocked, so not waiting there yet.
        arrivals: New waiting jobs, by organization.
    """

    entered: list[tuple[int, int, datetime]] = field(default_factory=list)
    freed: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    arrivals: dict[str, submit_quotas.Arrivals] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.entered or self.freed or self.kept or self.arrivals)

    def arrived(self, org_slug: str) -> None:
        """Count one more waiting job of the organization."""
        self.arrivals.setdefault(org_slug, submit_quotas.Arrivals()).jobs += 1

    def enforce(self, org_slug: str, terms: submit_quotas.QuotaTerms) -> None:
        """Refuse the new waiting jobs of the organization if its quota is short when the transaction ends."""
        self.arrivals.setdefault(org_slug, submit_quotas.Arrivals()).terms = terms
