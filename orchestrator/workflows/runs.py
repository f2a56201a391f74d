"""Starts workflow runs: a batch with one job for each job of the file, their steps, and the needs between them.

All changes of the runs of a repository are made under the lock of its row. So runs are numbered without gaps, an event
starts a file once, and of the runs of a concurrency group each one sees whether an older one has ended.
The lock of a repository comes before those of jobs.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from django.conf import settings

from orchestrator.core.counters import CONCURRENCY_QUEUED, count
from orchestrator.core.idempotency import IdempotentRequest
from orchestrator.core.unit_of_work import UnitOfWork, operation
from orchestrator.services import transitions
from orchestrator.services.admission import AdmissionContext, load_context
from orchestrator.services.batches import cancel_open_jobs
from orchestrator.services.dependencies import EMPTY_SNAPSHOT, DependencyStatus
from orchestrator.services.retries import is_limited
from orchestrator.services.submission import Submission, admit_job, new_job
from orchestrator.step_logs.steps import create_steps
from orchestrator.workflows.groups import has_older_run, open_runs_of_group
from runtime_jobs.errors import NotFound, WorkflowRejected
from runtime_jobs.events import Actor
from runtime_jobs.models import Batch, Job, Repository, RunHold, WorkflowEvent, WorkflowRun
from runtime_jobs.models.workflow_runs import MAX_GROUP
from runtime_jobs.specs import ACTIONS, ActionsSpec, ActionsStep, JobReadiness, configured_policy
from runtime_jobs.specs.actions import DEFAULT_TIMEOUT_MINUTES
from runtime_jobs.specs.readiness import facts_of_run, needs_any_end, readiness_of
from runtime_jobs.states import CancelReason
from runtime_jobs.workflows.diagnostics import Diagnostic
from runtime_jobs.workflows.document import Workflow, WorkflowJob
from runtime_jobs.workflows.evaluation import ExpressionContext
from runtime_jobs.workflows.templates import render

_NOT_IN_ACTORS = re.compile(r"[^A-Za-z0-9._@+-]")
MAX_ACTOR = 100


@dataclass(frozen=True)
class WorkflowRunRequest:
    """A request for a workflow run.

    Attributes:
        repository_id: The key of the repository.
        workflow_file: The path of the file.
        workflow: The parsed file.
        head_sha: The commit.
        head_ref: The full ref, or empty.
        event: The event.
        event_payload: The values of `shithub.event`.
        trigger_id: The event; a file runs once for each.
        actor_name: The person or program that caused the run.
        correlation_id: An id of the caller that links requests.
        source_address: The client's IP address.
        from_fork: The commit is that of another repository.
        needs_approval: A person must approve the run before a job is claimed.
        parent: The run that is run again.
        job_keys: The jobs to execute; None: all.
        carried: The other jobs, taken over from the parent; see `WorkflowRun`.
        edits: What a rerun changes, as JSON values.
        reason: Why it is run again.
    """

    repository_id: int
    workflow_file: str
    workflow: Workflow
    head_sha: str
    head_ref: str
    event: WorkflowEvent
    event_payload: Mapping[str, Any]
    trigger_id: str
    actor_name: str
    correlation_id: str
    source_address: str | None = None
    from_fork: bool = False
    needs_approval: bool = False
    parent: WorkflowRun | None = None
    job_keys: frozenset[str] | None = None
    carried: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    edits: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""


@dataclass(frozen=True)
class WorkflowRunOutcome:
    """A run after an operation.

    Attributes:
        run: The run.
        replayed: An earlier request for the same event started the run.
    """

    run: WorkflowRun
    replayed: bool = False


@operation
def start_workflow_run(
    uow: UnitOfWork,
    request: WorkflowRunRequest,
    *,
    default_pool: str,
    actor: Actor,
    idempotency: IdempotentRequest | None = None,
    now: datetime | None = None,
) -> WorkflowRunOutcome:
    """Start a run, once for each repository, file and trigger id.

    Args:
        request: The request.
        default_pool: The slug of the pool of projects that name none.
        actor: The client, an operator, or the clock.
        idempotency: The idempotency key. The same request again returns the first run.

    Raises:
        NotFound: The repository does not exist.
        WorkflowRejected: A timeout exceeds that of the plan.
        LifecycleError: Any error of `admit_job` for one of the jobs.
        IdempotencyConflict: The key was used with another request.
    """
    repository = lock_repository(request.repository_id)
    if idempotency and (first := idempotency.lookup()):
        return WorkflowRunOutcome(WorkflowRun.objects.get(batch__batch_ulid=first), replayed=True)
    same = WorkflowRun.objects.filter(
        repository=repository, workflow_file=request.workflow_file, trigger_id=request.trigger_id
    )
    if (existing := same.first()) is not None:
        return WorkflowRunOutcome(existing, replayed=True)
    project = repository.project
    specs = job_specs(request.workflow, max_minutes=project.organization.plan.max_timeout_seconds // 60)
    context = load_context(uow, [(project.organization.slug, project.slug)], default_pool=default_pool)
    run = _create_run(repository, request, now or context.now)
    if idempotency:  # the lock of the repository is held since the key was looked up
        idempotency.bind(run.batch.batch_ulid, now=run.created_at)
    _apply_concurrency(uow, run, request.workflow, now=run.created_at, actor=actor)
    chosen = [spec for spec in specs if request.job_keys is None or spec.job_key in request.job_keys]
    _submit_jobs(uow, run, request, chosen, context, actor=actor)
    return WorkflowRunOutcome(run)


def lock_repository(repository_id: int) -> Repository:
    """Lock a repository, and with it the runs of the repository.

    Raises:
        NotFound: The repository does not exist.
    """
    rows = Repository.objects.select_for_update(no_key=True, of=("self",))
    repository = rows.select_related("project__organization__plan").filter(pk=repository_id).first()
    if repository is None:
        raise NotFound("The repository does not exist.")
    return repository


def job_specs(workflow: Workflow, *, max_minutes: int) -> list[ActionsSpec]:
    """Return the specifications of a workflow's jobs, in the order of the file.

    Args:
        workflow: The workflow.
        max_minutes: The longest timeout of the organization's plan. It replaces a default that exceeds it.

    Raises:
        WorkflowRejected: A job asks for a longer timeout.
    """
    rejected = [
        Diagnostic(
            f"jobs.{job.key}.timeout-minutes",
            job.line,
            f"The timeout is {job.timeout_minutes} minutes. The plan allows at most {max_minutes} minutes.",
        )
        for job in workflow.jobs
        if job.timeout_minutes is not None and job.timeout_minutes > max_minutes
    ]
    if rejected:
        raise WorkflowRejected(rejected)
    default = max(1, min(DEFAULT_TIMEOUT_MINUTES, max_minutes))
    return [_spec_of(workflow, job, job.timeout_minutes or default) for job in workflow.jobs]


def _spec_of(workflow: Workflow, job: WorkflowJob, timeout_minutes: int) -> ActionsSpec:
    steps = tuple(
        ActionsStep(
            index=index,
            step_id=step.step_id,
            name=step.name,
            condition=step.condition,
            run=step.run,
            uses=step.uses,
            working_directory=step.working_directory,
            env=dict(step.env),
            with_=dict(step.with_values),
            continue_on_error=step.continue_on_error,
            shell=step.shell,
        )
        for index, step in enumerate(job.steps)
    )
    return ActionsSpec(
        job_key=job.key,
        job_name=job.name or job.key,
        steps=steps,
        runs_on=job.runs_on,
        needs=job.needs,
        condition=job.condition,
        timeout_minutes=timeout_minutes,
        permissions=workflow.permissions_of(job).as_json(),
        env=workflow.env_of(job),
        needs_own_worker=job.needs_own_worker,
    )


def _create_run(repository: Repository, request: WorkflowRunRequest, now: datetime) -> WorkflowRun:
    project = repository.project
    actor_name = safe_actor(request.actor_name)
    batch = Batch.objects.create(
        org_slug=project.organization.slug,
        project_slug=project.slug,
        git_ref=request.head_ref[:255] or None,
        git_commit=request.head_sha,
        trigger_kind=request.event,
        trigger_actor=actor_name,
        details={"repository": repository.full_name, "workflow_file": request.workflow_file},
        rerun_of=request.parent.batch.batch_ulid if request.parent else None,
        correlation_id=request.correlation_id,
        created_at=now,
    )
    run = WorkflowRun.objects.create(
        batch=batch,
        repository=repository,
        run_index=repository.next_run_index,
        workflow_file=request.workflow_file,
        workflow_name=request.workflow.name,
        head_sha=request.head_sha,
        head_ref=request.head_ref,
        event=request.event,
        event_payload=dict(request.event_payload),
        actor=actor_name,
        from_fork=request.from_fork,
        parent=request.parent,
        job_keys=[job.key for job in request.workflow.jobs],
        carried=dict(request.carried),
        edits=dict(request.edits),
        reason=request.reason,
        trigger_id=request.trigger_id,
        needs_approval=request.needs_approval,
        created_at=now,
    )
    repository.next_run_index += 1
    repository.save(update_fields=["next_run_index"])
    return run


def safe_actor(name: str) -> str:
    """Return the name of an actor with harmless characters only: runners paste `shithub.actor` into scripts."""
    return _NOT_IN_ACTORS.sub("-", name)[:MAX_ACTOR]


def _apply_concurrency(uow: UnitOfWork, run: WorkflowRun, workflow: Workflow, *, now: datetime, actor: Actor) -> None:
    """Evaluate the group of a new run, and hold the run or cancel older ones.

    A run that waits for its approval neither waits for others nor is waited for.
    """
    if workflow.concurrency is not None:
        run.concurrency_group = _group_of(run, workflow.concurrency.group)
        run.cancels_older = workflow.concurrency.cancel_in_progress
    if run.needs_approval:
        run.hold = RunHold.APPROVAL
    else:
        enter_group(uow, run, now=now, actor=actor)
    run.save(update_fields=["concurrency_group", "cancels_older", "hold"])


def enter_group(uow: UnitOfWork, run: WorkflowRun, *, now: datetime, actor: Actor) -> None:
    """Let a run take its place in its group: cancel older runs, or set `hold` while one of them has open jobs.

    A job with a requested cancel does not keep a run waiting.
    """
    run.hold = ""
    if not run.concurrency_group:
        return
    if run.cancels_older:
        for older in open_runs_of_group(run).exclude(hold=RunHold.APPROVAL):
            _supersede(uow, older, now=now, actor=actor)
    elif has_older_run(run):
        run.hold = RunHold.CONCURRENCY
        uow.after_commit(count, CONCURRENCY_QUEUED)


def _supersede(uow: UnitOfWork, run: WorkflowRun, *, now: datetime, actor: Actor) -> None:
    # The lock comes before those of the jobs, as in `cancel_batch`: the first request names the reason.
    batch = Batch.objects.select_for_update(no_key=True).get(pk=run.batch_id)
    if batch.cancel_requested_at is None:
        batch.cancel_requested_at, batch.cancel_reason = now, CancelReason.SUPERSEDED
        batch.save(update_fields=["cancel_requested_at", "cancel_reason"])
    cancel_open_jobs(
        uow,
        batch,
        now=now,
        actor=actor,
        deadline_seconds=settings.CANCEL_DEADLINE_SECONDS,
        reason=CancelReason.SUPERSEDED,
        message="A newer run of the concurrency group has started.",
    )


def _group_of(run: WorkflowRun, text: str) -> str:
    """Return the evaluated group. A group that is too long for its column counts by its beginning and its hash."""
    context = ExpressionContext(
        event=run.event_payload,
        run_id=str(run.pk),
        sha=run.head_sha,
        ref=run.head_ref,
        actor=run.actor,
        facts=facts_of_run(run),
    )
    group = render(text, context).text.strip()
    if len(group) <= MAX_GROUP:
        return group
    digest = hashlib.sha256(group.encode()).hexdigest()
    return f"{group[: MAX_GROUP - 65]}~{digest}"


def _submit_jobs(
    uow: UnitOfWork,
    run: WorkflowRun,
    request: WorkflowRunRequest,
    specs: Sequence[ActionsSpec],
    context: AdmissionContext,
    *,
    actor: Actor,
) -> None:
    """Add the jobs in the order of their needs: a job depends on older jobs only, so there are no cycles."""
    project = run.repository.project
    base = Submission(
        org_slug=project.organization.slug,
        project_slug=project.slug,
        spec=specs[0],
        trigger_kind=run.event,
        trigger_actor=run.actor,
        correlation_id=request.correlation_id,
        source_address=request.source_address,
    )
    policy = configured_policy(ACTIONS)
    jobs: dict[str, Job] = {}
    for spec in in_order_of_needs(specs):
        submission = replace(base, spec=spec)
        job = new_job(submission, policy)
        admit_job(job, submission, context, EMPTY_SNAPSHOT, limited=is_limited(actor))
        job.batch, job.git_commit, job.git_ref = run.batch, run.head_sha, run.batch.git_ref
        jobs[spec.job_key] = job
    by_key = {spec.job_key: spec for spec in specs}
    for spec in specs:
        for key in spec.needs:
            if key in jobs:
                jobs[key].awaited = True
    transitions.look_up_lanes(uow, jobs.values())
    skipped = []
    trigger = {"trigger": run.event, "trigger_actor": run.actor, "run_id": run.pk, "job_key": None}
    for key, job in jobs.items():
        readiness = _initial_readiness(job, by_key[key], jobs)
        transitions.enqueue(
            uow,
            job,
            now=run.created_at,
            actor=actor,
            dependency_status=_initial_status(by_key[key], jobs),
            is_held=readiness != JobReadiness.READY,
            **trigger | {"job_key": key},
        )
        transitions.mark_changed(uow, job, run.created_at)
        create_steps(uow, job, by_key[key])
        if readiness == JobReadiness.SKIPPED:
            skipped.append(job)
    if skipped:
        uow.flush()  # the steps of a skipped job are rows that end with the job
        for job in skipped:
            transitions.skip(uow, job, now=run.created_at)
            transitions.mark_changed(uow, job, run.created_at)


def in_order_of_needs(specs: Sequence[ActionsSpec]) -> list[ActionsSpec]:
    """Return specifications so that each one follows those that it needs, else in their order."""
    placed: list[ActionsSpec] = []
    waiting, keys = list(specs), {spec.job_key for spec in specs}
    while waiting:
        done = {spec.job_key for spec in placed}
        ready = [spec for spec in waiting if set(spec.needs) & keys <= done]
        if not ready:
            raise ValueError("the needs of a workflow have no circle")
        placed.append(ready[0])
        waiting.remove(ready[0])
    return placed


def _initial_status(spec: ActionsSpec, jobs: Mapping[str, Job]) -> DependencyStatus:
    roots = tuple(jobs[key].job_ulid for key in spec.needs if key in jobs)
    return DependencyStatus(roots, any_end=frozenset(roots) if needs_any_end(spec.condition) else frozenset())


def _initial_readiness(job: Job, spec: ActionsSpec, jobs: Mapping[str, Job]) -> JobReadiness:
    """Decide on a new job. One whose needs are new jobs, too, is decided when these have ended."""
    if any(key in jobs for key in spec.needs):
        return JobReadiness.HELD
    return readiness_of(job)
