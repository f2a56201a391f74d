"""What a job depends on: looked up when it comes in and when one of those jobs ends. No verbs, and no state is written.

Dependencies follow the root: what counts is the newest attempt of each job, so a failed row whose automatic retry is
open has not failed yet."""

from collections.abc import Sequence
from dataclasses import dataclass

from runtime_jobs.errors import InvalidDependency
from runtime_jobs.models import Dependency, EndedDependency, Job
from runtime_jobs.states import FINAL, JobState


@dataclass(frozen=True)
class Standing:
    """How the jobs stand that one depends on. `roots`: all of them; `unfinished`: keys of the newest attempts that have
    not ended; `failed`: the root of one that has, without success."""

    roots: tuple[str, ...] = ()
    unfinished: frozenset[int] = frozenset()
    failed: str | None = None

    @property
    def is_met(self) -> bool:
        return not self.unfinished and self.failed is None


FREE = Standing()  # of a job that depends on nothing


def roots_of(job_ulids: Sequence[str], *, org_slug: str) -> list[str]:
    """The first attempts of these jobs of the organization. Raises InvalidDependency for any other id."""
    if not job_ulids:
        return []
    known = dict(Job.objects.filter(job_ulid__in=job_ulids, org_slug=org_slug).values_list("job_ulid", "root_job_ulid"))
    wrong = [f"{name} is no job of this organization." for name in dict.fromkeys(job_ulids) if name not in known]
    if wrong:
        raise InvalidDependency({"depends_on": wrong}, "A job can only depend on jobs of its own organization.")
    return list(dict.fromkeys(known[name] for name in job_ulids))


def roots_for(job: Job) -> list[str]:
    """What it depends on, whichever attempt it is."""
    edges = Dependency.objects.filter(job__job_ulid=job.root_job_ulid).order_by("pk")
    return list(edges.values_list("on__job_ulid", flat=True))


def standing_of(roots: Sequence[str]) -> Standing:
    """As they stand at this moment."""
    if not roots:
        return FREE
    attempts = Job.objects.filter(root_job_ulid__in=roots).order_by("root_job_ulid", "-attempt")
    newest = list(attempts.distinct("root_job_ulid").values_list("pk", "root_job_ulid", "state"))
    unfinished = frozenset(pk for pk, _, state in newest if state not in FINAL)
    failed = [root for _, root, state in newest if state in FINAL and state != JobState.SUCCEEDED]
    return Standing(tuple(roots), unfinished, min(failed, default=None))


def held_standing_of(roots: Sequence[str]) -> Standing:
    """The same, and what has not ended is locked and marked as awaited: it cannot end before this transaction does, and
    then finds the job that waits for it. Looked at again after each wait: an attempt may have ended meanwhile and been
    followed. Comes before anything else in a verb that may end one of them itself."""
    held: frozenset[int] = frozenset()
    while (standing := standing_of(roots)).failed is None and not standing.unfinished <= held:
        list(Job.objects.locked().filter(pk__in=standing.unfinished).order_by("pk").values_list("pk"))
        Job.objects.filter(pk__in=standing.unfinished, awaited=False).update(awaited=True)
        held = standing.unfinished
    return standing


def bind(job: Job, standing: Standing) -> None:
    """Write down what a new job depends on, once for all of its attempts."""
    if job.attempt == 1 and standing.roots:
        Dependency.objects.bulk_create(Dependency(job_id=job.job_ulid, on_id=root) for root in standing.roots)


def note_end(job: Job) -> list[EndedDependency]:
    """That a job has ended which others wait for. Stored with its end: they will be looked at, whoever dies
    meanwhile."""
    return [EndedDependency(root_job_ulid=job.root_job_ulid)] if job.awaited else []


def dependents(ended: EndedDependency, *, most: int) -> list[tuple[int, str]]:
    """The next `most` blocked jobs (key and id) that wait for it and were not looked at, oldest first."""
    waiting = Dependency.objects.filter(on__job_ulid=ended.root_job_ulid).values("job__job_ulid")
    blocked = Job.objects.filter(state=JobState.BLOCKED, root_job_ulid__in=waiting, pk__gt=ended.looked_to)
    return list(blocked.order_by("pk").values_list("pk", "job_ulid")[:most])
