"""The subscriptions: events and logs, from the readers that the streams of the REST API use.

A resolver checks its arguments in a reader thread, and then needs no query of its own. The fields of messages are
resolved in the event loop, so no message has a field that queries the database.
"""

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any

import orjson
import strawberry

from orchestrator.core.principals import ClientPrincipal
from orchestrator.events.channels import Audience, EventFilter, FeedBatch
from orchestrator.events.pages import Place
from orchestrator.events.place_tokens import encode_place
from orchestrator.events.reader import Gap
from orchestrator.http.asgi.server_sent_events import PING_SECONDS
from orchestrator.protocols.stella.events.feed import FeedSnapshot, follow_events, place_after_gap, serialize_gap
from orchestrator.protocols.stella.events.parameters import audience_of, event_filter_of
from orchestrator.protocols.stella.graph.message_objects import JobEventMessageObject, RunLogMessageObject
from orchestrator.protocols.stella.graph.queries import Info, place_of
from orchestrator.protocols.stella.runs.wire import serialize_log_events
from orchestrator.protocols.stella.visible_jobs import MISSING, is_uuid, newest_attempt
from orchestrator.pubsub.log_hub import in_reader_thread
from orchestrator.step_logs import job_log_events
from runtime_jobs.errors import NotFound


@strawberry.type(name="Subscription", description="What changes, as it changes.")
class SubscriptionRoot:
    """The fields of subscriptions."""

    @strawberry.subscription(
        graphql_type=JobEventMessageObject,
        description="Events as they happen, as `GET /api/dashboard/events`: first a snapshot, then one message each.",
    )
    async def job_events(
        self,
        info: Info,
        *,
        tenant: str | None = None,
        job_types: list[str] | None = None,
        event_types: list[str] | None = None,
        job_id: strawberry.ID | None = None,
        after: str | None = None,
    ) -> AsyncGenerator[dict[str, Any], None]:
        def check() -> tuple[Audience, EventFilter, Place | None]:
            caller = info.context.caller
            wanted = event_filter_of(caller, job_types=job_types, event_types=event_types, job_id=job_id)
            return audience_of(caller, tenant), wanted, place_of(after)

        audience, event_filter, place = await in_reader_thread(check)
        items = follow_events(audience, event_filter, after=place)
        async with aclosing(items):
            async for item in items:
                for message in _event_messages(item):
                    yield message

    @strawberry.subscription(
        graphql_type=RunLogMessageObject,
        description="The log of the newest attempt of a job until its end, as `GET /runs/{runId}/logs`.",
    )
    async def run_logs(
        self, info: Info, run_id: strawberry.ID, after: str | None = None
    ) -> AsyncGenerator[dict[str, Any], None]:
        job_ulid = await in_reader_thread(_find_run, info.context.caller, run_id)
        batches = job_log_events.events(job_ulid, after or "", idle_seconds=PING_SECONDS)
        async with aclosing(batches):
            async for batch in batches:
                for event in job_log_events.parse_events(serialize_log_events(batch)):
                    yield {"id": event.id, event.name: event.content}


def _find_run(caller: ClientPrincipal, run_id: str) -> str:
    if not is_uuid(run_id):
        raise NotFound(MISSING)
    return newest_attempt(caller, run_id).job_ulid


def _event_messages(item: FeedSnapshot | FeedBatch | Gap) -> Iterator[dict[str, Any]]:
    """Yield the messages of an item of the feed. A batch without events is one message with its place only."""
    match item:
        case FeedSnapshot(numbers, place):
            yield {"place": encode_place(place), "snapshot": numbers}
        case Gap():
            yield {"place": encode_place(place_after_gap(item)), "gap": serialize_gap(item)}
        case FeedBatch(entries=(), place=place):
            yield {"place": encode_place(place)}
        case FeedBatch(entries=entries):
            for entry in entries:
                yield {"place": entry.place_token, "event": orjson.loads(entry.data)}
