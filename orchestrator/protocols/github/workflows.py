"""Stores events of GitHub for projects whose repositories have workflow files.

A project with a configured command runs that command instead. Unlike a command, workflows also run for tags and for any
action of a pull request: their files say which. The delivery is stored and answered at once; housekeeping reads the
files.
"""

from dataclasses import dataclass
from typing import Any

from orchestrator.protocols.github.deliveries import DeliveryFacts, save_delivery
from orchestrator.protocols.github.models import Outcome, WebhookDelivery
from orchestrator.protocols.github.serializers import (
    ActionPayload,
    PullRequestWorkflowPayload,
    PushEventPayload,
    PushWorkflowPayload,
)
from orchestrator.protocols.github.wire import IgnoredEvent, full_name_of, is_fork, sender_login, validated
from orchestrator.workflows.triggers import TriggerFacts, record_trigger
from runtime_jobs.db_time import database_now
from runtime_jobs.models import Project, Repository, WorkflowEvent
from runtime_jobs.workflows.matching import BRANCH, TAG
from runtime_jobs.workflows.payloads import pull_request_payload, push_payload

ACCEPTED = "workflow files of the commit are read"


@dataclass(frozen=True)
class WorkflowDelivery:
    """An event that may start workflow runs.

    Attributes:
        event: `push` or `pull_request`.
        trigger_id: The event; a repeated delivery has the same one.
        head_sha: The commit.
        facts: What else is known.
    """

    event: WorkflowEvent
    trigger_id: str
    head_sha: str
    facts: TriggerFacts


def workflow_repository(project: Project, full_name: str | None) -> Repository | None:
    """Return the repository of the project with this name, if its events start workflows."""
    owner, _, name = (full_name or "").partition("/")
    if project.configured_command or not name:
        return None
    return Repository.objects.filter(project=project, owner__iexact=owner, name__iexact=name).first()


def parse_workflow_delivery(
    kind: str, payload: dict[str, Any], delivery: DeliveryFacts
) -> WorkflowDelivery | IgnoredEvent:
    """Convert a payload to an event for workflows.

    Args:
        kind: Header `X-GitHub-Event`.
        payload: The signed payload.
        delivery: Facts about the delivery.

    Raises:
        ValidationError: The payload is not what GitHub sends; `errors` has the path of each wrong field.
    """
    if kind == "push":
        return _parse_push(payload, delivery)
    if kind == "pull_request":
        return _parse_pull_request(payload, delivery)
    return IgnoredEvent("ping" if kind == "ping" else "an event that makes no run")


def _parse_push(payload: dict[str, Any], delivery: DeliveryFacts) -> WorkflowDelivery | IgnoredEvent:
    pushed = validated(PushEventPayload, payload)
    if pushed["deleted"] or not pushed["after"].strip("0"):
        return IgnoredEvent("nothing was pushed, or a branch deleted")
    if not pushed["ref"].startswith((BRANCH, TAG)):
        return IgnoredEvent("neither a branch nor a tag")
    body = validated(PushWorkflowPayload, payload)
    commit = body["head_commit"] or {}
    facts = TriggerFacts(
        ref=body["ref"],
        payload=push_payload(
            ref=body["ref"],
            before=body["before"],
            after=body["after"],
            commit_id=commit.get("id", body["after"]),
            message=commit.get("message", ""),
            author=(commit.get("author") or {}).get("name", ""),
        ),
        actor_name=sender_login(payload) or "",
        base_sha=body["before"],
        correlation_id=delivery.correlation_id,
        source_address=delivery.source_address,
    )
    trigger_id = f"push:{body['ref']}:{body['before'][:40]}:{body['after']}"
    return WorkflowDelivery(WorkflowEvent.PUSH, _short(trigger_id), body["after"], facts)


def _parse_pull_request(payload: dict[str, Any], delivery: DeliveryFacts) -> WorkflowDelivery | IgnoredEvent:
    action = validated(ActionPayload, payload)["action"]
    body = validated(PullRequestWorkflowPayload, payload)
    number, pull_request = body["number"], body["pull_request"]
    head, base = pull_request["head"], pull_request["base"]
    facts = TriggerFacts(
        ref=f"refs/pull/{number}/head",
        payload=pull_request_payload(
            action=action,
            number=number,
            title=pull_request["title"],
            head_ref=head["ref"],
            head_sha=head["sha"],
            base_ref=base["ref"],
            base_sha=base["sha"],
            login=(pull_request["user"] or {}).get("login", ""),
        ),
        actor_name=sender_login(payload) or "",
        action=action,
        base_branch=base["ref"],
        base_sha=base["sha"],
        from_fork=is_fork(payload, full_name_of(payload) or ""),
        correlation_id=delivery.correlation_id,
        source_address=delivery.source_address,
    )
    return WorkflowDelivery(WorkflowEvent.PULL_REQUEST, f"pr_{action}:{number}:{head['sha']}", head["sha"], facts)


def _short(trigger_id: str) -> str:
    """Return a trigger id that fits its column: the commits at the end of it are what differs."""
    return trigger_id if len(trigger_id) <= 200 else f"push:{trigger_id[-195:]}"


def _is_redelivery(project: Project, delivery: DeliveryFacts) -> bool:
    if delivery.delivery_id is None:
        return False
    rows = WebhookDelivery.objects.filter(org_slug=project.organization.slug, project_slug=project.slug)
    return rows.filter(delivery_id=delivery.delivery_id, outcome=Outcome.ACCEPTED).exists()


def accept_delivery(
    project: Project, repository: Repository, parsed: WorkflowDelivery | IgnoredEvent, delivery: DeliveryFacts
) -> Outcome:
    """Store a delivery for the workflows of a repository, and its event if the event is new."""
    received_at = database_now()
    if isinstance(parsed, IgnoredEvent):
        save_delivery(project, parsed, delivery, received_at, outcome=Outcome.IGNORED, reason=parsed.reason)
        return Outcome.IGNORED
    is_new = record_trigger(
        repository,
        event=parsed.event,
        trigger_id=parsed.trigger_id,
        head_sha=parsed.head_sha,
        facts=parsed.facts,
    )
    if not is_new and _is_redelivery(project, delivery):
        return Outcome.DUPLICATE  # the row of the first delivery stays
    outcome = Outcome.ACCEPTED if is_new else Outcome.DUPLICATE
    event = IgnoredEvent(ACCEPTED, parsed.facts.action)
    save_delivery(project, event, delivery, received_at, outcome=outcome, reason=ACCEPTED, git_commit=parsed.head_sha)
    return outcome
