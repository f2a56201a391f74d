"""The pages `/workflow-runs/` and `/workflow-runs/{run}/`: the jobs of a run, their steps and the log of one job.

Staff see all runs; members see the runs of their organizations.
"""

from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from django.core.handlers.asgi import ASGIRequest
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from orchestrator.core.principals import client_of_person
from orchestrator.http.auth.login import page_login_required
from orchestrator.selectors.job_steps import StepState, annotations_of, steps_of
from orchestrator.step_logs.log_tails import StepTail, tails_of
from orchestrator.workflows.run_graph import HEIGHT, WIDTH, GraphJob, draw_graph
from orchestrator.workflows.run_reads import (
    RunState,
    RunStatus,
    job_status,
    jobs_of_runs,
    state_from_jobs,
    state_of_run,
)
from runtime_jobs.models import Job, RunHold, StepAnnotation, WorkflowRun
from runtime_jobs.specs.actions import conclusion_of
from runtime_jobs.states import Conclusion, StepStatus

MAX_LISTED_RUNS: Final = 100
MAX_ANNOTATIONS: Final = 100
GOOD: Final = frozenset({Conclusion.SUCCESS, Conclusion.NEUTRAL})
HOLDS: Final = {RunHold.APPROVAL: "an approval", RunHold.CONCURRENCY: "an older run"}
QUIET: Final = frozenset({Conclusion.SKIPPED, Conclusion.CANCELLED})


@dataclass(frozen=True)
class JobOfRun:
    """A job of a run. `job` is None if its row was deleted; `is_carried`: an earlier run has executed it."""

    key: str
    name: str
    needs: list[str]
    state: str
    job: Job | None
    is_carried: bool

    @property
    def tone(self) -> str:
        """The class of its colour."""
        return tone_of(self.state)


@dataclass(frozen=True)
class StepOfPage:
    """A step of the displayed job with the end of its log."""

    state: StepState
    tail: StepTail | None
    annotations: list[StepAnnotation]

    @property
    def result(self) -> str:
        """The conclusion of a step that has ended, else its status."""
        return self.state.conclusion or self.state.status or ""

    @property
    def tone(self) -> str:
        """The class of its colour."""
        return tone_of(self.result)

    @property
    def is_open(self) -> bool:
        """Whether the page displays its log at first: of what runs, and of what went wrong."""
        is_printing = self.tail is not None and self.state.status == StepStatus.QUEUED
        return self.state.status == StepStatus.RUNNING or is_printing or self.tone == "bad" or bool(self.annotations)


@dataclass(frozen=True)
class JobOfPage:
    """The displayed job. `event_id` continues the live log after the texts of the steps."""

    row: JobOfRun
    job: Job
    steps: list[StepOfPage]
    event_id: str
    is_readable: bool


def tone_of(state: str) -> str:
    """Return the class of the colour of a status or conclusion: good, bad, going, waiting or quiet."""
    if state == RunStatus.RUNNING:
        return "going"
    if state == RunStatus.QUEUED:
        return "waiting"
    if state in GOOD:
        return "good"
    return "quiet" if state in QUIET or not state else "bad"


@never_cache
@require_safe
@page_login_required
def workflow_runs_page(request: HttpRequest) -> HttpResponse:
    """List the newest workflow runs."""
    mine = client_of_person(request.user).organizations
    found = WorkflowRun.objects.select_related("repository__project__organization").order_by("-id")
    if mine is not None:
        found = found.filter(repository__project__organization__slug__in=mine)
    runs = list(found[:MAX_LISTED_RUNS])
    jobs = jobs_of_runs(runs)
    rows = [(run, *_labelled(run, state_from_jobs(run, jobs[run.batch_id]))) for run in runs]
    return render(request, "workflows/runs.html", {"rows": rows, "limit": MAX_LISTED_RUNS, "is_member": mine != ()})


@never_cache
@require_safe
@page_login_required
def workflow_run_page(request: HttpRequest, run_id: int) -> HttpResponse:
    """Display one run, and of the job `?job=` its steps and its log. A run of another organization is answered 404.

    With `log=0` the log is left out: the page requests so what it refreshes while the run is open.
    """
    runs = WorkflowRun.objects.select_related("repository__project__organization", "batch", "parent")
    run = runs.filter(pk=run_id).first()
    if run is None or not client_of_person(request.user).sees(run.repository.project.organization.slug):
        raise Http404
    state = state_of_run(run)
    text, tone = _labelled(run, state)
    jobs = _jobs_of(run)
    chosen = _chosen(jobs, request.GET.get("job", ""))
    shown = _displayed(chosen, with_log=request.GET.get("log") != "0") if chosen is not None else None
    by_key = {job.key: job for job in jobs}
    graph = draw_graph([_drawn(job) for job in jobs])
    context: dict[str, Any] = {
        "run": run,
        "state": text,
        "tone": tone,
        "is_live": state.conclusion is None,
        "graph": graph,
        "nodes": [(node, by_key[node.key]) for node in graph.nodes],
        "node_width": WIDTH,
        "node_height": HEIGHT,
        "shown": shown,
        # Under WSGI a stream would occupy a thread.
        "is_streamed": isinstance(request, ASGIRequest) and shown is not None and not shown.job.is_final,
    }
    return render(request, "workflows/run.html", context)


def _drawn(job: JobOfRun) -> GraphJob:
    address = f"?{urlencode({'job': job.key})}" if job.job is not None else ""
    state = f"{job.state}, taken over" if job.is_carried else job.state
    return GraphJob(job.key, job.name, tuple(job.needs), state, job.tone, address)


def _labelled(run: WorkflowRun, state: RunState) -> tuple[str, str]:
    """Return the state of a run as text, and the class of its colour."""
    if run.hold and state.conclusion is None:
        return f"waits for {HOLDS[RunHold(run.hold)]}", "waiting"
    text = str(state.conclusion or state.status)
    return text, tone_of(text)


def _jobs_of(run: WorkflowRun) -> list[JobOfRun]:
    """Return the jobs in the order of the file, also those that a partial rerun has taken over."""
    found: dict[str, JobOfRun] = {}
    carried = Job.objects.in_bulk([old["job_id"] for old in run.carried.values() if "job_id" in old])
    for key, old in run.carried.items():
        job = carried.get(old.get("job_id", 0))
        found[key] = JobOfRun(
            key, old.get("name") or key, old.get("needs", []), old["conclusion"], job, is_carried=True
        )
    for job in Job.objects.filter(batch_id=run.batch_id).order_by("pk"):
        key, spec = job.spec["job_key"], job.spec
        state = str(conclusion_of(job) or job_status(job))
        found[key] = JobOfRun(key, spec["job_name"] or key, list(spec["needs"]), state, job, is_carried=False)
    return [found[key] for key in run.job_keys if key in found] or list(found.values())


def _chosen(jobs: list[JobOfRun], key: str) -> JobOfRun | None:
    """Return the job that was requested, else one that failed, else one that runs, else the first one."""
    existing = [job for job in jobs if job.job is not None]
    requested = [job for job in existing if job.key == key]
    failed = [job for job in existing if job.tone == "bad" and not job.is_carried]
    running = [job for job in existing if job.tone == "going"]
    return next(iter([*requested, *failed, *running, *existing]), None)


def _displayed(row: JobOfRun, *, with_log: bool) -> JobOfPage | None:
    job = row.job
    if job is None:
        return None
    tails: dict[int, StepTail] = {}
    is_readable = True
    if with_log:
        try:
            tails = tails_of(job.job_ulid)
        except OSError:  # the rest of the page remains readable
            is_readable = False
    annotations = annotations_of(job.job_ulid, limit=MAX_ANNOTATIONS)
    steps = [
        StepOfPage(step, tails.get(step.index), [found for found in annotations if found.step == step.index])
        for step in steps_of(job.job_ulid)
    ]
    places = "".join(f"-{index}.{tail.next_byte}.0" for index, tail in sorted(tails.items()))
    return JobOfPage(row, job, steps, f"0{places}", is_readable)
