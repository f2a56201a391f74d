"""Combines the heartbeats of all sockets of a process: one statement renews what is due at the same time."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

from orchestrator.protocols.bencher.channel.session import LeasedJob, Reply
from runtime_jobs.db_errors import fault_of

FEW = 8  # leases of one interval that are renewed without a pause
INTERVAL_SECONDS = 0.25  # from one write to the next one otherwise

RenewLeases = Callable[[list[LeasedJob], set[str]], Awaitable[dict[str, Reply]]]


@dataclass
class _Due:
    """A lease that is due.

    Attributes:
        job: Its job.
        reply: Done after the commit.
        is_running: The runner reports that the execution has begun.
    """

    job: LeasedJob
    reply: "asyncio.Future[Reply]"
    is_running: bool = False


class HeartbeatBatcher:
    """Renews leases. Used from one event loop.

    While a statement runs, further heartbeats are collected, and the next statement renews all of them. Once more than
    `FEW` leases were renewed within 250 ms, the next statement begins 250 ms after the beginning of the last one. With
    200 heartbeats a second, statements of a few leases each took five times as much processor time for each heartbeat.
    A message that cannot wait, because an execution begins with it, ends the pause.
    """

    def __init__(self, renew: RenewLeases) -> None:
        """Prepare.

        Args:
            renew: Renews leases in a thread, and returns the replies by the ids of leases. Its arguments are those of
                `operations.renew_leases`.
        """
        self._renew = renew
        self._due: dict[str, _Due] = {}  # by lease id
        self._flushing: asyncio.Task[None] | None = None
        self._pressing = asyncio.Event()  # one that is due cannot wait
        self._written: deque[tuple[float, Collection[str]]] = deque()  # the last statements: beginning, lease ids

    async def renew(self, job: LeasedJob, *, is_running: bool = False, can_wait: bool = False) -> Reply:
        """Renew the lease of one job, and return the reply after the commit.

        Two sockets of one lease share the result.

        Args:
            job: The job.
            is_running: The runner reports that the execution has begun.
            can_wait: The runner sends heartbeats regularly.
        """
        lease_ulid: str = job.handle.lease_ulid
        if lease_ulid not in self._due:
            self._due[lease_ulid] = _Due(job, asyncio.get_running_loop().create_future())
        due = self._due[lease_ulid]
        due.is_running |= is_running
        if not can_wait:
            self._pressing.set()
        if self._flushing is None:
            self._flushing = asyncio.create_task(self._flush())
        return await asyncio.shield(due.reply)  # another socket may wait for it, too

    async def _flush(self) -> None:
        try:
            while self._due:
                began = time.monotonic()
                batch, self._due = self._due, {}
                self._pressing.clear()
                await self._write(batch)
                if self._count(began, tuple(batch)) > FEW:
                    await self._pause(began + INTERVAL_SECONDS - time.monotonic())
        finally:
            self._flushing = None

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._pressing.wait()
        except TimeoutError:
            pass

    def _count(self, began: float, leases: Collection[str]) -> int:
        """Record a statement, and return how many leases were renewed within an interval before its beginning.

        A lease counts once: a runner that sends a burst of heartbeats delays no other one.
        """
        self._written.append((began, leases))
        while self._written[0][0] <= began - INTERVAL_SECONDS:
            self._written.popleft()
        return len({lease_ulid for _, written in self._written for lease_ulid in written})

    async def _write(self, batch: dict[str, _Due]) -> None:
        """Renew these leases. After an unexpected error, which may be of one lease only, each is renewed by itself."""
        try:
            replies = await self._renew(
                [due.job for due in batch.values()], {key for key, due in batch.items() if due.is_running}
            )
        except Exception as error:  # noqa: BLE001 each socket handles it
            if len(batch) > 1 and fault_of(error) is None:
                for lease_ulid, due in batch.items():
                    await self._write({lease_ulid: due})
                return
            for due in batch.values():
                if not due.reply.done():
                    due.reply.set_exception(error)
            return
        for lease_ulid, due in batch.items():
            if not due.reply.done():
                due.reply.set_result(replies[lease_ulid])
