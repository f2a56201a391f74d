"""Decides whether a job of a workflow run is queued, held or skipped when the jobs that it needs have ended."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from django.db.models.fields.json import KT, KeyTransform

from runtime_jobs.models.jobs import Job
from runtime_jobs.models.secrets import Variable
from runtime_jobs.models.workflow_runs import WorkflowEvent, WorkflowRun
from runtime_jobs.specs.actions import conclusion_of
from runtime_jobs.states import FAILED_CONCLUSIONS, Conclusion, JobState
from runtime_jobs.workflows.evaluation import ConditionStatus, ExpressionContext, ExpressionValue, decide_condition
from runtime_jobs.workflows.expressions import ExpressionError, status_functions
from runtime_jobs.workflows.templates import parse_condition, render_variables


class JobReadiness(StrEnum):
    """The decision on a job whose dependencies have ended as the job needs it."""

    READY = "ready"  # the job is queued
    HELD = "held"  # the job stays blocked, and is checked again when the cause has gone
    SKIPPED = "skipped"  # the job ends without being executed


@dataclass(frozen=True)
class JobEnd:
    """The end of a job of a run, as other jobs see it.

    Attributes:
        conclusion: The conclusion, or None while the job has not ended.
        has_succeeded: Whether the job counts as successful for the jobs that need it. A skipped one does not.
        needs: The keys of the jobs that it needed.
    """

    conclusion: Conclusion | None
    has_succeeded: bool
    needs: tuple[str, ...]


def readiness_of(job: Job) -> JobReadiness:
    """Decide on a blocked job of type `actions`, all of whose needs have ended.

    An expression that cannot be evaluated skips the job: no job runs whose condition is not true.

    Args:
        job: A locked job.
    """
    if job.batch_id is None:
        return JobReadiness.READY
    runs = WorkflowRun.objects.select_related("batch", "repository__project")
    run = runs.filter(batch_id=job.batch_id).first()
    if run is None:
        return JobReadiness.READY
    if run.hold:
        return JobReadiness.HELD
    condition = job.spec["condition"]
    if not condition and not job.spec["needs"]:
        return JobReadiness.READY
    context = condition_context(run, job.spec, job_ends(run))
    try:
        is_true = decide_condition(parse_condition(condition), context)
    except ExpressionError:
        is_true = False
    return JobReadiness.READY if is_true else JobReadiness.SKIPPED


def needs_any_end(condition: str) -> bool:
    """Return whether a job with this `if` is decided after any end of its needs: the `if` calls a status function."""
    expression = parse_condition(condition)
    return expression is not None and bool(status_functions(expression))


def condition_context(run: WorkflowRun, spec: Mapping[str, Any], ends: Mapping[str, JobEnd]) -> ExpressionContext:
    """Return the values for the `if` of a job.

    Args:
        run: The run with its batch and repository.
        spec: The stored specification of the job.
        ends: The jobs of the run by key.
    """
    known = ExpressionContext(
        event=run.event_payload,
        run_id=str(run.pk),
        sha=run.head_sha,
        ref=run.head_ref,
        actor=run.actor,
        variables=variables_of(run),
        env={},
        status=status_of_needs(spec["needs"], ends, is_canceled=run.batch.cancel_requested_at is not None),
        facts=facts_of_run(run, spec["job_key"]),
    )
    return render_variables(spec["env"], known)


def facts_of_run(run: WorkflowRun, job_key: str = "") -> dict[str, ExpressionValue]:
    """Return the fields of `shithub` that describe a run, by their whole names. The name of a ref is anybody's text.

    Args:
        run: The run with its repository.
        job_key: The key of a job of the run, or empty.
    """
    facts = {
        "event_name": str(run.event),
        "job": job_key,
        "ref_type": "tag" if run.head_ref.startswith("refs/tags/") else "branch",
        "repository": run.repository.full_name,
        "repository_owner": run.repository.owner,
        "run_attempt": "1",
        "run_number": str(run.run_index),
        "workflow": run.workflow_name,
    }
    ref_name = ExpressionValue(run.head_ref.split("/", 2)[-1], is_tainted=True)
    return {f"shithub.{name}": ExpressionValue(value) for name, value in facts.items()} | {"shithub.ref_name": ref_name}


def variables_of(run: WorkflowRun) -> dict[str, str]:
    """Return the values of `vars` for a run, by name in upper case. Runs of pull requests get none."""
    if run.event == WorkflowEvent.PULL_REQUEST:
        return {}
    organization = run.repository.project.organization_id
    rows = Variable.objects.filter(organization_id=organization).order_by("repository_id")
    shared = rows.filter(repository=None).values_list("name", "value")
    own = rows.filter(repository_id=run.repository_id).values_list("name", "value")
    return {name.upper(): value for name, value in [*shared, *own]}


def job_ends(run: WorkflowRun) -> dict[str, JobEnd]:
    """Return the jobs of a run by key, with those that it took over from its parent."""
    jobs = (
        Job.objects.filter(batch_id=run.batch_id)
        .annotate(job_key=KT("spec__job_key"), job_needs=KeyTransform("needs", "spec"))
        .only("state", "result", "failure_reason", "cancel_reason")
    )
    own = {
        job.job_key: JobEnd(conclusion_of(job), job.state == JobState.SUCCEEDED, tuple(job.job_needs)) for job in jobs
    }
    carried = {
        key: JobEnd(Conclusion(old["conclusion"]), old["has_succeeded"], tuple(old["needs"]))
        for key, old in run.carried.items()
    }
    return {key: {**carried, **own}[key] for key in run.job_keys if key in own or key in carried}


def status_of_needs(needs: list[str], ends: Mapping[str, JobEnd], *, is_canceled: bool) -> ConditionStatus:
    """Return the values of the status functions for a job with these needs.

    `success()` asks for the needs themselves, `failure()` and `cancelled()` for all jobs before the job.
    """
    before = [ends[key].conclusion for key in _ancestors(needs, ends)]
    return ConditionStatus(
        is_success=all(key in ends and ends[key].has_succeeded for key in needs) and not is_canceled,
        is_failure=any(conclusion in FAILED_CONCLUSIONS for conclusion in before),
        is_cancelled=is_canceled or Conclusion.CANCELLED in before,
    )


def _ancestors(needs: list[str], ends: Mapping[str, JobEnd]) -> Iterator[str]:
    seen, waiting = set[str](), list(needs)
    while waiting:
        key = waiting.pop()
        if key in seen or key not in ends:
            continue
        seen.add(key)
        yield key
        waiting += ends[key].needs
