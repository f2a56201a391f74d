"""Object types of jobs."""

import strawberry
from strawberry.scalars import JSON

from orchestrator.protocols.stella.graph.event_objects import EventEnvelopeObject
from orchestrator.protocols.stella.graph.object_types import DateTime, Limit, Members, graph_type


@graph_type
class PendingReasonObject:
    """Why a job waits. `details` depend on `code`."""

    code: str
    message: str
    details: JSON


@graph_type
class JobFailureObject:
    """The reason of a failure or cancel. `class` is null for a cancel."""

    reason: str
    class_: str | None = strawberry.field(name="class")
    message: str


@graph_type
class JobIncidentObject:
    """The open incident of a failed job."""

    incident_id: strawberry.ID
    summary: str
    opened_at: DateTime


@graph_type
class JobAttemptObject:
    """One attempt of a job."""

    attempt: int
    attempt_id: strawberry.ID
    status: str
    worker_id: str | None
    failure: JobFailureObject | None
    created_at: DateTime
    started_at: DateTime | None
    completed_at: DateTime | None


@graph_type
class JobResultObject:
    """The product of a job, as its worker reported it."""

    exit_code: int | None
    outputs: JSON | None
    cursors: JSON | None
    verdict: str | None
    environment: JSON | None


def _attempts(parent: Members, first: Limit) -> list[JobAttemptObject]:
    found: list[JobAttemptObject] = parent["attempts"][:first]
    return found


def _events(parent: Members, first: Limit) -> list[EventEnvelopeObject]:
    found: list[EventEnvelopeObject] = parent["events"][:first]
    return found


def _dependencies(parent: Members, first: Limit) -> list["JobObject"]:
    found: list[JobObject] = parent["dependencies"][:first]
    return found


def _dependents(parent: Members, first: Limit) -> list["JobObject"]:
    found: list[JobObject] = parent["dependents"][:first]
    return found


@graph_type
class JobObject:
    """A job: its first attempt by name, its newest one by status."""

    job_id: strawberry.ID
    job_type: str
    tenant: str
    project: str
    status: str
    next_eligible_at: DateTime | None
    priority: str
    payload_digest: str
    correlation_id: str
    replay_of: strawberry.ID | None
    requested_by: str | None
    requested_at: DateTime | None
    attempt: int
    cancel_requested: bool
    created_at: DateTime
    started_at: DateTime | None
    completed_at: DateTime | None
    pending_reason: PendingReasonObject | None
    queue_position: int | None
    progress: JSON | None
    failure: JobFailureObject | None
    incident: JobIncidentObject | None
    attempts: list[JobAttemptObject] = strawberry.field(resolver=_attempts, description="The newest first.")
    events: list[EventEnvelopeObject] = strawberry.field(
        resolver=_events, description="Of all attempts, the newest first."
    )
    dependencies: list["JobObject"] = strawberry.field(resolver=_dependencies, description="Jobs that must end first.")
    dependents: list["JobObject"] = strawberry.field(resolver=_dependents, description="Jobs that wait for this one.")


@graph_type
class JobDetailObject(JobObject):
    """A single job, also with what it executes and has produced."""

    payload: JSON
    cursors: JSON
    timeout_seconds: int | None
    idempotency_key: str | None
    result: JobResultObject | None


@graph_type
class JobPageObject:
    """A page of jobs, the newest first. It may be short although `next` is not null."""

    results: list[JobObject]
    next: str | None = strawberry.field(description="For `after`. Null: there are no more.")
