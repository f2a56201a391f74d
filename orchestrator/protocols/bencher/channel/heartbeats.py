"""Combines the heartbeats of all sockets of a process: one statement renews what is due at the same time."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection

from orchestrator.protocols.bencher.channel.session import LeasedJob, Reply

FEW = 8  # leases of one interval that are renewed without a pause
INTERVAL_SECONDS = 0.25  # from one write to the next one otherwise

RenewLeases = Callable[[list[LeasedJob]], Awaitable[dict[str, Reply]]]


class HeartbeatBatcher:
    """Renews leases. Used from one event loop.

    While a statement runs, further heartbeats are collected, and the next statement renews all of them. Once more than
    `FEW` leases were renewed within 250 ms, the next statement begins 250 ms after the beginning of the last one. With
    200 heartbeats a second, statements of a few leases each took five times as much processor time for each heartbeat.
    """

    def __init__(self, renew: RenewLeases) -> None:
        """Prepare.

        Args:
            renew: Renews leases in a thread, and returns the replies by the ids of leases.
        """
        self._renew = renew
        self._due: dict[str, tuple[LeasedJob, asyncio.Future[Reply]]] = {}  # by lease id
        self._flushing: asyncio.Task[None] | None = None
        self._written: deque[tuple[float, Collection[str]]] = deque()  # the last statements: beginning, lease ids

    async def renew(self, job: LeasedJob) -> Reply:
        """Renew the lease of one job, and return the reply after the commit.

        Two sockets of one lease share the result.
        """
        lease_ulid: str = job.handle.lease_ulid
        if lease_ulid not in self._due:
            self._due[lease_ulid] = job, asyncio.get_running_loop().create_future()
        _, reply = self._due[lease_ulid]
        if self._flushing is None:
            self._flushing = asyncio.create_task(self._flush())
        return await asyncio.shield(reply)  # another socket may wait for it, too

    async def _flush(self) -> None:
        try:
            while self._due:
                began = time.monotonic()
                batch, self._due = self._due, {}
                await self._write(batch)
                if self._count(began, tuple(batch)) > FEW:
                    await asyncio.sleep(max(0.0, began + INTERVAL_SECONDS - time.monotonic()))
        finally:
            self._flushing = None

    def _count(self, began: float, leases: Collection[str]) -> int:
        """Record a statement, and return how many leases were renewed within an interval before its beginning.

        A lease counts once: a runner that sends a burst of heartbeats delays no other one.
        """
        self._written.append((began, leases))
        while self._written[0][0] <= began - INTERVAL_SECONDS:
            self._written.popleft()
        return len({lease_ulid for _, written in self._written for lease_ulid in written})

    async def _write(self, batch: dict[str, tuple[LeasedJob, "asyncio.Future[Reply]"]]) -> None:
        try:
            replies = await self._renew([job for job, _ in batch.values()])
        except Exception as error:  # noqa: BLE001 each socket handles it
            for _, reply in batch.values():
                if not reply.done():
                    reply.set_exception(error)
            return
        for lease_ulid, (_, reply) in batch.items():
            if not reply.done():
                reply.set_result(replies[lease_ulid])
