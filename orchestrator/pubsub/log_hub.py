"""Shared reading for many followers: one read at a time per followed topic and process.

A follower is a generator with a position. While it waits it costs no thread, no query and no database connection. Reads
run in a few threads of their own, return a bounded number of bytes, and are shared by all followers at one position.
The hub depends on neither HTTP nor logs: a `StreamSource` reads, so that Server-Sent Events can use the hub, too.
"""

import asyncio
import logging
import random
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from functools import cache
from math import inf
from typing import Any, Generic, NamedTuple, Protocol, TypeVar
from weakref import WeakKeyDictionary

from django.conf import settings
from django.db import DatabaseError, InterfaceError

from orchestrator.core.db_scope import release_connection_after
from orchestrator.pubsub.fan_out_pace import pace
from orchestrator.pubsub.hub import NotificationHub, hub_of_running_loop
from orchestrator.pubsub.metrics import FOLLOWED, READS
from runtime_jobs.db_errors import log_level_of

log = logging.getLogger(__name__)

P = TypeVar("P", bound=Hashable)  # a position within a topic
R = TypeVar("R")

# Seconds between two wake-ups of one topic. A wake-up costs a send per follower, which takes about as long.
MIN_WAKE_INTERVAL, MAX_WAKE_INTERVAL = 0.02, 0.25
WAKE_INTERVAL_PER_FOLLOWER = 0.0001
CACHED_BYTES = 16 << 20  # of one hub, shared by all its topics
ENTRY_OVERHEAD = 300  # bytes that a cached batch costs besides its data
RECHECK_WITH_NOTIFICATIONS, RECHECK_WITHOUT = 5.0, 1.0  # seconds between two re-checks
WATCH_INTERVAL = 20.0  # seconds between two requests for announcements
RETRY_PAUSE = 1.0
GIVE_UP_AFTER = 30.0  # seconds of failing reads


class SourceUnavailable(Exception):
    """The database or the storage of logs did not answer for GIVE_UP_AFTER seconds."""


class ChunkBatch(NamedTuple, Generic[P]):
    """A batch of bytes.

    Attributes:
        data: The bytes after the requested position.
        position: The position after them.
        ended: Nothing can follow.
    """

    data: bytes
    position: P
    ended: bool


class StreamSource(Protocol[P]):
    """Reads one kind of topic. The hub calls these methods in its reader threads."""

    def read(self, topic: str, position: P) -> ChunkBatch[P]:
        """Return a bounded batch of the bytes after the position; empty if there are none yet."""

    def states(self, topics: list[str]) -> dict[str, Hashable]:
        """Return a value for each topic that changes whenever the topic grows or ends."""

    def watch(self, topics: list[str]) -> None:
        """Ask for announcements of these topics for more than WATCH_INTERVAL."""


class Topic:
    """A followed topic, and the number of its changes that this process knows of.

    A thousand followers wait for one topic. Each wait is one future; the topic has one timer for all of them.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.followers = 0
        self.version = 0
        self.checked: Hashable = None  # what the last re-check found
        self.watching: asyncio.Task[None] | None = None  # the first request for announcements
        self.empty_read: tuple[Hashable, ChunkBatch[Any]] | None = None  # the last read without data, with its key
        self._waiting: dict[asyncio.Future[bool], float] = {}  # with the end of the wait; the oldest one first
        self._timer: asyncio.TimerHandle | None = None
        self._next_wake = 0.0
        self._wake_is_due = False

    @property
    def wake_interval(self) -> float:
        """Seconds between two wake-ups."""
        own = min(MAX_WAKE_INTERVAL, max(MIN_WAKE_INTERVAL, self.followers * WAKE_INTERVAL_PER_FOLLOWER))
        return max(own, pace.interval)

    def note_change(self) -> None:
        """Wake all followers now, or one wake interval after the last time."""
        if self._wake_is_due:
            return
        now = time.monotonic()
        if now >= self._next_wake:
            self._wake()
        else:
            self._wake_is_due = True
            asyncio.get_running_loop().call_later(self._next_wake - now, self._wake)

    def _wake(self) -> None:
        self._wake_is_due = False
        self._next_wake = time.monotonic() + self.wake_interval
        self.version += 1
        waiting, self._waiting = self._waiting, {}
        for future in waiting:
            if not future.done():
                future.set_result(True)
        if waiting:
            pace.measure()

    async def wait(self, version: int, seconds: float | None = None) -> bool:
        """Return True once the version differs from this one, or False when the time is up.

        Args:
            version: The version that the follower has seen.
            seconds: The time, the same for all followers of the topic; None: unlimited.
        """
        if self.version != version:
            return True
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        self._waiting[future] = inf if seconds is None else loop.time() + seconds
        if self._timer is None and seconds is not None:
            self._timer = loop.call_later(seconds, self._end_long_waits)
        try:
            return await future
        finally:
            self._waiting.pop(future, None)

    def _end_long_waits(self) -> None:
        """End the waits whose time is up. One timer serves all: with one timer each, a wake-up took twice as long."""
        loop = asyncio.get_running_loop()
        self._timer = None
        for future, end in list(self._waiting.items()):
            if end > loop.time():
                if end < inf:
                    self._timer = loop.call_at(end, self._end_long_waits)
                return
            del self._waiting[future]
            if not future.done():
                future.set_result(False)

    def close(self) -> None:
        """Cancel the timer. The topic has no follower any longer."""
        if self._timer is not None:
            self._timer.cancel()


class BatchCache(Generic[P]):
    """Keeps the most recently used batches, by topic and position, up to a number of bytes.

    Entries stay correct, because a topic only grows at its end.
    """

    def __init__(self, limit: int = CACHED_BYTES) -> None:
        self._limit, self._size = limit, 0
        self._batches: OrderedDict[tuple[str, P], ChunkBatch[P]] = OrderedDict()

    def get(self, topic: str, position: P) -> ChunkBatch[P] | None:
        found = self._batches.get((topic, position))
        if found is not None:
            self._batches.move_to_end((topic, position))
        return found

    def put(self, topic: str, position: P, batch: ChunkBatch[P]) -> None:
        before = self._batches.pop((topic, position), None)
        self._size -= _cost(before) if before else 0
        self._batches[topic, position] = batch
        self._size += _cost(batch)
        while self._size > self._limit:
            _, oldest = self._batches.popitem(last=False)
            self._size -= _cost(oldest)

    def clear(self) -> None:
        self._batches.clear()
        self._size = 0


def _cost(batch: ChunkBatch[Any]) -> int:
    return len(batch.data) + ENTRY_OVERHEAD


class Hub(Generic[P]):
    """The topics of one source that are followed in this process. Used from one event loop."""

    def __init__(self, source: StreamSource[P], notifications: NotificationHub) -> None:
        self.source = source
        self._notifications = notifications
        self._topics: dict[str, Topic] = {}
        self._cache: BatchCache[P] = BatchCache()
        self._reading: dict[Hashable, asyncio.Task[ChunkBatch[P]]] = {}
        self._rechecking: asyncio.Task[None] | None = None
        self._recheck_now = asyncio.Event()
        self._watch_again_at = 0.0
        notifications.job_subscribers.append(self.receive)

    def receive(self, topics: list[str] | None) -> None:
        """Handle an announcement.

        Args:
            topics: Topics that changed; None if announcements may have been lost.
        """
        if topics is None:
            self._recheck_now.set()
            return
        for name in topics:
            if name in self._topics:
                self._topics[name].note_change()

    async def follow(self, name: str, start: P, *, idle_seconds: float | None = None) -> AsyncGenerator[bytes, None]:
        """Yield the bytes after `start`, and later ones as they arrive, until the topic ends.

        Args:
            name: The topic.
            start: The position to begin at.
            idle_seconds: Yield empty bytes each time that nothing has arrived for so long; None: never.

        Raises:
            SourceUnavailable: The database or the storage of logs failed for GIVE_UP_AFTER seconds.
        """
        await self._notifications.start()
        position = start
        with self._joined(name) as topic:
            await self._watched(topic)  # before the first read: a later change is announced
            while True:
                version = topic.version
                batch = await self._shared(topic, version, position)
                if batch.data:
                    yield batch.data
                elif batch.position == position and not batch.ended:
                    while not await topic.wait(version, idle_seconds):
                        yield b""
                if batch.ended:
                    return
                position = batch.position

    async def read_to_end(self, name: str, start: P) -> AsyncGenerator[bytes, None]:
        """Yield the bytes after `start` that are stored at present.

        Args:
            name: The topic.
            start: The position to begin at.

        Raises:
            SourceUnavailable: The database or the storage of logs failed for GIVE_UP_AFTER seconds.
        """
        position = start
        while True:
            batch = self._cache.get(name, position) or await self._fetched(name, position)
            if batch.data:
                yield batch.data
            if batch.ended or batch.position == position:
                return
            position = batch.position

    @contextmanager
    def _joined(self, name: str) -> Iterator[Topic]:
        if name not in self._topics:
            self._topics[name] = Topic(name)
            FOLLOWED.inc()
        topic = self._topics[name]
        topic.followers += 1
        if self._rechecking is None or self._rechecking.done():
            self._rechecking = asyncio.create_task(self._recheck())
        try:
            yield topic
        finally:
            topic.followers -= 1
            if not topic.followers:
                del self._topics[name]
                topic.close()
                FOLLOWED.dec()
            if not self._topics and self._rechecking is not None:
                self._cache.clear()
                self._rechecking.cancel()
                self._rechecking = None

    async def _watched(self, topic: Topic) -> None:
        """Wait until changes of the topic are announced to this process."""
        if topic.watching is None:
            topic.watching = asyncio.create_task(self._watch([topic.name]))
        await asyncio.shield(topic.watching)  # a follower that disconnects must not end the request of the others

    async def _watch(self, names: list[str]) -> None:
        """Ask for announcements of topics. Without the database the re-checks find changes."""
        try:
            await in_reader_thread(self.source.watch, names)
        except (DatabaseError, InterfaceError) as error:
            log.log(log_level_of(error), "followed topics were not registered: %s", type(error).__name__)

    async def _shared(self, topic: Topic, version: int, position: P) -> ChunkBatch[P]:
        """Read once for all followers at this position.

        A read that began under an older version may miss the latest change. It is therefore not shared with followers
        that wait for a newer version. One that found nothing counts until the next change: the last of many followers
        arrive long after it.
        """
        if (found := self._cache.get(topic.name, position)) is not None:
            return found
        key = (topic.name, version, position)
        if topic.empty_read is not None and topic.empty_read[0] == key:
            return topic.empty_read[1]
        task = self._reading.get(key)
        if task is None:
            task = self._reading[key] = asyncio.create_task(self._fetched_and_kept(topic.name, position))
            task.add_done_callback(lambda done: self._end_read(topic, key, done))
        return await asyncio.shield(task)  # a follower that disconnects must not end the read of the others

    def _end_read(self, topic: Topic, key: Hashable, done: "asyncio.Task[ChunkBatch[P]]") -> None:
        del self._reading[key]
        # With no follower left, no other code retrieves the exception.
        if not done.cancelled() and done.exception() is None and not done.result().data:
            topic.empty_read = (key, done.result())

    async def _fetched_and_kept(self, name: str, position: P) -> ChunkBatch[P]:
        batch = await self._fetched(name, position)
        if batch.data and name in self._topics:
            self._cache.put(name, position, batch)
        return batch

    async def _fetched(self, name: str, position: P) -> ChunkBatch[P]:
        give_up_at = time.monotonic() + GIVE_UP_AFTER
        while True:
            try:
                READS.inc()
                return await in_reader_thread(self.source.read, name, position)
            except (DatabaseError, InterfaceError, OSError) as error:  # OSError: of the storage of logs
                log.log(log_level_of(error), "a read for followers failed: %s", type(error).__name__)
                if time.monotonic() > give_up_at:
                    raise SourceUnavailable from error
            await asyncio.sleep(RETRY_PAUSE * random.uniform(0.8, 1.2))  # noqa: S311 jitter

    async def _recheck(self) -> None:
        """Find changes that no announcement named, with one query for all topics."""
        while True:
            try:
                async with asyncio.timeout(
                    RECHECK_WITH_NOTIFICATIONS if self._notifications.listener.is_alive else RECHECK_WITHOUT
                ):
                    await self._recheck_now.wait()
            except TimeoutError:
                pass
            self._recheck_now.clear()
            names = list(self._topics)
            if time.monotonic() >= self._watch_again_at:
                self._watch_again_at = time.monotonic() + WATCH_INTERVAL
                await self._watch(names)
            try:
                READS.inc()
                states = await in_reader_thread(self.source.states, names)
            except (DatabaseError, InterfaceError) as error:
                log.log(log_level_of(error), "the re-check for followers failed: %s", type(error).__name__)
                continue
            self._compare(names, states)

    def _compare(self, names: list[str], states: dict[str, Hashable]) -> None:
        for name in names:
            topic, state = self._topics.get(name), states.get(name, "deleted")
            if topic is not None and topic.checked != state:
                topic.checked = state
                topic.note_change()


_hubs: WeakKeyDictionary[NotificationHub, dict[type[Any], Hub[Any]]] = WeakKeyDictionary()


def hub_of_source(source: type[StreamSource[P]]) -> Hub[P]:
    """Return the hub of a kind of topics for the running event loop."""
    notifications = hub_of_running_loop()
    hubs = _hubs.setdefault(notifications, {})
    if source not in hubs:
        hubs[source] = Hub(source(), notifications)
    return hubs[source]


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(settings.STREAM_READERS, thread_name_prefix="stream-reader")


async def in_reader_thread(function: Callable[..., R], *values: Any) -> R:
    """Run a short query in one of the STREAM_READERS threads; the connection goes back to the pool afterwards."""
    run: Callable[..., R] = copy_context().run
    return await asyncio.get_running_loop().run_in_executor(
        _threads(), run, release_connection_after(function), *values
    )
