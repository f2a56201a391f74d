"""Reads the jobs on which a job depends and those that depend on it, as a graph of at most `MAX_NODES` jobs."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

from django.db import connection
from django.db.models import Q

from runtime_jobs.models import Dependency, Job

MAX_NODES: Final = 200

# A recursive query returns its rows level by level, so the limit keeps the nearest jobs. UNION reads each job once.
_REACHED = """
WITH RECURSIVE reached(job_ulid) AS (
    SELECT %(root)s::varchar
     UNION
    SELECT d.{target} FROM reached r JOIN runtime_job_dependencies d ON d.{source} = r.job_ulid)
SELECT job_ulid FROM reached LIMIT %(limit)s"""
# The oldest dependencies of each job in both directions: of a job by what it waits for, and by what waits for it.
_NEIGHBOURS = """
SELECT wanted.root, d.on_job_ulid, true, d.id
  FROM unnest(%(before)s::text[], %(before_limits)s::integer[]) AS wanted(root, number)
 CROSS JOIN LATERAL (SELECT on_job_ulid, id FROM runtime_job_dependencies
                      WHERE job_ulid = wanted.root ORDER BY id LIMIT wanted.number) d
 UNION ALL
SELECT wanted.root, d.job_ulid, false, d.id
  FROM unnest(%(after)s::text[], %(after_limits)s::integer[]) AS wanted(root, number)
 CROSS JOIN LATERAL (SELECT job_ulid, id FROM runtime_job_dependencies
                      WHERE on_job_ulid = wanted.root ORDER BY id LIMIT wanted.number) d
 ORDER BY 4"""
_BEFORE = _REACHED.format(source="job_ulid", target="on_job_ulid")
_AFTER = _REACHED.format(source="on_job_ulid", target="job_ulid")


class Edge(NamedTuple):
    """A dependency between two jobs, by their root ids.

    Attributes:
        job: The job that waits.
        on: The job that comes first.
        needs_success: Without it any end of `on` is enough.
    """

    job: str
    on: str
    needs_success: bool


@dataclass(frozen=True)
class DependencyGraph:
    """Jobs that are linked with one job by dependencies.

    Attributes:
        root: The root id of this one job.
        jobs: The newest attempt of each job, by root id.
        edges: The dependencies between these jobs.
        is_truncated: Whether there are more jobs.
    """

    root: str
    jobs: Mapping[str, Job]
    edges: Sequence[Edge]
    is_truncated: bool

    def seconds_of(self, job: Job, now: datetime) -> float:
        """Return for how long a job has run until its end, or until now. 0: it has not started."""
        if job.started_at is None:
            return 0.0
        return max(0.0, ((job.finished_at or now) - job.started_at).total_seconds())

    def critical_path(self, now: datetime) -> list[str]:
        """Return the chain of dependencies that has taken longest, in order. Of equal ones the one with more jobs.

        Args:
            now: The present time, for jobs that run.
        """
        before = defaultdict(list)
        for edge in self.edges:
            before[edge.job].append(edge.on)
        best: dict[str, tuple[float, int]] = {}
        previous: dict[str, str] = {}
        for root in self._in_order(before):
            longest, length = 0.0, 0
            for on in before[root]:
                if best[on] > (longest, length):
                    (longest, length), previous[root] = best[on], on
            best[root] = (longest + self.seconds_of(self.jobs[root], now), length + 1)
        end = max(best, key=lambda root: (*best[root], root))
        path = [end]
        while path[-1] in previous:
            path.append(previous[path[-1]])
        return path[::-1]

    def _in_order(self, before: Mapping[str, Sequence[str]]) -> list[str]:
        """Return the root ids so that each job follows those on which it depends. There are no cycles."""
        order: dict[str, None] = {}
        for root in self.jobs:
            waiting = [root]
            while waiting:
                job = waiting[-1]
                missing = [on for on in before.get(job, ()) if on not in order]
                if missing:
                    waiting += missing
                else:
                    order[job] = None
                    waiting.pop()
        return list(order)


def graph_of(job: Job, *, limit: int = MAX_NODES) -> DependencyGraph:
    """Return the graph of a job, with four queries.

    Args:
        job: Any attempt of the job.
        limit: The maximum number of jobs.
    """
    root = job.root_job_ulid
    before, after = (_reached(query, root, limit + 1) for query in (_BEFORE, _AFTER))
    reached = list(dict.fromkeys([*_alternating(before, after)]))
    roots = reached[:limit]
    newest = Job.objects.filter(root_job_ulid__in=roots).order_by("root_job_ulid", "-attempt").distinct("root_job_ulid")
    found = {attempt.root_job_ulid: attempt for attempt in newest.defer("spec", "result")}
    jobs = {name: found[name] for name in roots if name in found}
    rows = Dependency.objects.filter(Q(job_id__in=list(jobs)) & Q(on_id__in=list(jobs))).order_by("pk")
    edges = [Edge(str(row.job_id), str(row.on_id), row.needs_success) for row in rows]
    return DependencyGraph(root, jobs, edges, is_truncated=len(reached) > limit)


def _alternating(before: Sequence[str], after: Sequence[str]) -> list[str]:
    """Return both lists as one, by turns, so that a limit keeps the nearest jobs of both directions."""
    longest = max(len(before), len(after))
    return [names[place] for place in range(longest) for names in (before, after) if place < len(names)]


def _reached(query: str, root: str, limit: int) -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute(query, {"root": root, "limit": limit})
        return [name for (name,) in cursor.fetchall()]


class Neighbours(NamedTuple):
    """The jobs next to jobs in the graph, by the root ids of the latter, each list the oldest dependency first.

    Attributes:
        before: The jobs on which a job depends.
        after: The jobs that depend on it.
    """

    before: Mapping[str, list[str]]
    after: Mapping[str, list[str]]


def neighbours_of(before: Mapping[str, int], after: Mapping[str, int]) -> Neighbours:
    """Return the neighbours of many jobs with one statement, and none if none is requested.

    Args:
        before: How many dependencies to read at most, by root id.
        after: How many dependents to read at most, by root id.
    """
    found = Neighbours(defaultdict(list), defaultdict(list))
    if not before and not after:
        return found
    values: dict[str, Any] = {
        "before": list(before),
        "before_limits": list(before.values()),
        "after": list(after),
        "after_limits": list(after.values()),
    }
    with connection.cursor() as cursor:
        cursor.execute(_NEIGHBOURS, values)
        for root, neighbour, is_before, _ in cursor.fetchall():
            (found.before if is_before else found.after)[root].append(neighbour)
    return found


def dependents_of(job: Job, *, limit: int = MAX_NODES) -> list[str]:
    """Return the root ids of the jobs that wait for a job, the oldest first, at most `limit`."""
    edges = Dependency.objects.filter(on__job_ulid=job.root_job_ulid).order_by("pk")
    return [str(edge.job_id) for edge in edges[:limit]]
