"""Prepares a workflow job for the runner that has claimed it.

A runner of the first generation evaluates neither `if` nor `vars` nor `shithub.actor`, and nothing in `with` and
`working-directory`. The server does so at the claim, when all values are known.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from orchestrator.core.unit_of_work import UnitOfWork
from orchestrator.step_logs.steps import skip_steps
from runtime_jobs.models import Job, JobStep, WorkflowRun
from runtime_jobs.workflows.evaluation import ConditionStatus, ExpressionContext, UndecidedError, decide_condition
from runtime_jobs.workflows.expressions import ExpressionError
from runtime_jobs.workflows.templates import parse_condition, render, render_for_runner, render_variables

# What a runner makes of this fails the step with the name: an error of one step does not prevent the claim.
_UNUSABLE = "${{{{ unusable.{} }}}}"


@dataclass(frozen=True)
class PreparedStep:
    """The texts of a step as a runner receives them."""

    run: str
    working_directory: str
    env: dict[str, str]
    with_values: dict[str, str]


@dataclass(frozen=True)
class PreparedJob:
    """The texts of a job as a runner receives them.

    Attributes:
        env: The variables of the job.
        steps: The texts of the steps by their keys.
        skipped: The keys of the steps whose condition is false. The runner does not receive them.
    """

    env: dict[str, str]
    steps: dict[int, PreparedStep]
    skipped: tuple[int, ...]


def prepare_job(
    run: WorkflowRun,
    job: Job,
    steps: Sequence[JobStep],
    *,
    secrets: Mapping[str, str],
    variables: Mapping[str, str],
    stops_at_failure: bool,
) -> PreparedJob:
    """Return what a runner receives of a job.

    Args:
        run: The run.
        job: The claimed job.
        steps: The steps of the job.
        secrets: The values of `secrets` by name.
        variables: The values of `vars` by name.
        stops_at_failure: The runner executes no step after a failed one, and evaluates no condition. A step that it
            reaches follows successful steps only, so `failure()` is false. Otherwise a status function decides nothing.
    """
    context = _context(run, secrets=secrets, variables=variables, stops_at_failure=stops_at_failure)
    env: dict[str, str] = dict(job.spec["env"])
    with_env = render_variables(env, context)
    skipped = tuple(step.pk for step in steps if is_skipped_step(step, with_env))
    return PreparedJob(
        env=_for_runner(env, context), steps={step.pk: _prepared(step, context) for step in steps}, skipped=skipped
    )


def skip_false_steps(uow: UnitOfWork, job: Job, prepared: PreparedJob, *, now: datetime) -> None:
    """Mark the steps of a claimed job as skipped whose condition is false."""
    skip_steps(uow, job, list(prepared.skipped), now=now)


def is_skipped_step(step: JobStep, context: ExpressionContext) -> bool:
    """Return whether the condition of a step is already known to be false.

    A condition that cannot be evaluated is left to the runner, except that the step must not be skipped for it.
    """
    if not step.condition:
        return False
    try:
        own = render_variables(step.env, context)
        merged = {**(context.env or {}), **(own.env or {})}
        known = ExpressionContext(**{**vars(context), "env": merged})
        return decide_condition(parse_condition(step.condition), known) is False
    except ExpressionError:
        return False


def _context(
    run: WorkflowRun, *, secrets: Mapping[str, str], variables: Mapping[str, str], stops_at_failure: bool
) -> ExpressionContext:
    return ExpressionContext(
        event=run.event_payload,
        run_id=str(run.pk),
        sha=run.head_sha,
        ref=run.head_ref,
        actor=run.actor,
        variables={name.upper(): value for name, value in variables.items()},
        secrets={name.upper(): value for name, value in secrets.items()},
        env={},
        status=ConditionStatus() if stops_at_failure else None,
    )


def _prepared(step: JobStep, context: ExpressionContext) -> PreparedStep:
    return PreparedStep(
        run=_for_runner({"run": step.run}, context)["run"],
        working_directory=_by_server({"working-directory": step.working_directory}, context)["working-directory"],
        env=_for_runner(step.env, context),
        with_values=_by_server(step.with_values, context),
    )


def _for_runner(texts: Mapping[str, Any], context: ExpressionContext) -> dict[str, str]:
    rendered = {}
    for name, text in texts.items():
        try:
            rendered[name] = render_for_runner(text, context)
        except ExpressionError:
            rendered[name] = _UNUSABLE.format("value")
    return rendered


def _by_server(texts: Mapping[str, Any], context: ExpressionContext) -> dict[str, str]:
    """Evaluate texts that no runner evaluates. The parser refuses `shithub.event` in them, so none is tainted."""
    rendered = {}
    for name, text in texts.items():
        try:
            value = render(text, context)
            rendered[name] = text if value.is_tainted else value.text
        except (ExpressionError, UndecidedError):
            rendered[name] = text
    return rendered
