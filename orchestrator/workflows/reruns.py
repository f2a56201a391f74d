"""Runs a workflow run again as a new run: all jobs, or the failed ones and those that need them."""

import secrets
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from orchestrator.core.idempotency import IdempotentRequest
from orchestrator.workflows.runs import WorkflowRunOutcome, WorkflowRunRequest, start_workflow_run
from runtime_jobs.errors import Invalid, NotFinal
from runtime_jobs.events import Actor
from runtime_jobs.models import Job, WorkflowEvent, WorkflowRun
from runtime_jobs.rollup import roll_up
from runtime_jobs.specs.readiness import JobEnd, job_ends
from runtime_jobs.states import Conclusion
from runtime_jobs.workflows.document import DispatchTrigger, Workflow
from runtime_jobs.workflows.payloads import dispatch_payload, resolve_inputs
from runtime_jobs.workflows.reruns import RunEdit, failed_and_dependent

MAX_REASON = 500
_NOT_REPEATED = (Conclusion.SUCCESS, Conclusion.NEUTRAL, Conclusion.SKIPPED)


class RerunScope(StrEnum):
    """The jobs that a rerun executes."""

    ALL = "all"
    FAILED = "failed"  # and those that need them


@dataclass(frozen=True)
class RerunRequest:
    """A request to run a run again.

    Attributes:
        actor_name: The person or program; `shithub.actor` of the new run.
        correlation_id: An id of the caller that links requests.
        source_address: The client's IP address.
        scope: The jobs to execute.
        edit: What the new run changes.
        reason: Why, for people.
    """

    actor_name: str
    correlation_id: str
    source_address: str | None = None
    scope: RerunScope = RerunScope.ALL
    edit: RunEdit = field(default_factory=RunEdit)
    reason: str = ""


def rerun_workflow(
    run: WorkflowRun,
    workflow: Workflow,
    request: RerunRequest,
    *,
    default_pool: str,
    actor: Actor,
    idempotency: IdempotentRequest | None = None,
) -> WorkflowRunOutcome:
    """Start a new run of the same file at the same commit, with the same event.

    It waits for an approval if the old run needed one and never got it.

    The transaction is that of `start_workflow_run`. A run that has ended does not change any more, so what is read
    here before it is still true there.

    Args:
        run: The old run, with its repository and batch.
        workflow: The file as it is at the commit of the run.
        request: The request.
        default_pool: The slug of the pool of projects that name none.
        actor: The client or operator.
        idempotency: The idempotency key. The same request again returns the first new run.

    Raises:
        NotFinal: The old run has not ended.
        Invalid: The edit is wrong, or no job failed although only failed jobs are requested.
        WorkflowRejected: A timeout exceeds that of the plan.
        LifecycleError: Any error of `start_workflow_run`.
    """
    ends = require_ended_run(run)
    if errors := request.edit.validate():
        raise Invalid(errors)
    payload = _payload(run, workflow, request.edit)
    workflow = request.edit.apply(workflow)
    keys, carried = None, dict[str, dict[str, Any]]()
    if request.scope == RerunScope.FAILED:
        keys = _failed_keys(ends, workflow)
        carried = _carried(run, ends, keys)
    new = WorkflowRunRequest(
        repository_id=run.repository_id,
        workflow_file=run.workflow_file,
        workflow=workflow,
        head_sha=run.head_sha,
        head_ref=run.head_ref,
        event=WorkflowEvent(run.event),
        event_payload=payload,
        trigger_id=f"rerun:{run.pk}:{secrets.token_hex(8)}",
        actor_name=request.actor_name,
        correlation_id=request.correlation_id,
        source_address=request.source_address,
        from_fork=run.from_fork,
        # An approval is for a commit, so it holds for each later run of it. A refusal is the cancel of a waiting run.
        needs_approval=run.needs_approval and run.approved_at is None,
        parent=run,
        job_keys=keys,
        carried=carried,
        edits=request.edit.as_json(),
        reason=request.reason[:MAX_REASON],
    )
    return start_workflow_run(new, default_pool=default_pool, actor=actor, idempotency=idempotency)


def require_ended_run(run: WorkflowRun) -> dict[str, JobEnd]:
    """Return the jobs of a run by key, all of which have ended.

    Raises:
        NotFinal: A job is open.
    """
    ends = job_ends(run)
    if roll_up([end.conclusion for end in ends.values()]) is None:
        raise NotFinal("The run has not ended. Cancel it first, or wait for its end.")
    return ends


def _payload(run: WorkflowRun, workflow: Workflow, edit: RunEdit) -> dict[str, Any]:
    if edit.inputs is None:
        return dict(run.event_payload)
    if run.event != WorkflowEvent.DISPATCH:
        raise Invalid({"inputs": [f"Only manually started runs have inputs. This one was started by {run.event}."]})
    values, errors = resolve_inputs(workflow.triggers.dispatch or DispatchTrigger(), edit.inputs)
    if errors:
        raise Invalid({f"inputs.{name}": messages for name, messages in errors.items()})
    return dispatch_payload(values)


def _failed_keys(ends: dict[str, JobEnd], workflow: Workflow) -> frozenset[str]:
    failed = frozenset(key for key, end in ends.items() if end.conclusion not in _NOT_REPEATED)
    keys = failed_and_dependent(failed, {job.key: job.needs for job in workflow.jobs})
    if not keys:
        raise Invalid({"only": ["No job of the run failed. Rerun all jobs instead."]})
    return keys


def _carried(run: WorkflowRun, ends: dict[str, JobEnd], keys: frozenset[str]) -> dict[str, dict[str, Any]]:
    """Return the jobs that are taken over, with the rows that executed them, perhaps in an earlier run."""
    jobs = {job.spec["job_key"]: job for job in Job.objects.filter(batch_id=run.batch_id)}
    carried: dict[str, dict[str, Any]] = {}
    for key, end in ends.items():
        if key in keys:
            continue
        own = {"job_id": jobs[key].pk, "name": jobs[key].spec["job_name"]} if key in jobs else {}
        carried[key] = {
            **run.carried.get(key, {}),
            **own,
            "conclusion": end.conclusion,
            "has_succeeded": end.has_succeeded,
            "needs": list(end.needs),
        }
    return carried
