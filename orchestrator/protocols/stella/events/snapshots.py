"""The snapshot with which each stream of the dashboard begins, read once for all streams that begin together."""

import asyncio
from collections.abc import Callable
from typing import Any

from django.db import DatabaseError, InterfaceError

from orchestrator.events.channels import Audience
from orchestrator.protocols.stella.dashboard.wire import serialize_dashboard
from orchestrator.pubsub.log_hub import SourceUnavailable, in_reader_thread
from orchestrator.selectors.dashboard import read_dashboard


def dashboard_numbers(audience: Audience) -> dict[str, Any]:
    """Return the numbers of `GET /api/dashboard/metrics`."""
    return serialize_dashboard(read_dashboard(audience), audience)


class Snapshots:
    """Reads the numbers for many streams together, in one event loop.

    A stream needs numbers that were read after its place was chosen: otherwise events between both would be missing
    from either. So it never shares a read that has begun, and waits for the next one with all others of its audience.
    """

    def __init__(self, read: Callable[[Audience], dict[str, Any]] = dashboard_numbers) -> None:
        self._read = read
        self._running: dict[Audience, asyncio.Task[dict[str, Any]]] = {}
        self._next: dict[Audience, asyncio.Task[dict[str, Any]]] = {}

    async def read(self, audience: Audience) -> dict[str, Any]:
        """Return the numbers of an audience, of a time after the call.

        Raises:
            SourceUnavailable: The database did not answer.
        """
        if audience not in self._next:
            task = self._next[audience] = asyncio.create_task(self._read_next(audience))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # its streams may have ended
        try:
            return await asyncio.shield(self._next[audience])
        except (DatabaseError, InterfaceError) as error:
            raise SourceUnavailable from error

    async def _read_next(self, audience: Audience) -> dict[str, Any]:
        if audience in self._running:
            await asyncio.wait({self._running[audience]})
        task = self._running[audience] = self._next.pop(audience)
        try:
            return await in_reader_thread(self._read, audience)
        finally:
            if self._running[audience] is task:
                del self._running[audience]


_snapshots: dict[asyncio.AbstractEventLoop, Snapshots] = {}


def snapshots_of_running_loop() -> Snapshots:
    """Return the snapshots of the running event loop."""
    loop = asyncio.get_running_loop()
    if loop not in _snapshots:
        _snapshots.clear()  # a process has one loop; only tests run several, one after the other
        _snapshots[loop] = Snapshots()
    return _snapshots[loop]
