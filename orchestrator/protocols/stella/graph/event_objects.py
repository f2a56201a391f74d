"""Object types of events."""

import strawberry
from strawberry.scalars import JSON

from orchestrator.protocols.stella.graph.object_types import DateTime, graph_type


@graph_type
class EventResultObject:
    """The result of a job that has ended."""

    verdict: str | None
    exit_code: int | None


@graph_type
class EventPayloadObject:
    """The change that an event reports. Events of operators have `actor` and `details` only."""

    status: str | None
    duration: float | None
    result: EventResultObject | None
    actor: str
    details: JSON


@graph_type
class EventProvenanceObject:
    """The worker of an event, and the fingerprint of its lease."""

    worker_id: str | None
    lease_id: str | None
    task_runner_id: str | None


@graph_type
class EventIntegrityObject:
    """The place of an event in the hash chain of its attempt."""

    attempt: int
    sequence: int
    prev_hash: str | None
    hash: str


@graph_type
class EventEnvelopeObject:
    """An event (document 004, section 6.1). Equal in every stream, page and delivery."""

    event_id: strawberry.ID
    event_type: str
    timestamp: DateTime
    tenant: str | None
    job_id: strawberry.ID | None
    job_type: str | None
    correlation_id: str | None
    idempotency_key: str
    payload: EventPayloadObject
    provenance: EventProvenanceObject | None
    integrity: EventIntegrityObject | None


@graph_type
class EventPageObject:
    """A page of events, the oldest first. It may be short although `isComplete` is false."""

    results: list[EventEnvelopeObject]
    place: str = strawberry.field(description="For `after` of a later query, also when the page is complete.")
    is_complete: bool = strawberry.field(description="There are no later events yet.")


@graph_type
class EventGapObject:
    """Events that a subscription does not send. They are in the query `events`, after `after`."""

    reason: str
    after: str
    until: str | None
    events: str
