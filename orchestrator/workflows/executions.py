"""Executes workflow jobs by a worker of ours, step by step: the server evaluates a step when it begins.

The worker reports what the steps before have left, and receives what to run. So expressions have one implementation,
and a value of a secret leaves the server only for a step that refers to it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from leases.fencing import LockedLease, lock_lease, require_valid_lease
from orchestrator.core.counters import STEP_TIMEOUTS, count
from orchestrator.core.unit_of_work import UnitOfWork, operation
from orchestrator.identity.request_tokens import TOKEN_VARIABLE, request_environment
from orchestrator.job_tokens.claims import JobToken, TokenPurpose, new_token
from orchestrator.secrets.operations import SecretSnapshot, snapshot_secrets, stored_secrets
from orchestrator.step_logs import step_log_writes
from orchestrator.step_logs.steps import StepChange, change_step
from orchestrator.workflows.job_rows import require_run
from runtime_jobs.errors import Invalid
from runtime_jobs.models import Job, JobStep, WorkflowRun
from runtime_jobs.specs import JOB_TYPES
from runtime_jobs.specs.readiness import facts_of_run
from runtime_jobs.states import Conclusion, StepStatus
from runtime_jobs.workflows.evaluation import (
    ConditionStatus,
    ExpressionContext,
    ExpressionValue,
    UndecidedError,
    decide_condition,
)
from runtime_jobs.workflows.expressions import STEP_MEMBERS, ExpressionError
from runtime_jobs.workflows.parsing import RESERVED_VARIABLES
from runtime_jobs.workflows.templates import parse_condition, render, render_for_shell
from workers.models import Worker

PREFIXES: Final = ("GITHUB_", "SHITHUB_")  # of the variables that describe the run


@dataclass(frozen=True)
class StartedJob:
    """The facts that a worker needs before the first step.

    Attributes:
        run: The run, with its repository.
        step_count: The number of steps.
        checkout_token: The token with which the worker reads the repository.
    """

    run: WorkflowRun
    step_count: int
    checkout_token: JobToken


@dataclass(frozen=True)
class PriorSteps:
    """The values that the steps before have left.

    Attributes:
        has_failed: One of them failed, and the job does not continue on its error.
        env: The variables that they have set for later steps.
        steps: By the id of a step its `outcome`, `conclusion` and `outputs`.
    """

    has_failed: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    steps: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class StepOrder:
    """The evaluated texts of a step, which a worker executes.

    Attributes:
        is_skipped: Nothing: the condition is false.
        error: Why the step fails without being executed, or empty.
        run: The script, or empty.
        uses: The action, or empty.
        with_values: The values for the action.
        working_directory: Relative to the workspace, or empty.
        environment: The variables of the step.
        continue_on_error: Whether the job continues after a failure.
        step_id: The id of the step, or empty.
        shell: The shell of the script, or empty for the default.
    """

    is_skipped: bool = False
    error: str = ""
    run: str = ""
    uses: str = ""
    with_values: Mapping[str, str] = field(default_factory=dict)
    working_directory: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    continue_on_error: bool = False
    step_id: str = ""
    shell: str = ""


@operation
def begin_job(uow: UnitOfWork, *, lease_ulid: str, worker: Worker) -> StartedJob:
    """Store the snapshot of a job's secrets, and return what its worker needs. A repeat changes nothing.

    Raises:
        StaleLease: The lease is unknown, has ended or expired.
        SealedValueError: A secret cannot be opened.
    """
    locked = _lock(lease_ulid, worker)
    job, lease = locked.job, locked.lease
    run = require_run(job)
    _values_of(uow, job, run, locked)
    token = new_token(
        TokenPurpose.CHECKOUT,
        runner_id=worker.pk,
        job_id=job.pk,
        run_id=run.pk,
        repository_id=run.repository_id,
        fence=lease.fence,
        chain=0,
        now=locked.now,
    )
    return StartedJob(run, JobStep.objects.filter(job=job).count(), token)


@operation
def begin_step(uow: UnitOfWork, *, lease_ulid: str, worker: Worker, index: int, state: PriorSteps) -> StepOrder:
    """Evaluate a step, mark it as running or skipped, and return what the worker does. A repeat changes nothing.

    Raises:
        StaleLease: The lease is unknown, has ended or expired.
        Invalid: The job has no such step.
        InvalidTransition: The step has ended.
    """
    locked = _lock(lease_ulid, worker)
    job = locked.job
    step = _step_of(job, index)
    run = require_run(job)
    values = _values_of(uow, job, run, locked)
    order = _order(step, job, run, values, state, now=locked.lease.leased_at)
    change = StepChange(StepStatus.SKIPPED if order.is_skipped else StepStatus.RUNNING)
    if change_step(uow, step, change, now=locked.now) and step.is_ended:
        step_log_writes.close_step_log(uow, step=step)
    return order


@operation
def end_step(uow: UnitOfWork, *, lease_ulid: str, worker: Worker, index: int, conclusion: Conclusion) -> None:
    """End a step. The same end again changes nothing.

    Args:
        lease_ulid: The lease.
        worker: The caller.
        index: The position of the step in its job.
        conclusion: The conclusion. A step that was stopped is `cancelled`.

    Raises:
        StaleLease: The lease is unknown, has ended or expired.
        Invalid: The job has no such step.
        InvalidTransition: The step has ended otherwise.
    """
    locked = _lock(lease_ulid, worker)
    step = _step_of(locked.job, index)
    is_cancelled = conclusion == Conclusion.CANCELLED
    change = StepChange(StepStatus.CANCELLED if is_cancelled else StepStatus.COMPLETED, conclusion)
    if change_step(uow, step, change, now=locked.now):
        step_log_writes.close_step_log(uow, step=step)
        if conclusion == Conclusion.TIMED_OUT:
            uow.after_commit(count, STEP_TIMEOUTS)


def _lock(lease_ulid: str, worker: Worker) -> LockedLease:
    locked = lock_lease(lease_ulid=lease_ulid, worker=worker)
    require_valid_lease(locked)
    if not JOB_TYPES[locked.job.job_type].has_steps:
        raise Invalid({"lease_id": [f"Jobs of type {locked.job.job_type} have no steps of a workflow."]})
    return locked


def _step_of(job: Job, index: int) -> JobStep:
    step = JobStep.objects.select_for_update(no_key=True).filter(job=job, index=index).first()
    if step is None:
        raise Invalid({"index": ["The job has no such step."]})
    step.job = job
    return step


def _values_of(uow: UnitOfWork, job: Job, run: WorkflowRun, locked: LockedLease) -> SecretSnapshot:
    """Return the secrets and variables of the job. They are read once for a lease: the log masks these."""
    stored = stored_secrets(job)
    if stored is not None:
        return stored
    identity = request_environment(job, run, now=locked.lease.leased_at)
    masks = [identity[TOKEN_VARIABLE]] if identity else []
    return snapshot_secrets(uow, job, run, more_masks=masks, now=locked.now)


def _order(
    step: JobStep, job: Job, run: WorkflowRun, values: SecretSnapshot, state: PriorSteps, *, now: datetime
) -> StepOrder:
    fixed = StepOrder(
        step_id=step.step_id,
        continue_on_error=step.continue_on_error,
        shell=job.spec["steps"][step.index].get("shell", ""),
    )
    context = _context(job, run, values, state)
    try:
        context = _with_variables(context, job.spec["env"])
        # A step before may have copied a text of the event.
        left = {name: ExpressionValue(value, is_tainted=True) for name, value in state.env.items()}
        context = replace(context, env={**(context.env or {}), **left})
        context = _with_variables(context, step.env)
        if not decide_condition(parse_condition(step.condition) if step.condition else None, context):
            return replace(fixed, is_skipped=True)
        run_text, inputs = render_for_shell(step.run, context, RESERVED_VARIABLES)
        environment = {name: value.text for name, value in (context.env or {}).items() if value is not None}
        return replace(
            fixed,
            run=run_text,
            uses=step.uses,
            with_values={name: render(text, context).text for name, text in step.with_values.items()},
            working_directory=render(step.working_directory, context).text,
            environment=_described(job, run) | request_environment(job, run, now=now) | environment | inputs,
        )
    except (ExpressionError, UndecidedError) as error:
        return replace(fixed, error=str(error))


def _context(job: Job, run: WorkflowRun, values: SecretSnapshot, state: PriorSteps) -> ExpressionContext:
    return ExpressionContext(
        event=run.event_payload,
        run_id=str(run.pk),
        sha=run.head_sha,
        ref=run.head_ref,
        actor=run.actor,
        variables={name.upper(): value for name, value in values.variables.items()},
        secrets={name.upper(): value for name, value in values.secrets.items()},
        env={},
        status=ConditionStatus(is_success=not state.has_failed, is_failure=state.has_failed),
        facts=facts_of_run(run, job.spec["job_key"]) | _facts_of_steps(state),
    )


def _facts_of_steps(state: PriorSteps) -> dict[str, ExpressionValue]:
    facts = {
        "job.status": ExpressionValue("failure" if state.has_failed else "success"),
        "runner.os": ExpressionValue("Linux"),
        "runner.arch": ExpressionValue("X64"),
        "runner.name": ExpressionValue("runworker"),
    }
    for step_id, left in state.steps.items():
        for member in STEP_MEMBERS:
            facts[f"steps.{step_id}.{member}"] = ExpressionValue(left[member])
        for name, value in left["outputs"].items():
            facts[f"steps.{step_id}.outputs.{name}"] = ExpressionValue(value, is_tainted=True)
    return facts


def _with_variables(context: ExpressionContext, env: Mapping[str, str]) -> ExpressionContext:
    """Return a context with further variables, whose texts refer to those that are there."""
    return replace(context, env={**(context.env or {}), **{name: render(text, context) for name, text in env.items()}})


def _described(job: Job, run: WorkflowRun) -> dict[str, str]:
    """Return the variables that describe the run to programs."""
    known = facts_of_run(run, job.spec["job_key"])
    facts = {name.removeprefix("shithub.").upper(): value.text for name, value in known.items()}
    facts |= {"ACTOR": run.actor, "REF": run.head_ref, "RUN_ID": str(run.pk), "SHA": run.head_sha}
    return {"CI": "true", "GITHUB_ACTIONS": "true"} | {
        prefix + name: value for prefix in PREFIXES for name, value in facts.items()
    }
