"""Object types of the messages of subscriptions."""

import strawberry

from orchestrator.protocols.stella.graph.dashboard_objects import DashboardObject
from orchestrator.protocols.stella.graph.event_objects import EventEnvelopeObject, EventGapObject
from orchestrator.protocols.stella.graph.object_types import DateTime, graph_type


@graph_type
class JobEventMessageObject:
    """A message of `jobEvents`: a snapshot, an event, a gap, or only a place: a sign of life."""

    place: str = strawberry.field(description="For `after`, to continue behind this message.")
    snapshot: DashboardObject | None
    event: EventEnvelopeObject | None
    gap: EventGapObject | None


@graph_type
class LogChunkObject:
    """Output of a step."""

    step: int
    offset: int
    text: str


@graph_type
class LogStepObject:
    """The status of a step."""

    step: int
    id: strawberry.ID | None
    step_id: str | None
    name: str | None
    status: str | None
    conclusion: str | None
    started_at: DateTime | None
    completed_at: DateTime | None


@graph_type
class LogEndObject:
    """The end of a log. `status` is that of the job, `state` its state in the native API."""

    status: str | None
    state: str | None
    exit_code: int | None


@graph_type
class RunLogMessageObject:
    """A message of `runLogs`: output, the status of a step, or the end."""

    id: str = strawberry.field(description="For `after`, to continue behind this message.")
    chunk: LogChunkObject | None
    step: LogStepObject | None
    end: LogEndObject | None
