"""Threads for synchronous views, with a bound on the requests that wait for one."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

from prometheus_client import Counter, Gauge

R = TypeVar("R")

PENDING = Gauge(
    "orchestrator_pending_requests",
    "Requests that run in a thread of this process or wait for one, by class.",
    ["pool"],
    registry=None,
)
OVERLOADS = Counter(
    "orchestrator_overloads", "Requests answered 503 because too many waited for a thread.", ["pool"], registry=None
)


class ThreadPool:
    """A thread pool whose queue has an end. Used from one event loop.

    Args:
        name: class of the requests; prefix of the threads' names.
        threads: requests that run at a time.
        queue: requests that may wait beside those that run.
    """

    def __init__(self, name: str, *, threads: int, queue: int) -> None:
        self.name = name
        self.executor = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self.limit = threads + queue
        self.pending = 0
        self._gauge = PENDING.labels(name)

    @property
    def is_full(self) -> bool:
        return self.pending >= self.limit

    async def run(self, function: Callable[..., R], *values: object) -> R:
        """Runs the function in a thread, in a copy of the caller's context."""
        self._change(1)
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self.executor, copy_context().run, function, *values)
        finally:
            self._change(-1)

    def _change(self, by: int) -> None:
        self.pending += by
        self._gauge.set(self.pending)
