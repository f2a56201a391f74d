"""Channels of events: what is kept in memory for the listeners of one audience, and their places in it.

A channel keeps its newest events once for all its listeners. A listener has only a number, that of its next event. So
the memory of a channel is bounded however slowly clients read, and a slow one delays no other.
"""

import asyncio
from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple

import orjson

from orchestrator.events.envelopes import envelope_of
from orchestrator.events.pages import Place, StoredEvent
from orchestrator.events.place_tokens import encode_place
from orchestrator.pubsub.log_hub import Topic

MAX_ENTRIES: Final = 2_000  # of one channel
MAX_BYTES: Final = 4 << 20
MAX_BATCH_BYTES: Final = 128 << 10  # of one send: a client that reads slowly gets several

Audience = frozenset[str] | None  # the organizations whose events a listener may see; None: all, and the installation's


class FeedEntry(NamedTuple):
    """An event as it is sent, encoded once.

    Attributes:
        place: The place of the event.
        place_token: The place as clients get it.
        org_slug: The organization, or None.
        event_type: The type.
        job_type: The job type, or None.
        root_job_id: The job, `rtj_…`, or None.
        data: The envelope as JSON.
    """

    place: Place
    place_token: str
    org_slug: str | None
    event_type: str
    job_type: str | None
    root_job_id: str | None
    data: bytes

    @property
    def frame(self) -> bytes:
        """The event as a Server-Sent Event. JSON escapes line ends, so the data is one line."""
        return b"id: %s\ndata: %s\n\n" % (self.place_token.encode(), self.data)


def encode_entry(event: StoredEvent) -> FeedEntry:
    """Return the entry of a stored event."""
    return FeedEntry(
        event.place,
        encode_place(event.place),
        event.org_slug,
        event.event_type,
        event.job_type,
        event.root_job_id,
        orjson.dumps(envelope_of(event)),
    )


@dataclass(frozen=True)
class EventFilter:
    """The events that a listener wants; None is any.

    Attributes:
        job_types: The job types.
        event_types: The event types.
        root_job_id: One job, `rtj_…`.
    """

    job_types: frozenset[str] | None = None
    event_types: frozenset[str] | None = None
    root_job_id: str | None = None

    def matches(self, event: FeedEntry | StoredEvent) -> bool:
        """Return whether the listener wants the event."""
        return (
            (self.job_types is None or event.job_type in self.job_types)
            and (self.event_types is None or event.event_type in self.event_types)
            and (self.root_job_id is None or event.root_job_id == self.root_job_id)
        )


@dataclass(frozen=True)
class FeedBatch:
    """Events that are sent together.

    Attributes:
        entries: The events.
        place: The place after them. All earlier events that the listener wants were sent.
        frames: The events as Server-Sent Events.
    """

    entries: tuple[FeedEntry, ...]
    place: Place
    frames: bytes = field(repr=False)

    @classmethod
    def of(cls, entries: tuple[FeedEntry, ...], place: Place) -> "FeedBatch":
        """Return a batch with its frames."""
        return cls(entries, place, b"".join(entry.frame for entry in entries))


class EventChannel:
    """The newest events of one audience.

    Attributes:
        audience: The organizations of the channel.
        first: The number of the first kept event.
        topic: Wakes the listeners.
        started: Set once the channel gets all events after `start`.
        start: The place after which the channel has events.
    """

    def __init__(self, audience: Audience) -> None:
        self.audience = audience
        self.topic = Topic("events")
        self.started = asyncio.Event()
        self.start = Place(0)
        self._entries: deque[FeedEntry] = deque()
        self.first = 0
        self._size = 0
        self._batches: dict[tuple[int, EventFilter], tuple[FeedBatch, int]] = {}

    @property
    def end(self) -> int:
        """The number of the next event."""
        return self.first + len(self._entries)

    def begin(self, place: Place) -> None:
        """Begin at a place. Called before the events after it are read."""
        self.start = place
        self.started.set()

    def accepts(self, org_slug: str | None) -> bool:
        """Return whether an event of this organization belongs to the channel."""
        return self.audience is None or org_slug in self.audience

    def append(self, entry: FeedEntry) -> None:
        """Add the next event, and drop the oldest ones beyond the limits. `wake` follows."""
        self._entries.append(entry)
        self._size += len(entry.data)
        while len(self._entries) > MAX_ENTRIES or self._size > MAX_BYTES:
            dropped = self._entries.popleft()
            self.first += 1
            self._size -= len(dropped.data)
            self.start = dropped.place
        self._batches.clear()

    def wake(self) -> None:
        """Wake the listeners, now or shortly after the last time."""
        self.topic.note_change()

    def discard(self, place: Place) -> None:
        """Drop all events and begin at a lower place, because the database was restored. Each listener gets a gap."""
        self.first = self.end + 1
        self._entries.clear()
        self._batches.clear()
        self._size, self.start = 0, place
        self.wake()

    def number_after(self, place: Place) -> int:
        """Return the number of the first kept event after a place."""
        later = 0
        for entry in reversed(self._entries):
            if entry.place <= place:
                break
            later += 1
        return self.end - later

    def batch(self, number: int, event_filter: EventFilter, read_until: Place) -> tuple[FeedBatch, int] | None:
        """Return the events from a number on, and the number of the next one.

        Listeners with one filter are nearly always at the same number, and share the batch.

        Args:
            number: The number of the first event.
            event_filter: The events that the listener wants.
            read_until: The place up to which the channel has all events.

        Returns:
            None if the first event was dropped already.
        """
        if number < self.first:
            return None
        if number == self.end:
            return FeedBatch.of((), read_until), number
        key = (number, event_filter)
        if key not in self._batches:
            self._batches[key] = self._collect(number, event_filter, read_until)
        return self._batches[key]

    def _collect(self, number: int, event_filter: EventFilter, read_until: Place) -> tuple[FeedBatch, int]:
        found, size = [], 0
        place = read_until
        for entry in islice(self._entries, number - self.first, None):
            if size >= MAX_BATCH_BYTES:
                break
            number, place = number + 1, entry.place
            if event_filter.matches(entry):
                found.append(entry)
                size += len(entry.data)
        return FeedBatch.of(tuple(found), read_until if number == self.end else place), number
