"""Reads the status of the jobs that a job depends on. Contains no operation and changes no state.

A dependency refers to the root of a job: the newest attempt counts. A failed attempt with an open automatic retry has
not failed yet.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from runtime_jobs.errors import InvalidDependency
from runtime_jobs.models import Dependency, EndedDependency, Job
from runtime_jobs.states import FINAL_STATES, JobState

MAX_DEPENDENCIES = 64  # of one job


@dataclass(frozen=True)
class DependencyStatus:
    """The status of all dependencies of one job.

    Attributes:
        roots: Root ids of the jobs that it depends on.
        unfinished: Keys of newest attempts that have not ended.
        failed: A root whose newest attempt ended without success, although the job needs its success, or None.
        any_end: The roots of which any end is enough.
    """

    roots: tuple[str, ...] = ()
    unfinished: frozenset[int] = frozenset()
    failed: str | None = None
    any_end: frozenset[str] = frozenset()

    @property
    def is_met(self) -> bool:
        """Whether all dependencies ended as the job needs it."""
        return not self.unfinished and self.failed is None


NO_DEPENDENCIES = DependencyStatus()


@dataclass(frozen=True)
class DependencySnapshot:
    """The status of all jobs that the jobs of one request depend on, read at once.

    Attributes:
        roots: Organization and root id by the id that the request named.
        newest: Key and state of the newest attempt by root id.
    """

    roots: Mapping[str, tuple[str, str]]
    newest: Mapping[str, tuple[int, str]]

    def get_status(self, job_ulids: Sequence[str], *, org_slug: str) -> DependencyStatus:
        """Return the status of these dependencies of a job of this organization.

        Raises:
            InvalidDependency: An id is not a job of the organization.
        """
        if not job_ulids:
            return NO_DEPENDENCIES
        own = {name: root for name in job_ulids for org, root in [self.roots.get(name, ("", ""))] if org == org_slug}
        errors = [f"{name} is not a job of this organization." for name in dict.fromkeys(job_ulids) if name not in own]
        if errors:
            raise InvalidDependency({"depends_on": errors}, "A job can only depend on jobs of its own organization.")
        return _status(list(dict.fromkeys(own[name] for name in job_ulids)), self.newest)


EMPTY_SNAPSHOT = DependencySnapshot({}, {})


def lock_dependencies(job_ulids: Collection[str], *, org_slugs: Collection[str]) -> DependencySnapshot:
    """Lock the unfinished dependencies of new jobs and read their status.

    A locked job cannot end before this transaction does, and then finds the job that depends on it. An operation that
    may itself end one of these jobs calls this first.

    Args:
        job_ulids: Ids that the request names.
        org_slugs: The organizations of the new jobs. Jobs of other organizations are neither read nor locked.
    """
    if not job_ulids:
        return EMPTY_SNAPSHOT
    jobs = Job.objects.filter(job_ulid__in=job_ulids, org_slug__in=org_slugs)
    rows = jobs.values_list("job_ulid", "org_slug", "root_job_ulid")
    roots = {name: (org_slug, root) for name, org_slug, root in rows}
    return DependencySnapshot(roots, _lock_unfinished({root for _, root in roots.values()}))


def _lock_unfinished(roots: Collection[str]) -> dict[str, tuple[int, str]]:
    """Lock newest attempts until all that have not ended are locked.

    While one lock is waited for, an attempt may end and be followed by another one.
    """
    locked: set[int] = set()
    while not (unfinished := _unfinished(newest := _newest_attempts(roots))) <= locked:
        list(Job.objects.locked().filter(pk__in=unfinished).order_by("pk").values_list("pk"))
        Job.objects.filter(pk__in=unfinished, awaited=False).update(awaited=True)
        locked = unfinished
    return newest


def get_roots(job: Job) -> list[str]:
    """Return the root ids of the jobs that any attempt of this job depends on."""
    edges = Dependency.objects.filter(job__job_ulid=job.root_job_ulid).order_by("pk")
    return list(edges.values_list("on__job_ulid", flat=True))


def get_any_end(job: Job) -> frozenset[str]:
    """Return the roots among `get_roots` of which any end is enough."""
    edges = Dependency.objects.filter(job__job_ulid=job.root_job_ulid, needs_success=False)
    return frozenset(edges.values_list("on__job_ulid", flat=True))


def get_statuses(jobs: Sequence[Job]) -> dict[int, DependencyStatus]:
    """Return the current status of the dependencies of these jobs by the jobs' keys, with two queries."""
    edges = Dependency.objects.filter(job__job_ulid__in={job.root_job_ulid for job in jobs}).order_by("pk")
    roots_by_job: defaultdict[str, list[str]] = defaultdict(list)
    any_end: defaultdict[str, set[str]] = defaultdict(set)
    for job_ulid, on, needs_success in edges.values_list("job__job_ulid", "on__job_ulid", "needs_success"):
        roots_by_job[job_ulid].append(on)
        if not needs_success:
            any_end[job_ulid].add(on)
    newest = _newest_attempts({root for roots in roots_by_job.values() for root in roots})
    return {
        job.pk: _status(roots_by_job[job.root_job_ulid], newest, frozenset(any_end[job.root_job_ulid])) for job in jobs
    }


def lock_status(roots: Sequence[str], *, any_end: frozenset[str] = frozenset()) -> DependencyStatus:
    """Lock the unfinished jobs among these roots and return their status; see `lock_dependencies`.

    Args:
        roots: Root ids of jobs.
        any_end: Those of them of which any end is enough.
    """
    return _status(roots, _lock_unfinished(roots), any_end) if roots else NO_DEPENDENCIES


def _newest_attempts(roots: Collection[str]) -> dict[str, tuple[int, str]]:
    attempts = Job.objects.filter(root_job_ulid__in=roots).order_by("root_job_ulid", "-attempt")
    rows = attempts.distinct("root_job_ulid").values_list("pk", "root_job_ulid", "state")
    return {root: (pk, state) for pk, root, state in rows}


def _unfinished(newest: Mapping[str, tuple[int, str]]) -> set[int]:
    return {pk for pk, state in newest.values() if state not in FINAL_STATES}


def _status(
    roots: Sequence[str], newest: Mapping[str, tuple[int, str]], any_end: frozenset[str] = frozenset()
) -> DependencyStatus:
    attempts = {root: newest[root] for root in roots}
    failed = [
        root
        for root, (_, state) in attempts.items()
        if state in FINAL_STATES and state != JobState.SUCCEEDED and root not in any_end
    ]
    return DependencyStatus(tuple(roots), frozenset(_unfinished(attempts)), min(failed, default=None), any_end)


def build_edges(job: Job, status: DependencyStatus) -> list[Dependency]:
    """Return the rows of a new job's dependencies. They are stored once for all attempts of the job."""
    if job.attempt > 1:
        return []
    return [
        Dependency(job_id=job.job_ulid, on_id=root, needs_success=root not in status.any_end) for root in status.roots
    ]


def find_dependents(completion: EndedDependency, *, limit: int) -> list[tuple[int, str]]:
    """Return key and id of the next blocked jobs that depend on a job that has ended, oldest first."""
    waiting = Dependency.objects.filter(on__job_ulid=completion.root_job_ulid).values("job__job_ulid")
    blocked = Job.objects.filter(state=JobState.BLOCKED, root_job_ulid__in=waiting, pk__gt=completion.looked_to)
    return list(blocked.order_by("pk").values_list("pk", "job_ulid")[:limit])
