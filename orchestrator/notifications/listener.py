"""The one connection of a process on which it hears that work has come, and how it knows that it still hears."""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping
from typing import Any

import psycopg
from asgiref.sync import sync_to_async
from django.db import DatabaseError, InterfaceError, connection, connections

from orchestrator.http.db_scope import release_connection_after
from orchestrator.notifications.metrics import LISTENER_LOSSES, LISTENER_UP
from runtime_jobs.identifiers import new_id

log = logging.getLogger(__name__)

CHANNEL = "lanes"  # the payload is a pool's slug
PROBE_EVERY = 15.0
ECHO_WITHIN = 5.0
PAUSES = (0.2, 5.0)  # between two tries to connect: the first, and what it doubles up to


class ProbeTimeout(Exception):
    """The connection looks well, but what is called does not arrive."""


class Listener:
    """`hear` gets each pool that is called. `tell` gets True once calls are known to arrive, False when they do not.
    `subscriptions`: other channels of the same connection, each with the function that gets its payloads.

    A connection may be dead for minutes before anybody notices, and behind a pooler it may never hear anything. So the
    process calls itself, through another connection on a channel of its own; only an echo proves that it hears."""

    def __init__(
        self,
        hear: Callable[[str], None],
        tell: Callable[[bool], None],
        subscriptions: Mapping[str, Callable[[str], None]] | None = None,
    ) -> None:
        self.tell = tell
        self._subscriptions = {CHANNEL: hear} | dict(subscriptions or {})
        self.own = new_id("probe")
        self.is_alive = False
        self._weight = logging.WARNING
        self._echo_due: float | None = None
        self._probes: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Listen for ever; a connection that is lost is made anew."""
        pause = PAUSES[0]
        while True:
            try:
                async with await _connected() as heard:
                    await self._attend(heard)
            except (psycopg.Error, OSError, ProbeTimeout) as error:
                log.log(self._weight, "does not hear the database: %s", type(error).__name__)
                self._weight = logging.DEBUG  # once is enough, until it has heard again
            pause = PAUSES[0] if self.is_alive else min(2 * pause, PAUSES[1])
            self._note(alive=False)
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))  # noqa: S311 jitter

    async def _attend(self, heard: psycopg.AsyncConnection[Any]) -> None:
        for channel in (*self._subscriptions, self.own):
            await heard.execute(f'LISTEN "{channel}"')
        self._echo_due, next_probe = None, 0.0
        while True:
            now = time.monotonic()
            if self._echo_due is not None and now > self._echo_due:
                raise ProbeTimeout
            if now >= next_probe:
                next_probe = now + PROBE_EVERY
                self._probe()
            due = min(next_probe, self._echo_due or next_probe)
            async for notice in heard.notifies(timeout=max(0.01, due - now), stop_after=1):
                self._take(notice)

    def _take(self, notice: psycopg.Notify) -> None:
        if notice.channel == self.own:
            self._echo_due = None
            self._note(alive=True)
        else:
            self._subscriptions[notice.channel](notice.payload)

    def _probe(self) -> None:
        """Beside the loop that hears, which must not wait for a connection."""
        self._echo_due = self._echo_due or time.monotonic() + ECHO_WITHIN
        task = asyncio.create_task(self._call_itself())
        self._probes.add(task)
        task.add_done_callback(self._probes.discard)

    async def _call_itself(self) -> None:
        try:
            await call(self.own, "")
        except (DatabaseError, InterfaceError):
            self._echo_due = None  # nothing was called, so nothing is proved; the next probe will tell

    def _note(self, *, alive: bool) -> None:
        if alive == self.is_alive:
            return
        self.is_alive, self._weight = alive, logging.WARNING
        LISTENER_UP.set(alive)
        if not alive:
            LISTENER_LOSSES.inc()
        self.tell(alive)


async def _connected() -> psycopg.AsyncConnection[Any]:
    params = connections["default"].get_connection_params()
    params["cursor_factory"] = psycopg.AsyncCursor
    params["application_name"] = f"{params['application_name']}-listener"
    return await psycopg.AsyncConnection.connect(**params, autocommit=True)


@release_connection_after
def send_notification(channel: str, payload: str) -> None:
    """Notify every process that listens on the channel."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, %s)", [channel, payload])


call = sync_to_async(send_notification, thread_sensitive=False)
