"""The reader of events: one task that reads them for all listeners of an event loop.

The reader polls the database while there are listeners. Each event is read and encoded once, and is kept for a while in
the channel of its audience. A listener costs no thread and no database connection.
"""

import asyncio
import logging
import random
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Any, Final, Protocol

from django.db import DatabaseError, InterfaceError

from orchestrator.events.channels import Audience, EventChannel, EventFilter, FeedBatch, FeedEntry, encode_entry
from orchestrator.events.job_progress import read_progress
from orchestrator.events.pages import EventPage, Place, StoredEvent, newest_place, read_page
from orchestrator.pubsub.fan_out_pace import pace
from orchestrator.pubsub.log_hub import GIVE_UP_AFTER, SourceUnavailable, in_reader_thread
from orchestrator.pubsub.metrics import EVENT_GAPS, EVENT_LISTENERS, EVENT_READER_BEHIND, EVENTS_READ
from runtime_jobs.db_errors import log_level_of

log = logging.getLogger(__name__)

POLL_INTERVAL: Final = 0.05  # seconds between two polls that find nothing more, at least
PAGE_ROWS: Final = 1_000
PROGRESS_INTERVAL: Final = 1.0  # of a job's progress only the newest value of so many seconds is sent
MAX_PROGRESS_JOBS: Final = 10_000  # whose last value is remembered; one that was forgotten may be sent twice
RETRY_PAUSE: Final = 1.0
LINGER_SECONDS: Final = 30.0  # for which a channel without listeners is kept, for clients that connect again
MAX_CATCH_UP_ROWS: Final = 20_000  # that are read for one listener which continues after an older place


class GapReason(StrEnum):
    """The reason why events are missing in a stream."""

    TOO_OLD = "too_old"  # more events than MAX_CATCH_UP_ROWS follow the place
    TOO_SLOW = "too_slow"  # the client reads more slowly than events arrive
    RESTORED = "restored"  # another database answers


@dataclass(frozen=True)
class Gap:
    """Events that a listener does not get from the stream.

    Attributes:
        reason: The reason.
        after: The events after this place are missing.
        until: The stream continues after this place; None: it ends here.
    """

    reason: GapReason
    after: Place
    until: Place | None


class EventSource(Protocol):
    """Reads events. The methods are called in the threads of stream readers."""

    def newest_place(self) -> Place:
        """Return the place of a reader that begins now."""

    def read(self, after: Place, audience: Audience) -> tuple[EventPage, list[FeedEntry]]:
        """Return the next page after a place, and its events encoded."""

    def progress(self, place: Place, audience: Audience) -> list[StoredEvent]:
        """Return what workers have reported lately, as events at a place."""


class StoredEvents:
    """The events in the database."""

    def newest_place(self) -> Place:
        """Return the place of a reader that begins now."""
        return newest_place()

    def read(self, after: Place, audience: Audience) -> tuple[EventPage, list[FeedEntry]]:
        """Return the next page after a place, and its events encoded."""
        organizations = None if audience is None else sorted(audience)
        page = read_page(after, organizations=organizations, rows=PAGE_ROWS)
        return page, list(_encoded(page.events))

    def progress(self, place: Place, audience: Audience) -> list[StoredEvent]:
        """Return what workers have reported lately, as events at a place."""
        return read_progress(place, organizations=None if audience is None else sorted(audience))


def _encoded(events: Iterable[StoredEvent]) -> Iterator[FeedEntry]:
    """Yield the entries of events. One that cannot be encoded, by a bug, must not stop the feed of all tenants."""
    for event in events:
        try:
            yield encode_entry(event)
        except Exception:
            log.exception("the event %s cannot be sent", event.event_id)


class EventReader:
    """Reads events for the listeners of one event loop."""

    def __init__(self, source: EventSource | None = None) -> None:
        self._source: EventSource = source or StoredEvents()
        self._channels: dict[Audience, EventChannel] = {}
        self._place: Place | None = None
        self._task: asyncio.Task[None] | None = None
        self._wakened = asyncio.Event()
        self._read_at = 0.0  # the last successful poll
        self._progress_at = 0.0  # the last read of progress
        self._progress: dict[str, dict[str, Any]] = {}  # by attempt: what was sent last
        self._reads: dict[tuple[Audience, Place], asyncio.Task[tuple[EventPage, list[FeedEntry]]]] = {}

    @property
    def place(self) -> Place | None:
        """The place up to which events were read; None while there are no listeners."""
        return self._place

    def poll_now(self) -> None:
        """Poll at once instead of after the interval."""
        self._wakened.set()

    async def listen(
        self, audience: Audience, event_filter: EventFilter, *, after: Place | None, idle_seconds: float
    ) -> AsyncGenerator[FeedBatch | Gap, None]:
        """Yield the events of an audience in order, each once, for ever or until a gap that ends the stream.

        The first batch is empty: its place is the one after which the stream begins. Later empty batches are signs of
        life, with the place that was reached.

        Args:
            audience: The organizations whose events the listener may see.
            event_filter: The events that it wants.
            after: The place after which the stream begins; None: now.
            idle_seconds: An empty batch is yielded after so many seconds without an event.

        Raises:
            SourceUnavailable: The database did not answer for GIVE_UP_AFTER seconds when the stream began.
        """
        channel = self._join(audience)
        try:
            await self._started(channel)
            position = max(channel.start, self._place or channel.start) if after is None else after
            yield FeedBatch.of((), position)
            while position < channel.start:  # the channel may drop events in the meantime
                async for item in self._catch_up(channel, event_filter, position):
                    position = _after(item)
                    yield item
            async for item in self._follow(channel, event_filter, position, idle_seconds):
                yield item
        finally:
            self._leave(channel)

    async def _follow(
        self, channel: EventChannel, event_filter: EventFilter, position: Place, idle_seconds: float
    ) -> AsyncGenerator[FeedBatch | Gap, None]:
        # Another process may have been faster: events up to the client's place arrive here later, and are skipped.
        number, is_ahead = -1, True
        while True:
            version = channel.topic.version
            reached = self._place or position
            if is_ahead and position >= channel.start:
                number = max(number, channel.number_after(position))
                is_ahead = number == channel.end and position > reached
            found = channel.batch(number, event_filter, reached)
            if found is None and position < channel.start:
                EVENT_GAPS.labels(GapReason.TOO_SLOW).inc()
                yield Gap(GapReason.TOO_SLOW, position, None)
                return
            if found is None and position == channel.start:
                number = channel.first  # only progress was dropped, which has no place of its own
                continue
            if found is None:  # only a restored database has lower places
                EVENT_GAPS.labels(GapReason.RESTORED).inc()
                yield Gap(GapReason.RESTORED, position, channel.start)
                number, position, is_ahead = channel.end, channel.start, False
                continue
            batch, number = found
            position = max(position, batch.place)
            if batch.entries:
                yield batch
            elif number == channel.end and not await channel.topic.wait(version, idle_seconds):
                yield FeedBatch.of((), position)

    async def _catch_up(
        self, channel: EventChannel, event_filter: EventFilter, position: Place
    ) -> AsyncGenerator[FeedBatch | Gap, None]:
        """Yield the events between a place and the beginning of the channel, from the table; a batch for each page."""
        end, scanned = channel.start, 0
        while position < end:
            if scanned >= MAX_CATCH_UP_ROWS:
                EVENT_GAPS.labels(GapReason.TOO_OLD).inc()
                yield Gap(GapReason.TOO_OLD, position, end)
                return
            page, entries = await self._shared_read(channel.audience, position)
            if page.is_complete and page.place < end:
                raise SourceUnavailable  # another database answers, which `_poll` will notice
            wanted = tuple(entry for entry in entries if entry.place <= end and event_filter.matches(entry))
            scanned += page.scanned
            position = min(page.place, end)
            yield FeedBatch.of(wanted, position)

    async def _shared_read(self, audience: Audience, place: Place) -> tuple[EventPage, list[FeedEntry]]:
        """Read once for all listeners that continue after the same place at the same time."""
        key = (audience, place)
        if key not in self._reads:
            task = self._reads[key] = asyncio.create_task(self._retried(lambda: self._source.read(place, audience)))
            task.add_done_callback(lambda done: self._forget(key, done))
        return await asyncio.shield(self._reads[key])

    def _forget(self, key: tuple[Audience, Place], done: "asyncio.Task[tuple[EventPage, list[FeedEntry]]]") -> None:
        del self._reads[key]
        if not done.cancelled():
            done.exception()  # with no listener left, no other code retrieves the exception

    async def _retried(
        self, read: Callable[[], tuple[EventPage, list[FeedEntry]]]
    ) -> tuple[EventPage, list[FeedEntry]]:
        stop_at = time.monotonic() + GIVE_UP_AFTER
        while True:
            try:
                return await in_reader_thread(read)
            except (DatabaseError, InterfaceError) as error:
                log.log(log_level_of(error), "events were not read: %s", type(error).__name__)
                if time.monotonic() > stop_at:
                    raise SourceUnavailable from error
            await _pause()

    def _join(self, audience: Audience) -> EventChannel:
        channel = self._channels.get(audience)
        if channel is None:
            channel = self._channels[audience] = EventChannel(audience)
            self._wakened.set()  # its listeners wait for the next poll
        channel.topic.followers += 1
        EVENT_LISTENERS.inc()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        return channel

    async def _started(self, channel: EventChannel) -> None:
        try:
            await asyncio.wait_for(channel.started.wait(), GIVE_UP_AFTER)
        except TimeoutError as error:
            raise SourceUnavailable from error

    def _leave(self, channel: EventChannel) -> None:
        channel.topic.followers -= 1
        EVENT_LISTENERS.dec()
        if not channel.topic.followers:
            with suppress(RuntimeError):  # the loop was closed
                asyncio.get_running_loop().call_later(LINGER_SECONDS, self._drop, channel)

    def _drop(self, channel: EventChannel) -> None:
        """Forget a channel that still has no listener."""
        if not channel.topic.followers and self._channels.get(channel.audience) is channel:
            del self._channels[channel.audience]
            channel.topic.close()

    async def _run(self) -> None:
        """Read while there are channels."""
        self._read_at = time.monotonic()
        while self._channels:
            try:
                is_complete = await self._poll()
                await self._poll_progress()
            except (DatabaseError, InterfaceError) as error:
                EVENT_READER_BEHIND.set(time.monotonic() - self._read_at)
                log.log(log_level_of(error), "events were not read: %s", type(error).__name__)
                await _pause()
                continue
            except Exception:  # a bug must not leave all listeners without events and without a sign of it
                EVENT_READER_BEHIND.set(time.monotonic() - self._read_at)
                log.exception("the reader of events failed")
                await _pause()
                continue
            if is_complete:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._wakened.wait(), max(POLL_INTERVAL, pace.interval))
                self._wakened.clear()
        self._task, self._place = None, None
        EVENT_READER_BEHIND.set(0)

    async def _poll(self) -> bool:
        """Read and distribute the next page. Returns whether it reaches the oldest open transaction."""
        place = self._place
        if place is None:
            place = self._place = await in_reader_thread(self._source.newest_place)
        for channel in self._channels.values():
            if not channel.started.is_set():
                channel.begin(place)  # this read and all later ones include its organizations
        page, entries = await in_reader_thread(self._source.read, place, self._audience())
        self._read_at = time.monotonic()
        EVENT_READER_BEHIND.set(page.seconds_behind)
        if page.bound < place.stamp:
            await self._restart()
            return True
        self._place = page.place
        self._distribute(entries)
        return page.is_complete

    async def _poll_progress(self) -> None:
        """Distribute the progress of jobs that has changed, once in PROGRESS_INTERVAL.

        It is no part of the history: a client that was away gets the next value.
        """
        place, now = self._place, time.monotonic()
        if place is None or now - self._progress_at < PROGRESS_INTERVAL:
            return
        self._progress_at = now
        found = await in_reader_thread(self._source.progress, place, self._audience())
        changed = [event for event in found if self._progress.get(event.job_id or "") != event.details]
        for event in changed:
            self._progress.pop(event.job_id or "", None)  # the newest ones are the last
            self._progress[event.job_id or ""] = event.details
        for job_id in list(islice(self._progress, max(0, len(self._progress) - MAX_PROGRESS_JOBS))):
            del self._progress[job_id]
        self._distribute(list(_encoded(changed)))

    def _audience(self) -> Audience:
        """Return the organizations of all channels that have begun."""
        audiences = [channel.audience for channel in self._channels.values() if channel.started.is_set()]
        if None in audiences:
            return None
        return frozenset[str]().union(*(audience for audience in audiences if audience is not None))

    def _distribute(self, entries: list[FeedEntry]) -> None:
        EVENTS_READ.inc(len(entries))
        changed: dict[EventChannel, None] = {}
        by_organization: dict[str | None, list[EventChannel]] = {}
        for entry in entries:
            if entry.org_slug not in by_organization:
                by_organization[entry.org_slug] = [
                    channel
                    for channel in self._channels.values()
                    if channel.started.is_set() and channel.accepts(entry.org_slug)
                ]
            for channel in by_organization[entry.org_slug]:
                # A channel that began while the page was read has its events in the next one. Progress has no place
                # of its own, but the one that was reached.
                if entry.place > channel.start or entry.place == self._place:
                    channel.append(entry)
                    changed[channel] = None
        for channel in changed:
            channel.wake()

    async def _restart(self) -> None:
        """Begin anew in a database whose transactions have lower numbers: it was restored from a dump."""
        log.error("the database has lower transaction numbers than before: it was replaced, and listeners get a gap")
        self._place = await in_reader_thread(self._source.newest_place)
        for channel in self._channels.values():
            channel.discard(self._place)


def _after(item: FeedBatch | Gap) -> Place:
    """Return the place after an item of `_catch_up`."""
    if isinstance(item, FeedBatch):
        return item.place
    return item.after if item.until is None else item.until


async def _pause() -> None:
    await asyncio.sleep(RETRY_PAUSE * random.uniform(0.8, 1.2))  # noqa: S311 jitter


_readers: dict[asyncio.AbstractEventLoop, EventReader] = {}


def reader_of_running_loop() -> EventReader:
    """Return the reader of the running event loop, which all listeners of a process share."""
    loop = asyncio.get_running_loop()
    if loop not in _readers:
        _readers.clear()  # a process has one loop; only tests run several, one after the other
        _readers[loop] = EventReader()
    return _readers[loop]
