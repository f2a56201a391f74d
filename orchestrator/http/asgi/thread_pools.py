"""Threads for synchronous views, with a bounded queue in which clients take turns."""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from contextvars import copy_context
from typing import TypeVar

from prometheus_client import Counter as CounterMetric
from prometheus_client import Gauge

from orchestrator.core.compute_slots import compute_slots

R = TypeVar("R")

PENDING = Gauge(
    "orchestrator_pending_requests",
    "Requests that run in a thread of this process or wait for one, by thread pool.",
    ["pool"],
    registry=None,
)
OVERLOADS = CounterMetric(
    "orchestrator_overloads",
    "Requests answered 503 because too many waited for a thread, by thread pool.",
    ["pool"],
    registry=None,
)


class ThreadPool:
    """A thread pool with a bounded queue in which clients take turns. Used from one event loop.

    One client that sends hundreds of requests at once delays its own requests only. A client may run one more request
    while it runs fewer than there are free shares. One client alone thus runs half as many as there are shares, two run
    a third each, and there is a share left for a client that arrives next. A client that runs nothing needs no free
    share, only a thread. A free thread serves the next client first. No client fills more than half of the queue.
    """

    def __init__(self, name: str, *, threads: int, queue: int, shares: int | None = None) -> None:
        """Create a pool; its threads start when they are needed.

        Args:
            name: Label of the metrics and prefix of the threads' names.
            threads: Number of requests that run at a time.
            queue: Number of requests that may wait beside those that run.
            shares: What clients divide among themselves: a scarce resource that each request needs, such as database
                connections. By default half of `threads`.
        """
        self.name = name
        self.executor = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self.threads, self.queue = threads, queue
        self.shares = shares or max(1, threads // 2)
        self.pending = 0  # running or waiting
        self._running: Counter[Hashable] = Counter()
        self._total = 0  # of `_running`
        self._waiting: OrderedDict[Hashable, deque[asyncio.Future[None]]] = OrderedDict()  # the next client is first
        self._gauge = PENDING.labels(name)

    def is_full(self, client: Hashable = None) -> bool:
        """Return whether one more request of this client is too many."""
        if self.pending >= self.threads + self.queue:
            return True
        return not self._may_run(client) and len(self._waiting.get(client, ())) >= (self.queue + 1) // 2

    @asynccontextmanager
    async def turn(self, client: Hashable = None) -> AsyncIterator[None]:
        """Wait until a thread is free for the client, and reserve it for the block."""
        self._change(1)
        try:
            if self._may_run(client):
                self._begin_turn(client)
            else:
                await self._wait_for_turn(client)
            try:
                yield
            finally:
                self._end_turn(client)
        finally:
            self._change(-1)

    async def call(self, function: Callable[..., R], *values: object, client: Hashable = None) -> R:
        """Call the function in a thread, in a copy of the caller's context, within the block of `turn`."""
        loop, run = asyncio.get_running_loop(), copy_context().run
        return await loop.run_in_executor(self.executor, compute_slots.run, client, run, function, *values)

    async def run(self, function: Callable[..., R], *values: object, client: Hashable = None) -> R:
        """Call the function in a thread when it is the client's turn."""
        async with self.turn(client):
            return await self.call(function, *values, client=client)

    def _may_run(self, client: Hashable) -> bool:
        own = self._running[client]
        return self._total < self.threads and (not own or own < self.shares - self._total)

    def _begin_turn(self, client: Hashable) -> None:
        self._running[client] += 1
        self._total += 1

    async def _wait_for_turn(self, client: Hashable) -> None:
        """Wait until `_end_turn` of another request has counted this one among those that run."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._end_turn(client)
            raise

    def _end_turn(self, client: Hashable) -> None:
        """Free the thread, and give it to the oldest request of the next client that may run."""
        self._running[client] -= 1
        self._total -= 1
        if not self._running[client]:
            del self._running[client]
        for candidate in list(self._waiting):
            if not self._may_run(candidate):
                continue
            turns = self._waiting.pop(candidate)
            while turns and turns[0].done():  # canceled while it waited
                turns.popleft()
            turn = turns.popleft() if turns else None
            if turns:
                self._waiting[candidate] = turns  # behind the other clients
            if turn is not None:
                self._begin_turn(candidate)
                turn.set_result(None)
                return

    def _change(self, difference: int) -> None:
        self.pending += difference
        self._gauge.set(self.pending)
