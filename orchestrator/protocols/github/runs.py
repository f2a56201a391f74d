"""What an event makes: a job of the project's configured command, within a batch that remembers the event."""

from datetime import datetime

from orchestrator.protocols.github.deliveries import Delivery
from orchestrator.protocols.github.wire import Event
from orchestrator.services import Submission
from runtime_jobs import validators
from runtime_jobs.errors import Invalid
from runtime_jobs.models import Batch, Project
from runtime_jobs.specs import RuntimeSpec


def submission_of(project: Project, event: Event, delivery: Delivery) -> Submission:
    """Raises Invalid."""
    return Submission(
        org_slug=project.organization.slug,
        project_slug=project.slug,
        spec=spec_of(project, event),
        trigger_kind=event.kind,
        trigger_actor=event.actor,
        correlation_id=delivery.correlation_id,
        source_address=delivery.source_address,
    )


def spec_of(project: Project, event: Event) -> RuntimeSpec:
    """The project's configured command on the event's commit. A fork's code gets no network, whatever is configured.

    Raises Invalid: not everything that the columns can hold came through the admin's form."""
    wrong = {
        "configured_command": validators.validate_command(project.configured_command),
        "configured_directory": validators.validate_directory(project.configured_directory),
    }
    if errors := {name: [why] for name, why in wrong.items() if why}:
        raise Invalid(errors, "The project's configured command cannot be run.")
    return RuntimeSpec(
        repo_url=event.repo_url,
        owner=event.owner,
        repo=event.name,
        ref=event.ref,
        git_commit=event.commit,
        pull_request_number=event.number,
        working_directory=project.configured_directory,
        command=tuple(project.configured_command),
        timeout_seconds=project.configured_timeout_seconds,
        allow_network=project.configured_network and not event.from_fork,
        allow_exec=True,
    )


def batch_of(submission: Submission, event: Event, delivery: Delivery, at: datetime) -> Batch:
    """Stored, in the caller's transaction."""
    return Batch.objects.create(
        org_slug=submission.org_slug,
        project_slug=submission.project_slug,
        repo_url=event.repo_url,
        git_ref=event.ref,
        git_commit=event.commit,
        trigger_kind=event.kind,
        trigger_actor=event.actor,
        details=_details(event, delivery),
        correlation_id=submission.correlation_id,
        created_at=at,
    )


def _details(event: Event, delivery: Delivery) -> dict[str, str | int | bool | None]:
    return {
        "provider": "github",
        "event_key": event.key,
        "delivery_id": delivery.delivery_id,
        "action": event.action,
        "pull_request_number": event.number,
        "from_fork": event.from_fork,
    }
