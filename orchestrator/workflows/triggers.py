"""Starts runs for events: an event is stored at once, and housekeeping reads the workflow files of its commit.

A request of a webhook must be answered within seconds, and the mirror of the repository may have to be updated first.
Each step may be repeated: an event starts each file once, because its trigger id is unique.
"""

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db import transaction

from orchestrator.housekeeping.queue import request_task
from orchestrator.housekeeping.registry import PermanentFailure, SubjectGone, task
from orchestrator.repositories.contents import changed_paths, default_ref, has_commit
from orchestrator.repositories.errors import MirrorMissing, PathNotFound
from orchestrator.repositories.mirrors import update_mirror
from orchestrator.workflows import runs
from orchestrator.workflows.files import list_workflow_files, parse_file_at
from orchestrator.workflows.runs import WorkflowRunRequest
from orchestrator.workflows.schedules import store_schedules
from runtime_jobs.db_errors import is_connection_lost
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import LifecycleError, QuotaContended, QuotaExceeded, WorkflowRejected
from runtime_jobs.events import Actor
from runtime_jobs.models import RejectedWorkflow, Repository, WorkflowEvent, WorkflowRun, WorkflowTrigger
from runtime_jobs.workflows.diagnostics import Diagnostic
from runtime_jobs.workflows.document import Workflow
from runtime_jobs.workflows.matching import BRANCH, TriggerEvent, is_triggered

log = logging.getLogger(__name__)

TRIGGER_TASK = "workflow_trigger"
PROVIDER = Actor("client", "webhook")
MAX_AGE_HOURS = 24  # of an event that cannot be processed


@dataclass(frozen=True)
class TriggerFacts:
    """Contains the facts about an event beside its repository and commit.

    Attributes:
        ref: The full ref.
        payload: The values of `shithub.event`.
        actor_name: The person or program that caused the event.
        action: What happened to a pull request.
        base_branch: The branch that a pull request is for.
        base_sha: The commit before a push, or the one that a pull request is for.
        from_fork: The commit is that of another repository.
        correlation_id: An id of the caller that links requests.
        source_address: The client's IP address.
    """

    ref: str
    payload: Mapping[str, Any] = field(default_factory=dict)
    actor_name: str = ""
    action: str = ""
    base_branch: str = ""
    base_sha: str = ""
    from_fork: bool = False
    correlation_id: str = ""
    source_address: str | None = None


def record_trigger(
    repository: Repository, *, event: WorkflowEvent, trigger_id: str, head_sha: str, facts: TriggerFacts
) -> bool:
    """Store an event and request its processing, in the caller's transaction or one of its own.

    Args:
        repository: The repository.
        event: `push` or `pull_request`.
        trigger_id: The event. A repeated delivery has the same one.
        head_sha: The commit.
        facts: What else is known.

    Returns:
        Whether the event is new.
    """
    with transaction.atomic():
        row, is_new = WorkflowTrigger.objects.get_or_create(
            repository=repository,
            trigger_id=trigger_id,
            defaults={"event": event, "head_sha": head_sha, "facts": asdict(facts)},
        )
        if row.processed_at is None:
            request_task(TRIGGER_TASK, str(row.pk))
    return is_new


@task(TRIGGER_TASK)
def process_trigger(subject: str) -> None:
    """Start the runs of a stored event.

    Args:
        subject: The key of the event.

    Raises:
        SubjectGone: The event was deleted.
        PermanentFailure: The event could not be processed for `MAX_AGE_HOURS`.
        Exception: The event cannot be processed now; the task is repeated.
    """
    trigger = WorkflowTrigger.objects.select_related("repository").filter(pk=int(subject)).first()
    if trigger is None:
        raise SubjectGone(f"The event {subject} does not exist.")
    if trigger.processed_at is not None:
        return
    try:
        _require_commit(trigger)
        _Processing(trigger).run()
    except Exception as error:
        if is_connection_lost(error) or database_now() - trigger.received_at <= timedelta(hours=MAX_AGE_HOURS):
            raise
        reason = f"{type(error).__name__}: {error}"
        raise PermanentFailure(f"The event was not processed within {MAX_AGE_HOURS} hours. {reason}") from error
    trigger.processed_at = database_now()
    trigger.save(update_fields=["processed_at"])


def _require_commit(trigger: WorkflowTrigger) -> None:
    try:
        if has_commit(trigger.repository, trigger.head_sha):
            return
    except MirrorMissing:
        pass
    update_mirror(trigger.repository, commit=trigger.head_sha)


class _Processing:
    """The processing of one event."""

    def __init__(self, trigger: WorkflowTrigger) -> None:
        self._trigger = trigger
        self._repository = trigger.repository
        self._facts = TriggerFacts(**trigger.facts)
        self._event: TriggerEvent | None = None

    def run(self) -> None:
        """Start a run for each workflow file that the event triggers, and store what is wrong with the others."""
        workflows: dict[str, Workflow] = {}
        for path in list_workflow_files(self._repository, self._trigger.head_sha):
            try:
                parsed = parse_file_at(self._repository, self._trigger.head_sha, path)
            except PathNotFound:
                continue
            if parsed.workflow is None:
                self._reject(path, [found.as_json() for found in parsed.diagnostics])
                continue
            workflows[path] = parsed.workflow
        # Before the starts: a full queue must not delay the schedules.
        if self._is_push_to_default_branch():
            store_schedules(self._repository, workflows, push=self._trigger)
        for path, workflow in workflows.items():
            if is_triggered(workflow.triggers, self._triggering_event()):
                self._start(path, workflow)

    def _triggering_event(self) -> TriggerEvent:
        """Return the event for matching. The changed paths are read from git, once."""
        if self._event is None:
            is_push = self._trigger.event == WorkflowEvent.PUSH
            paths = None
            if self._facts.base_sha:
                paths = changed_paths(
                    self._repository, self._facts.base_sha, self._trigger.head_sha, from_merge_base=not is_push
                )
            self._event = TriggerEvent(
                name=self._trigger.event,
                ref=self._facts.ref,
                action=self._facts.action,
                base_branch=self._facts.base_branch,
                changed_paths=paths,
            )
        return self._event

    def _is_push_to_default_branch(self) -> bool:
        is_branch = self._trigger.event == WorkflowEvent.PUSH and self._facts.ref.startswith(BRANCH)
        return is_branch and default_ref(self._repository) == self._facts.ref

    def _start(self, path: str, workflow: Workflow) -> None:
        """Start a run. A refusal that will not last is raised, so the task is repeated; any other one is stored."""
        facts = self._facts
        request = WorkflowRunRequest(
            repository_id=self._repository.pk,
            workflow_file=path,
            workflow=workflow,
            head_sha=self._trigger.head_sha,
            head_ref=facts.ref,
            event=WorkflowEvent(self._trigger.event),
            event_payload=facts.payload,
            trigger_id=self._trigger.trigger_id,
            actor_name=facts.actor_name,
            correlation_id=facts.correlation_id or f"trigger-{self._trigger.pk}",
            source_address=facts.source_address,
            from_fork=facts.from_fork,
            needs_approval=facts.from_fork,
        )
        try:
            runs.start_workflow_run(request, default_pool=settings.DEFAULT_POOL, actor=PROVIDER)
        except (QuotaExceeded, QuotaContended):
            raise
        except WorkflowRejected as error:
            self._reject(path, [found.as_json() for found in error.diagnostics])
        except LifecycleError as error:
            self._reject(path, [Diagnostic("", 1, f"{error.code}: {error.message}").as_json()])

    def _reject(self, path: str, diagnostics: list[dict[str, Any]]) -> None:
        if WorkflowRun.objects.filter(
            repository=self._repository, workflow_file=path, trigger_id=self._trigger.trigger_id
        ).exists():
            return
        RejectedWorkflow.objects.update_or_create(
            repository=self._repository,
            workflow_file=path,
            trigger_id=self._trigger.trigger_id,
            defaults={
                "head_sha": self._trigger.head_sha,
                "head_ref": self._facts.ref,
                "event": self._trigger.event,
                "diagnostics": diagnostics,
            },
        )
