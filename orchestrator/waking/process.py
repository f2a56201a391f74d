"""What a process needs once somebody waits in it: the room, the listener, and how many may look at a time."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from django.conf import settings
from django.db import DatabaseError, InterfaceError

from orchestrator.waking.listener import CHANNEL, Listener, call
from orchestrator.waking.room import DEAF, HEARING, Room
from orchestrator.waking.stopping import when_told_to_stop

log = logging.getLogger(__name__)


class Waking:
    """Started by the first that waits, in the event loop in which all of them wait."""

    def __init__(self) -> None:
        self.room = Room()
        self.listener = Listener(self.room.call, self._heard)
        # Half of the connections: a wake of many leaves the others to short requests.
        self.looks = asyncio.Semaphore(max(1, settings.DATABASES["default"]["OPTIONS"]["pool"]["max_size"] // 2))
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        if self._tasks:
            return
        when_told_to_stop(self.room.close)
        self._keep(self.listener.run())
        self._keep(self.room.keep_polling())

    def call_elsewhere(self, pool: str) -> None:
        """Where work was found may be more, and nobody here is left to look: perhaps in another process."""
        self._keep(_call(pool))

    def _heard(self, alive: bool) -> None:
        self.room.patience = HEARING if alive else DEAF
        if alive:
            self.room.call_everywhere()

    def _keep(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _call(pool: str) -> None:
    try:
        await call(CHANNEL, pool)
    except (DatabaseError, InterfaceError) as error:
        log.warning("could not call other processes: %s", type(error).__name__)
