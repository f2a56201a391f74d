"""Reads workflow runs: their status, and the run of a job."""

from dataclasses import dataclass
from enum import StrEnum

from django.db.models.fields.json import KT

from runtime_jobs.models import Batch, Job, Organization, Project, Repository, WorkflowRun
from runtime_jobs.prepared_queries import PreparedQuery
from runtime_jobs.rollup import roll_up
from runtime_jobs.specs.actions import conclusion_of
from runtime_jobs.states import FINAL_STATES, WAITING_STATES, Conclusion, JobState


class RunStatus(StrEnum):
    """The status of a run or of one of its jobs, in the words of document 003."""

    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"


# The states of a job by its status. A job that a runner has claimed and not begun is still queued.
JOB_STATES: dict[RunStatus, tuple[JobState, ...]] = {
    RunStatus.QUEUED: (*WAITING_STATES, JobState.LEASED),
    RunStatus.COMPLETED: FINAL_STATES,
}
JOB_STATES[RunStatus.RUNNING] = tuple(
    state for state in JobState if not any(state in states for states in JOB_STATES.values())
)


@dataclass(frozen=True)
class RunState:
    """The state of a run, computed from its jobs.

    Attributes:
        status: Whether a job has started, and whether all have ended.
        conclusion: The conclusion of a run that has ended.
    """

    status: RunStatus
    conclusion: Conclusion | None


@dataclass(frozen=True)
class _RunOfJob:
    """A run with the rows that its job's claim and end need."""

    run: WorkflowRun
    batch: Batch
    repository: Repository
    project: Project
    organization: Organization


_RUN_OF_BATCH = PreparedQuery(
    _RunOfJob,
    """JOIN runtime_batches batch ON batch.id = t.batch_id
       JOIN repositories repository ON repository.id = t.repository_id
       JOIN runtime_jobs_project project ON project.id = repository.project_id
       JOIN runtime_jobs_organization organization ON organization.id = project.organization_id
      WHERE t.batch_id = %s""",
)


def run_of_job(job: Job) -> WorkflowRun | None:
    """Return the run of a job with its repository and batch, or None if the job belongs to none."""
    found = None if job.batch_id is None else _RUN_OF_BATCH.first(job.batch_id)
    if found is None:
        return None
    found.project.organization = found.organization
    found.repository.project = found.project
    return found.run


def state_of_run(run: WorkflowRun) -> RunState:
    """Return the state of a run. It is right also before the end of the run is recorded."""
    return state_from_jobs(run, jobs_of_runs([run])[run.batch_id])


def jobs_of_runs(runs: list[WorkflowRun]) -> dict[int, list[Job]]:
    """Return the jobs of several runs by the key of the batch, each with `job_key`, with one query."""
    found: dict[int, list[Job]] = {run.batch_id: [] for run in runs}
    jobs = Job.objects.filter(batch_id__in=found).annotate(job_key=KT("spec__job_key")).defer("spec").order_by("pk")
    for job in jobs:
        if job.batch_id is not None:
            found[job.batch_id].append(job)
    return found


def state_from_jobs(run: WorkflowRun, jobs: list[Job]) -> RunState:
    """Return the state of a run from its jobs, each with `job_key`; see `jobs_of_runs`."""
    conclusions: dict[str, str | None] = {key: old["conclusion"] for key, old in run.carried.items()}
    conclusions |= {job.job_key: conclusion_of(job) for job in jobs}  # type: ignore[attr-defined] # an annotation
    conclusion = roll_up([conclusions[key] for key in run.job_keys if key in conclusions])
    if conclusion is not None:
        return RunState(RunStatus.COMPLETED, conclusion)
    has_begun = any(job_status(job) != RunStatus.QUEUED for job in jobs)
    return RunState(RunStatus.RUNNING if has_begun else RunStatus.QUEUED, None)


def job_status(job: Job) -> RunStatus:
    """Return the status of a job in the words of document 003."""
    return next(status for status, states in JOB_STATES.items() if job.state in states)
