"""What a process needs once somebody waits in it: the room, the listener, and how many may look at a time."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any

from django.conf import settings
from django.db import DatabaseError, InterfaceError

from orchestrator.notifications.job_updates import CHANNEL as JOB_UPDATES
from orchestrator.notifications.job_updates import ids_of
from orchestrator.notifications.listener import CHANNEL, Listener, call
from orchestrator.notifications.shutdown import on_shutdown
from orchestrator.notifications.waiters import NOTIFIED, POLLING, WaiterRegistry

log = logging.getLogger(__name__)

CALL_EVERY = 0.1  # seconds at least between two calls of one pool to other processes


class NotificationHub:
    """Started by the first that waits, in the event loop in which all of them wait."""

    def __init__(self) -> None:
        self.room = WaiterRegistry()
        self.listener = Listener(self.room.call, self._heard, {JOB_UPDATES: self._job_updates})
        # Receive the ids of jobs that changed; None stands for all, after announcements may have been lost.
        self.job_subscribers: list[Callable[[list[str] | None], None]] = []
        # Half of the connections: a wake of many leaves the others to short requests.
        self.looks = asyncio.Semaphore(max(1, settings.DATABASES["default"]["OPTIONS"]["pool"]["max_size"] // 2))
        self._tasks: set[asyncio.Task[None]] = set()
        self._calling: set[str] = set()  # pools whose call waits for its time
        self._called: dict[str, float] = {}

    async def start(self) -> None:
        if self._tasks:
            return
        on_shutdown(self.room.close)
        self._keep(self.listener.run())
        self._keep(self.room.keep_polling())

    def call_elsewhere(self, pool: str) -> None:
        """Where work was found may be more, and nobody here is left to look: perhaps in another process. A call takes a
        connection, and a lock of the whole cluster: those of a busy pool wait for each other."""
        if pool in self._calling:
            return
        self._calling.add(pool)
        self._keep(self._call(pool))

    async def _call(self, pool: str) -> None:
        try:
            await asyncio.sleep(max(0.0, self._called.get(pool, 0.0) + CALL_EVERY - time.monotonic()))
        finally:
            self._calling.discard(pool)
        self._called[pool] = time.monotonic()
        try:
            await call(CHANNEL, pool)
        except (DatabaseError, InterfaceError) as error:
            log.warning("could not call other processes: %s", type(error).__name__)

    def _heard(self, alive: bool) -> None:
        self.room.patience = NOTIFIED if alive else POLLING
        if alive:
            self.room.call_everywhere()
            for receive in self.job_subscribers:
                receive(None)

    def _job_updates(self, payload: str) -> None:
        for receive in self.job_subscribers:
            receive(ids_of(payload))

    def _keep(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


_current: dict[asyncio.AbstractEventLoop, NotificationHub] = {}


def waking_of_this_loop() -> NotificationHub:
    """Return the one instance of the running event loop; what waits in a process shares its listening connection."""
    loop = asyncio.get_running_loop()
    if loop not in _current:
        _current.clear()  # a process has one loop; only tests run several, one after the other
        _current[loop] = NotificationHub()
    return _current[loop]
