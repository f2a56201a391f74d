"""Threads for synchronous views: a bounded queue, in which clients take turns."""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

from prometheus_client import Counter as CounterMetric
from prometheus_client import Gauge

R = TypeVar("R")

PENDING = Gauge(
    "orchestrator_pending_requests",
    "Requests that run in a thread of this process or wait for one, by class.",
    ["pool"],
    registry=None,
)
OVERLOADS = CounterMetric(
    "orchestrator_overloads", "Requests answered 503 because too many waited for a thread.", ["pool"], registry=None
)


class ThreadPool:
    """A thread pool with a bounded queue, in which clients take turns. Used from one event loop.

    One client that sends hundreds of requests at once delays its own: it has a quarter of the threads at most, because
    threads that compute share one interpreter; the next free thread serves another client first; and no client may fill
    more than half of the queue.

    Args:
        name: Class of the requests; prefix of the threads' names.
        threads: Requests that run at a time.
        queue: Requests that may wait beside those that run.
    """

    def __init__(self, name: str, *, threads: int, queue: int) -> None:
        self.name = name
        self.executor = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self.threads, self.queue = threads, queue
        self.threads_per_client = max(1, threads // 4)
        self.pending = 0  # running or waiting
        self._running: Counter[Hashable] = Counter()
        self._waiting: OrderedDict[Hashable, deque[asyncio.Future[None]]] = OrderedDict()  # the next client is first
        self._gauge = PENDING.labels(name)

    def is_full(self, client: Hashable = None) -> bool:
        """Returns whether one more request of this client is too many."""
        if self.pending >= self.threads + self.queue:
            return True
        return not self._may_run(client) and len(self._waiting.get(client, ())) >= (self.queue + 1) // 2

    async def run(self, function: Callable[..., R], *values: object, client: Hashable = None) -> R:
        """Runs the function in a thread, in a copy of the caller's context, when it is the client's turn."""
        self._change(1)
        try:
            if self._may_run(client):
                self._running[client] += 1
            else:
                await self._turn(client)
            try:
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(self.executor, copy_context().run, function, *values)
            finally:
                self._end_turn(client)
        finally:
            self._change(-1)

    def _may_run(self, client: Hashable) -> bool:
        return self._running.total() < self.threads and self._running[client] < self.threads_per_client

    async def _turn(self, client: Hashable) -> None:
        """Waits until `_end_turn` of another request has counted this one among those that run."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._end_turn(client)
            raise

    def _end_turn(self, client: Hashable) -> None:
        """Frees the thread, and hands it to the oldest request of the next client that may run."""
        self._running -= Counter({client: 1})
        for candidate in list(self._waiting):
            if not self._may_run(candidate):
                continue
            turns = self._waiting.pop(candidate)
            while turns and turns[0].done():  # given up while it waited
                turns.popleft()
            turn = turns.popleft() if turns else None
            if turns:
                self._waiting[candidate] = turns  # behind the other clients
            if turn is not None:
                self._running[candidate] += 1
                turn.set_result(None)
                return

    def _change(self, by: int) -> None:
        self.pending += by
        self._gauge.set(self.pending)
