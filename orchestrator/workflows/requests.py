"""Starts and repeats runs on request of a person or program: the file is read from the mirror of the repository."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from django.conf import settings

from orchestrator.core.idempotency import IdempotentRequest
from orchestrator.repositories.contents import is_in_history, resolve_ref
from orchestrator.repositories.errors import MirrorMissing, RefNotFound, RepositoryError
from orchestrator.repositories.tasks import request_mirror
from orchestrator.workflows import reruns, runs
from orchestrator.workflows.files import require_workflow
from orchestrator.workflows.reruns import RerunRequest
from orchestrator.workflows.runs import WorkflowRunOutcome, WorkflowRunRequest
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import Invalid, LifecycleError, MirrorOutdated, WorkflowUnreadable
from runtime_jobs.events import Actor
from runtime_jobs.models import Repository, WorkflowEvent, WorkflowRun
from runtime_jobs.workflows.document import Workflow
from runtime_jobs.workflows.matching import BRANCH, TAG
from runtime_jobs.workflows.payloads import dispatch_payload, resolve_inputs

FRESH: Final = timedelta(seconds=10)  # since the update of a mirror: what is missing then does not exist
RETRY_SECONDS: Final = 5


@dataclass(frozen=True)
class RunStart:
    """A request to start a run.

    Attributes:
        workflow_file: The path of the file.
        ref: A full ref, or the name of a branch or tag.
        actor_name: The person or program.
        correlation_id: An id of the caller that links requests.
        source_address: The client's IP address.
        commit: A commit of the history of the ref; None: its newest one.
        event: The event of the run.
        inputs: The inputs of a manual start.
        event_payload: The payload of another event.
    """

    workflow_file: str
    ref: str
    actor_name: str
    correlation_id: str
    source_address: str | None = None
    commit: str | None = None
    event: WorkflowEvent = WorkflowEvent.DISPATCH
    inputs: Mapping[str, str] = field(default_factory=dict)
    event_payload: Mapping[str, Any] = field(default_factory=dict)


def start_run(
    repository: Repository, start: RunStart, *, actor: Actor, idempotency: IdempotentRequest | None = None
) -> WorkflowRunOutcome:
    """Start a run of a workflow file at a ref. Filters of branches and paths do not apply.

    Args:
        repository: The repository.
        start: The request.
        actor: The client or operator.
        idempotency: The idempotency key. The same request again returns the first run.

    Raises:
        Invalid: The ref, the commit or an input is wrong, or the file does not have the event.
        MirrorOutdated: The mirror does not have the ref or commit, or its newest file of the ref is missing or refuses
            the request, and it was not updated just now.
        WorkflowUnreadable: The file does not exist at the commit, or the mirror cannot be read.
        WorkflowRejected: The file is wrong.
        LifecycleError: Any error of `start_workflow_run`.
    """
    ref, commit = _resolve(repository, start)
    try:
        workflow = require_workflow(repository, commit, start.workflow_file)
        request = WorkflowRunRequest(
            repository_id=repository.pk,
            workflow_file=start.workflow_file,
            workflow=workflow,
            head_sha=commit,
            head_ref=ref,
            event=start.event,
            event_payload=_payload(workflow, start),
            trigger_id=f"dispatch:{secrets.token_hex(16)}",
            actor_name=start.actor_name,
            correlation_id=start.correlation_id,
            source_address=start.source_address,
        )
        return runs.start_workflow_run(
            request, default_pool=settings.DEFAULT_POOL, actor=actor, idempotency=idempotency
        )
    except (Invalid, WorkflowUnreadable) as refusal:
        if start.commit is not None or _fresh_age(repository) is not None:
            raise
        raise _outdated(repository, f"may be older than the file. {_reasons(refusal)}") from refusal


def _resolve(repository: Repository, start: RunStart) -> tuple[str, str]:
    """Return the full ref and the commit.

    The commit is in the history of the ref: a run of a branch has secrets, and the mirror has commits of forks.
    """
    names = [start.ref] if start.ref.startswith("refs/") else [f"{BRANCH}{start.ref}", f"{TAG}{start.ref}"]
    try:
        for name in names:
            try:
                commit = resolve_ref(repository, name)
            except RefNotFound:
                continue
            if start.commit is None:
                return name, commit
            if is_in_history(repository, start.commit, commit):
                return name, start.commit
            raise _missing(repository, "commit", f"the commit {start.commit} in the history of {name}")
    except MirrorMissing:
        pass
    except RepositoryError as error:
        raise WorkflowUnreadable(f"The repository {repository.full_name} cannot be read: {error}") from error
    raise _missing(repository, "ref", f"a branch or tag {start.ref!a}")


def _missing(repository: Repository, member: str, what: str) -> LifecycleError:
    """Request an update of the mirror, and return the error: final if the mirror was updated just now.

    A ref that was pushed seconds ago may be missing. The network is not used in a request.
    """
    age = _fresh_age(repository)
    if age is None:
        return _outdated(repository, f"does not have {what}", member)
    request_mirror(repository.pk, delay=FRESH - age)
    seconds = f"{age.total_seconds():.0f} seconds"
    return Invalid({member: [f"The repository {repository.full_name} does not have {what}, as of {seconds} ago."]})


def _fresh_age(repository: Repository) -> timedelta | None:
    """Return the time since the update of the mirror, or None if the origin may have changed since."""
    if repository.mirrored_at is None:
        return None
    age = max(timedelta(0), database_now() - repository.mirrored_at)
    return age if age < FRESH else None


def _outdated(repository: Repository, lack: str, member: str = "workflow_file") -> MirrorOutdated:
    request_mirror(repository.pk)
    return MirrorOutdated(
        f"{member}: The copy of the repository {repository.full_name} {lack}. An update of the copy was requested. "
        f"Repeat the request after {RETRY_SECONDS} seconds.",
        retry_after=RETRY_SECONDS,
    )


def _reasons(refusal: LifecycleError) -> str:
    if not isinstance(refusal, Invalid):
        return str(refusal).rstrip(".")
    return "; ".join(f"{field}: {errors[0].rstrip('.')}" for field, errors in refusal.errors.items())


def _payload(workflow: Workflow, start: RunStart) -> dict[str, Any]:
    triggers = workflow.triggers
    declared: dict[WorkflowEvent, Any] = {
        WorkflowEvent.PUSH: triggers.push,
        WorkflowEvent.PULL_REQUEST: triggers.pull_request,
        WorkflowEvent.SCHEDULE: triggers.schedules or None,
        WorkflowEvent.DISPATCH: triggers.dispatch,
    }
    if declared[start.event] is None:
        raise Invalid({"event": [f"The workflow {start.workflow_file} does not have the event {start.event}."]})
    if triggers.dispatch is None or start.event != WorkflowEvent.DISPATCH:
        if start.inputs:
            raise Invalid({"inputs": ["Only the event workflow_dispatch has inputs."]})
        return dict(start.event_payload)
    if start.event_payload:
        raise Invalid({"event_payload": ["The payload of workflow_dispatch is its inputs. Send them as inputs."]})
    values, errors = resolve_inputs(triggers.dispatch, start.inputs)
    if errors:
        raise Invalid({f"inputs.{name}": messages for name, messages in errors.items()})
    return dispatch_payload(values)


def rerun(
    run: WorkflowRun, request: RerunRequest, *, actor: Actor, idempotency: IdempotentRequest | None = None
) -> WorkflowRunOutcome:
    """Run a run again with the workflow file of its commit.

    Args:
        run: The run, with its repository and batch.
        request: The request.
        actor: The client or operator.
        idempotency: The idempotency key. The same request again returns the first new run.

    Raises:
        NotFinal: The run has not ended.
        WorkflowUnreadable: The file cannot be read at the commit any more.
        WorkflowRejected: The file is wrong.
        LifecycleError: Any error of `rerun_workflow`.
    """
    reruns.require_ended_run(run)
    workflow = require_workflow(run.repository, run.head_sha, run.workflow_file)
    return reruns.rerun_workflow(
        run, workflow, request, default_pool=settings.DEFAULT_POOL, actor=actor, idempotency=idempotency
    )
