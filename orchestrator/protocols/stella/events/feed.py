"""The feed of events for one listener: a snapshot, then events, gaps and signs of life.

The stream of Server-Sent Events and the subscriptions of GraphQL send the same items, each in its own form.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final, NamedTuple

from orchestrator.events.channels import Audience, EventFilter, FeedBatch
from orchestrator.events.pages import Place
from orchestrator.events.place_tokens import encode_place
from orchestrator.events.reader import Gap, reader_of_running_loop
from orchestrator.http.asgi.server_sent_events import PING_SECONDS
from orchestrator.protocols.stella.events.snapshots import snapshots_of_running_loop

EVENT_PAGES: Final = "/api/events"


class FeedSnapshot(NamedTuple):
    """The numbers of the dashboard with which a feed begins.

    Attributes:
        numbers: As `GET /api/dashboard/metrics` has them. They contain all events that the feed does not send.
        place: The place before the first event.
    """

    numbers: dict[str, Any]
    place: Place


async def follow_events(
    audience: Audience, event_filter: EventFilter, *, after: Place | None
) -> AsyncGenerator[FeedSnapshot | FeedBatch | Gap, None]:
    """Yield a snapshot, and then batches and gaps for ever, or until a gap that ends the feed.

    A batch without events is a sign of life.

    Args:
        audience: The organizations whose events the listener may see.
        event_filter: The events that the listener requests.
        after: The place after which the feed begins; None: now.

    Raises:
        SourceUnavailable: The database did not answer.
    """
    items = reader_of_running_loop().listen(audience, event_filter, after=after, idle_seconds=PING_SECONDS)
    has_begun = False
    async with aclosing(items):
        async for item in items:
            if has_begun or isinstance(item, Gap):
                yield item
            else:
                has_begun = True
                yield FeedSnapshot(await snapshots_of_running_loop().read(audience), item.place)


def serialize_gap(gap: Gap) -> dict[str, Any]:
    """Return the events that a feed does not send. They are in `/api/events`."""
    after = encode_place(gap.after)
    return {
        "reason": str(gap.reason),
        "after": after,
        "until": None if gap.until is None else encode_place(gap.until),
        "events": f"{EVENT_PAGES}?after={after}",
    }


def place_after_gap(gap: Gap) -> Place:
    """Return the place at which a client continues after a gap."""
    return gap.after if gap.until is None else gap.until
