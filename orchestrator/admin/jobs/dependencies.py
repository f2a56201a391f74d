"""Dependencies and dependents of a job. Each is shown by its newest attempt, which is the one that counts."""

from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models.fields.json import KT

from orchestrator.admin.labels import JobBadge, job_badge
from runtime_jobs.models import Dependency, Job

MAX_DEPENDENTS = 100
COLUMNS = ("job_ulid", "root_job_ulid", "attempt", "state", "exit_code", "cancel_requested_at", "command_json")


@dataclass(frozen=True)
class DependencyRow:
    """A job in one of the two tables."""

    job_ulid: str
    name: str
    attempt: int
    badge: JobBadge


@dataclass(frozen=True)
class JobDependencies:
    """Both tables. `truncated`: the job has more dependents than `dependents` contains."""

    depends_on: list[DependencyRow]
    dependents: list[DependencyRow]
    truncated: bool

    def __bool__(self) -> bool:
        return bool(self.depends_on or self.dependents)


def dependencies_of(job: Job) -> JobDependencies:
    """Read both tables with three queries, whatever their length."""
    depends_on = Dependency.objects.filter(job__job_ulid=job.root_job_ulid).values_list("on__job_ulid", flat=True)
    rows = Dependency.objects.filter(on__job_ulid=job.root_job_ulid).order_by("pk")
    dependents = list(rows.values_list("job__job_ulid", flat=True)[: MAX_DEPENDENTS + 1])
    newest = _newest_attempts([*depends_on, *dependents[:MAX_DEPENDENTS]])
    return JobDependencies(
        depends_on=[_row(other) for other in newest if other.root_job_ulid not in dependents],
        dependents=[_row(other) for other in newest if other.root_job_ulid in dependents],
        truncated=len(dependents) > MAX_DEPENDENTS,
    )


def _newest_attempts(root_job_ulids: Sequence[str]) -> list[Job]:
    if not root_job_ulids:
        return []
    attempts = Job.objects.filter(root_job_ulid__in=root_job_ulids).order_by("root_job_ulid", "-attempt")
    named = attempts.distinct("root_job_ulid").only(*COLUMNS).annotate(display_name=KT("spec__name"))
    return sorted(named, key=lambda job: job.pk)


def _row(job: Job) -> DependencyRow:
    name = getattr(job, "display_name", None) or job.command_line
    return DependencyRow(job.job_ulid, name[:60], job.attempt, job_badge(job))
