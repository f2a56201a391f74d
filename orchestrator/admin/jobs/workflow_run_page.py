"""Reads what the page of a workflow run shows: its state, the graph, the jobs with their steps, and its reruns."""

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.conf import settings
from django.urls import reverse

from orchestrator.admin import formatting
from orchestrator.workflows.run_graph import GraphJob, JobGraph, draw_graph
from orchestrator.workflows.run_reads import RunState, RunStatus, job_status, jobs_of_runs, state_from_jobs
from runtime_jobs.models import Job, JobStep, RunHold, WorkflowEvent, WorkflowRun
from runtime_jobs.specs.actions import conclusion_of, is_skipped
from runtime_jobs.states import CancelReason, Conclusion, JobState

COLOURS: dict[str, str] = {
    RunStatus.QUEUED: "info",
    RunStatus.RUNNING: "primary",
    RunHold.APPROVAL: "warning",
    RunHold.CONCURRENCY: "info",
    Conclusion.SUCCESS: "success",
    Conclusion.FAILURE: "danger",
    Conclusion.TIMED_OUT: "danger",
    Conclusion.ACTION_REQUIRED: "warning",
    Conclusion.CANCELLED: "default",
    Conclusion.SKIPPED: "default",
    Conclusion.NEUTRAL: "default",
}
MAX_RERUNS = 20
HELD_JOBS: dict[str, str] = {
    RunHold.APPROVAL: "waits for an approval of the run",
    RunHold.CONCURRENCY: "waits for an older run",
}
EDIT_LABELS = {"runs_on": "Runs on", "timeout_minutes": "Timeout in minutes", "env": "Environment", "inputs": "Inputs"}
HEADLINES: dict[str, str] = {
    RunStatus.QUEUED: "Waiting for a runner",
    RunStatus.RUNNING: "Running",
    RunHold.APPROVAL: "Waiting for an approval",
    RunHold.CONCURRENCY: "Waiting for an older run",
    Conclusion.SUCCESS: "Succeeded",
    Conclusion.FAILURE: "Failed",
    Conclusion.TIMED_OUT: "Timed out",
    Conclusion.ACTION_REQUIRED: "Action required",
    Conclusion.CANCELLED: "Canceled",
}


@dataclass(frozen=True)
class WorkflowStepRow:
    """A step of a job."""

    name: str
    state: str
    colour: str
    duration: str


@dataclass(frozen=True)
class WorkflowJobRow:
    """A job of the run.

    Attributes:
        key: The key in the file.
        name: The name.
        address: The page of the job; empty if the job is gone.
        state: The conclusion, or the status of a job that has not ended.
        colour: The class of the colour.
        needs: The keys of the jobs that it needs.
        note: Why the job was not executed, or that its result was taken over.
        started_at: The start of its execution.
        duration: The time of its execution, or `-`.
        steps: The steps.
    """

    key: str
    name: str
    address: str
    state: str
    colour: str
    needs: tuple[str, ...]
    note: str = ""
    started_at: datetime | None = None
    duration: str = formatting.NO_VALUE
    steps: list[WorkflowStepRow] = field(default_factory=list)


@dataclass(frozen=True)
class WorkflowRunPage:
    """Context of the template."""

    badge: str
    colour: str
    headline: str
    sentences: list[str]
    graph: JobGraph
    jobs: list[WorkflowJobRow]
    facts: list[tuple[str, Any]]
    changes: list[tuple[str, str]]
    reruns: list[WorkflowRun]
    is_open: bool


def workflow_run_page(run: WorkflowRun, *, now: datetime) -> WorkflowRunPage:
    """Read everything that a run's page shows, with a fixed number of queries.

    Args:
        run: The run with its repository, batch and parent.
        now: The present.
    """
    jobs = jobs_of_runs([run])[run.batch_id]
    state = state_from_jobs(run, jobs)
    rows = _job_rows(run, jobs, now)
    shown = state.conclusion or run.hold or state.status
    reruns = run.reruns.select_related("repository").order_by("-pk")
    return WorkflowRunPage(
        badge=formatting.humanize(shown),
        colour=COLOURS[shown],
        headline=HEADLINES[shown],
        sentences=_sentences(run, state, rows, now),
        graph=draw_graph([GraphJob(row.key, row.name, row.needs, row.state, row.colour, row.address) for row in rows]),
        jobs=rows,
        facts=_facts(run),
        changes=_changes(run.edits),
        reruns=list(reruns[:MAX_RERUNS]),
        is_open=state.conclusion is None,
    )


def _job_rows(run: WorkflowRun, jobs: list[Job], now: datetime) -> list[WorkflowJobRow]:
    """Return the jobs in the order of the file, with those whose results were taken over from the parent."""
    specs = dict(Job.objects.filter(pk__in=[job.pk for job in jobs]).values_list("pk", "spec"))
    steps = _steps([job.job_ulid for job in jobs], now)
    rows: dict[str, WorkflowJobRow] = {}
    old_ids = [old["job_id"] for old in run.carried.values() if old.get("job_id")]
    addresses = {job.pk: formatting.change_url(Job, job.job_ulid) for job in Job.objects.filter(pk__in=old_ids)}
    for key, old in run.carried.items():
        state = old["conclusion"]
        rows[key] = WorkflowJobRow(
            key=key,
            name=old.get("name", key),
            address=addresses.get(old.get("job_id"), ""),
            state=formatting.humanize(state),
            colour=COLOURS[state],
            needs=tuple(old["needs"]),
            note="taken over from the parent",
        )
    for job in jobs:
        state, spec = conclusion_of(job) or job_status(job), specs[job.pk]
        rows[spec["job_key"]] = WorkflowJobRow(
            key=spec["job_key"],
            name=spec["job_name"],
            address=formatting.change_url(Job, job.job_ulid),
            state=formatting.humanize(state),
            colour=COLOURS[state],
            needs=tuple(spec["needs"]),
            note=_note(run, job, has_needs=bool(spec["needs"])),
            started_at=job.started_at,
            duration=formatting.elapsed(job.started_at, job.finished_at or now),
            steps=steps[job.job_ulid],
        )
    return [rows[key] for key in run.job_keys if key in rows]


def _note(run: WorkflowRun, job: Job, *, has_needs: bool) -> str:
    if is_skipped(job):
        is_condition = job.cancel_reason == CancelReason.CONDITION_FALSE
        return "its if is false" if is_condition else "a job that it needs did not succeed"
    if job.state == JobState.BLOCKED:
        return "waits for the jobs that it needs" if has_needs else HELD_JOBS.get(run.hold, "")
    if job.cancel_requested_at is not None and not job.is_final:
        return "cancel requested"
    return formatting.humanize(job.failure_reason)


def _steps(job_ulids: list[str], now: datetime) -> dict[str, list[WorkflowStepRow]]:
    found: dict[str, list[WorkflowStepRow]] = defaultdict(list)
    steps = JobStep.objects.filter(job__job_ulid__in=job_ulids).defer("env", "with_values", "condition")
    for step in steps.order_by("job", "index"):
        state = step.conclusion or step.status
        duration = formatting.elapsed(step.started_at, step.completed_at or now)
        colour = COLOURS.get(state, "default")
        found[step.job_id].append(WorkflowStepRow(step.display_name, formatting.humanize(state), colour, duration))
    return found


def _sentences(run: WorkflowRun, state: RunState, rows: list[WorkflowJobRow], now: datetime) -> list[str]:
    event = formatting.humanize(run.event).capitalize() + (" of a fork" if run.from_fork else "")
    actor = f" by {run.actor}" if run.actor and run.event != WorkflowEvent.SCHEDULE else ""
    sentences = [f"{event}{actor}, {formatting.time_ago(run.created_at, now)}."]
    if state.conclusion is not None:
        ended_at = run.completed_at or now
        sentences.append(f"{formatting.pluralize(len(rows), 'job')} in {formatting.elapsed(run.created_at, ended_at)}.")
    elif run.hold == RunHold.APPROVAL:
        sentences.append(
            "The commit is that of another repository. No job is executed before an operator approves the run."
        )
    elif run.hold == RunHold.CONCURRENCY:
        sentences.append(f"Another run of the concurrency group {run.concurrency_group} has open jobs.")
    if run.batch.cancel_requested_at is not None:
        cause = "superseded by a newer run" if run.batch.cancel_reason == CancelReason.SUPERSEDED else "requested"
        sentences.append(f"Cancel {cause} {formatting.time_ago(run.batch.cancel_requested_at, now)}.")
    return sentences


def _facts(run: WorkflowRun) -> list[tuple[str, Any]]:
    batch = formatting.link(formatting.change_url(type(run.batch), run.batch.batch_ulid), run.batch.batch_ulid)
    facts = [
        ("Repository", run.repository.full_name),
        ("Workflow file", formatting.code(run.workflow_file)),
        ("Commit", formatting.code(run.head_sha)),
        ("Ref", run.head_ref),
        ("Event", formatting.humanize(run.event) + (" of a fork" if run.from_fork else "")),
        ("Actor", run.actor),
        ("Concurrency group", run.concurrency_group),
        ("Approval", _approval(run)),
        ("Batch", batch),
        ("Logs", formatting.link(reverse("workflow-run-page", args=[run.pk]), "Show the logs of all jobs")),
        ("Run", str(run.pk)),
        ("Created", formatting.format_utc(run.created_at)),
        ("Completed", formatting.format_utc(run.completed_at) if run.completed_at else ""),
        ("Retention", _retention(run)),
        ("Pinned", "yes: retention keeps the run" if run.pinned else ""),
    ]
    return [(label, value) for label, value in facts if value]


def _retention(run: WorkflowRun) -> str:
    days = settings.RETENTION_DAYS["workflow_runs"]
    return "pinned" if run.pinned else f"{days} days after its end" if days else "kept"


def _approval(run: WorkflowRun) -> str:
    if not run.needs_approval:
        return ""
    if run.approved_at is None:
        return "required"
    return f"{run.approved_by}, {formatting.format_utc(run.approved_at)}"


def _changes(edits: dict[str, Any]) -> list[tuple[str, str]]:
    """Return what a rerun changed, one line for each variable and input."""
    lines = []
    for name, value in edits.items():
        label = EDIT_LABELS.get(name, formatting.humanize(name))
        if isinstance(value, dict):
            lines += [(label, f"{key}={text}") for key, text in sorted(value.items())]
        else:
            lines.append((label, str(value)))
    return lines
