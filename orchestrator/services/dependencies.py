"""What a job depends on: looked up when it comes in and when one of those jobs ends. No verbs, and no state is written.

Dependencies follow the root: what counts is the newest attempt of each job, so a failed row whose automatic retry is
open has not failed yet."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from runtime_jobs.errors import InvalidDependency
from runtime_jobs.models import Dependency, EndedDependency, Job
from runtime_jobs.states import FINAL_STATES, JobState


@dataclass(frozen=True)
class DependencyStatus:
    """How the jobs stand that one depends on. `roots`: all of them; `unfinished`: keys of the newest attempts that have
    not ended; `failed`: the root of one that has, without success."""

    roots: tuple[str, ...] = ()
    unfinished: frozenset[int] = frozenset()
    failed: str | None = None

    @property
    def is_met(self) -> bool:
        return not self.unfinished and self.failed is None


NO_DEPENDENCIES = DependencyStatus()  # of a job that depends on nothing


@dataclass(frozen=True)
class DependencySnapshot:
    """How the jobs stand that new ones want to wait for, looked up at once for all of them. `roots`: organization and
    root by the id that was named; `newest`: key and state of a root's newest attempt."""

    roots: Mapping[str, tuple[str, str]]
    newest: Mapping[str, tuple[int, str]]

    def standing_for(self, job_ulids: Sequence[str], *, org_slug: str) -> DependencyStatus:
        """Of a job of this organization. Raises InvalidDependency for an id that is none of its jobs."""
        if not job_ulids:
            return NO_DEPENDENCIES
        own = {name: root for name in job_ulids for org, root in [self.roots.get(name, ("", ""))] if org == org_slug}
        wrong = [f"{name} is no job of this organization." for name in dict.fromkeys(job_ulids) if name not in own]
        if wrong:
            raise InvalidDependency({"depends_on": wrong}, "A job can only depend on jobs of its own organization.")
        return _standing(list(dict.fromkeys(own[name] for name in job_ulids)), self.newest)


EMPTY_SNAPSHOT = DependencySnapshot({}, {})  # of jobs that depend on nothing


def lock_dependencies(job_ulids: Collection[str], *, org_slugs: Collection[str]) -> DependencySnapshot:
    """Look at these jobs, as far as they are these organizations' own: nobody locks another one's.

    What has not ended is locked and marked as awaited: it cannot end before this transaction does, and then finds the
    job that waits for it. Looked at again after each wait: an attempt may have ended meanwhile and been followed. Comes
    before anything else in a verb that may end one of them itself."""
    if not job_ulids:
        return EMPTY_SNAPSHOT
    known = Job.objects.filter(job_ulid__in=job_ulids, org_slug__in=org_slugs)
    rows = known.values_list("job_ulid", "org_slug", "root_job_ulid")
    roots = {name: (org_slug, root) for name, org_slug, root in rows}
    return DependencySnapshot(roots, _held({root for _, root in roots.values()}))


def _held(roots: Collection[str]) -> dict[str, tuple[int, str]]:
    held: set[int] = set()
    while not (unfinished := _unfinished(newest := _newest(roots))) <= held:
        list(Job.objects.locked().filter(pk__in=unfinished).order_by("pk").values_list("pk"))
        Job.objects.filter(pk__in=unfinished, awaited=False).update(awaited=True)
        held = unfinished
    return newest


def roots_for(job: Job) -> list[str]:
    """What it depends on, whichever attempt it is."""
    edges = Dependency.objects.filter(job__job_ulid=job.root_job_ulid).order_by("pk")
    return list(edges.values_list("on__job_ulid", flat=True))


def standings_of(jobs: Sequence[Job]) -> dict[int, DependencyStatus]:
    """How what they depend on stands at this moment, by the jobs' keys: two queries for all of them."""
    edges = Dependency.objects.filter(job__job_ulid__in={job.root_job_ulid for job in jobs}).order_by("pk")
    needs = defaultdict(list)
    for job_ulid, on in edges.values_list("job__job_ulid", "on__job_ulid"):
        needs[job_ulid].append(on)
    newest = _newest({root for roots in needs.values() for root in roots})
    return {job.pk: _standing(needs[job.root_job_ulid], newest) for job in jobs}


def held_standing_of(roots: Sequence[str]) -> DependencyStatus:
    """The same, with what has not ended locked and marked; see `outlook_on`."""
    return _standing(roots, _held(roots)) if roots else NO_DEPENDENCIES


def _newest(roots: Collection[str]) -> dict[str, tuple[int, str]]:
    attempts = Job.objects.filter(root_job_ulid__in=roots).order_by("root_job_ulid", "-attempt")
    rows = attempts.distinct("root_job_ulid").values_list("pk", "root_job_ulid", "state")
    return {root: (pk, state) for pk, root, state in rows}


def _unfinished(newest: Mapping[str, tuple[int, str]]) -> set[int]:
    return {pk for pk, state in newest.values() if state not in FINAL_STATES}


def _standing(roots: Sequence[str], newest: Mapping[str, tuple[int, str]]) -> DependencyStatus:
    among = {root: newest[root] for root in roots}
    failed = [root for root, (_, state) in among.items() if state in FINAL_STATES and state != JobState.SUCCEEDED]
    return DependencyStatus(tuple(roots), frozenset(_unfinished(among)), min(failed, default=None))


def build_edges(job: Job, standing: DependencyStatus) -> list[Dependency]:
    """What a new job depends on, to be stored once for all of its attempts."""
    return [Dependency(job_id=job.job_ulid, on_id=root) for root in standing.roots] if job.attempt == 1 else []


def record_completion(job: Job) -> list[EndedDependency]:
    """That a job has ended which others wait for. Stored with its end: they will be looked at, whoever dies
    meanwhile."""
    return [EndedDependency(root_job_ulid=job.root_job_ulid)] if job.awaited else []


def dependents(ended: EndedDependency, *, limit: int) -> list[tuple[int, str]]:
    """The next `most` blocked jobs (key and id) that wait for it and were not looked at, oldest first."""
    waiting = Dependency.objects.filter(on__job_ulid=ended.root_job_ulid).values("job__job_ulid")
    blocked = Job.objects.filter(state=JobState.BLOCKED, root_job_ulid__in=waiting, pk__gt=ended.looked_to)
    return list(blocked.order_by("pk").values_list("pk", "job_ulid")[:limit])
