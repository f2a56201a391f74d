"""Groups of concurrent calls of one route: what came while the last group ran is the next group.

A call by itself pays for a thread, two statements and a commit. In a group of 64 these are shared
(`orchestrator.http.api.calls.CombinedCall`). A call that comes while no group runs begins one at once.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from prometheus_client import Histogram

from orchestrator.http.asgi.thread_pools import PENDING, ThreadPool

C = TypeVar("C")
R = TypeVar("R")

MAX_GROUP: Final = 128  # calls; a larger group makes its first call wait and saves little more
MAX_GROUP_BYTES: Final = 4 << 20  # of the bodies of a group, which are in memory together
MAX_WAITING: Final = 2048
MAX_WAITING_PER_CLIENT: Final = 1024

GROUP_SIZES = Histogram(
    "orchestrator_call_group_size",
    "Calls that ran together as one operation, by route.",
    ["route"],
    buckets=(1, 2, 4, 8, 16, 32, 64, 128),
    registry=None,
)


@dataclass(frozen=True, slots=True)
class _Waiting(Generic[C, R]):
    """A call that waits for its turn."""

    call: C
    future: "asyncio.Future[R]"
    size: int


class CallGroup(Generic[C, R]):
    """The calls of one route that wait for their turn. Used from one event loop.

    Clients take turns: a group has one call of each, then a second one of those that have more, and so on. So a client
    with a thousand calls delays another one by a single group.
    """

    def __init__(self, name: str, answer: Callable[[Sequence[C]], list[R]], threads: ThreadPool) -> None:
        """Create a group.

        Args:
            name: The route, a label of metrics.
            answer: Answers several calls in a thread.
            threads: Threads, at least one for each group that uses them.
        """
        self.name = name
        self._answer, self._threads = answer, threads
        self._waiting: OrderedDict[Hashable, deque[_Waiting[C, R]]] = OrderedDict()  # next client first
        self._number = 0  # of those that wait
        self._running: asyncio.Task[None] | None = None
        self._pending = PENDING.labels(name)
        self._sizes = GROUP_SIZES.labels(name)

    def is_full(self, client: Hashable) -> bool:
        """Return whether one more call of this client is too many."""
        return self._number >= MAX_WAITING or len(self._waiting.get(client, ())) >= MAX_WAITING_PER_CLIENT

    async def answer(self, call: C, client: Hashable, *, size: int = 0) -> R:
        """Return the answer to a call, which runs with the next group. `size`: the number of bytes in its body."""
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(_Waiting(call, future, size))
        self._number += 1
        self._pending.inc()
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        try:
            return await future
        finally:
            self._pending.dec()

    async def _run(self) -> None:
        try:
            while group := self._take():
                self._sizes.observe(len(group))
                try:
                    calls = [waiting.call for waiting in group]
                    answers = await self._threads.call(self._answer, calls, client=self.name)
                    for waiting, answer in zip(group, answers, strict=True):
                        if not waiting.future.done():  # the request was canceled
                            waiting.future.set_result(answer)
                except Exception as error:  # noqa: BLE001 each caller handles it
                    _fail(group, error)
                finally:
                    for waiting in group:
                        waiting.future.cancel()  # has no effect on one that is done
        finally:
            self._running = None

    def _take(self) -> list["_Waiting[C, R]"]:
        """Remove and return the next calls, of each client in turn."""
        group: list[_Waiting[C, R]] = []
        size = 0
        while self._waiting and len(group) < MAX_GROUP and size < MAX_GROUP_BYTES:
            client, calls = self._waiting.popitem(last=False)
            found = calls.popleft()
            self._number -= 1
            if calls:
                self._waiting[client] = calls  # behind the other clients
            if not found.future.done():
                group.append(found)
                size += found.size
        return group


def _fail(group: list["_Waiting[C, R]"], error: Exception) -> None:
    for waiting in group:
        if not waiting.future.done():
            waiting.future.set_exception(error)
