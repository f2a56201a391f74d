"""Which jobs a job waits for, and which wait for it: each by its newest attempt, which is the one that counts."""

from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models.fields.json import KT

from orchestrator.admin.labels import JOB_COLOURS
from runtime_jobs.models import Dependency, Job

SHOWN = 100
COLUMNS = ("job_ulid", "root_job_ulid", "attempt", "state", "needs_ingest", "command_json")


@dataclass(frozen=True)
class DependencyRow:
    """One line: which job, what it is called, how it stands."""

    job_ulid: str
    name: str
    attempt: int
    state: str
    colour: str


@dataclass(frozen=True)
class DependencyList:
    """`more`: there are further ones that wait for it."""

    needs: list[DependencyRow]
    dependents: list[DependencyRow]
    more: bool

    def __bool__(self) -> bool:
        return bool(self.needs or self.dependents)


def neighbours_of(job: Job) -> DependencyList:
    """In three queries, however many there are."""
    needs = Dependency.objects.filter(job__job_ulid=job.root_job_ulid).values_list("on__job_ulid", flat=True)
    waiting = Dependency.objects.filter(on__job_ulid=job.root_job_ulid).order_by("pk")
    dependents = list(waiting.values_list("job__job_ulid", flat=True)[: SHOWN + 1])
    newest = _newest([*needs, *dependents[:SHOWN]])
    return DependencyList(
        needs=[_line(one) for one in newest if one.root_job_ulid not in dependents],
        dependents=[_line(one) for one in newest if one.root_job_ulid in dependents],
        more=len(dependents) > SHOWN,
    )


def _newest(roots: Sequence[str]) -> list[Job]:
    if not roots:
        return []
    attempts = Job.objects.filter(root_job_ulid__in=roots).order_by("root_job_ulid", "-attempt")
    named = attempts.distinct("root_job_ulid").only(*COLUMNS).annotate(called=KT("spec__name"))
    return sorted(named, key=lambda one: one.pk)


def _line(job: Job) -> DependencyRow:
    state = job.public_status if job.is_final else job.state.replace("_", " ")
    name = getattr(job, "called", None) or job.command_line
    return DependencyRow(job.job_ulid, name[:60], job.attempt, state, JOB_COLOURS[job.state])
