"""The connection on which a process receives PostgreSQL notifications, with a probe that proves that they arrive.

connect --> LISTEN --> probe sent --> echo arrives: alive --> probe every 15 s
   ^                       |                                       |
   +--- pause, 0.2 to 5 s -+---- no echo within 5 s, or an error --+

The five seconds begin when the probe has been sent. A probe that waits for a connection of the pool proves nothing.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping
from typing import Any

import psycopg
from asgiref.sync import sync_to_async
from django.db import DatabaseError, InterfaceError, connection, connections

from orchestrator.core.db_scope import release_connection_after
from orchestrator.pubsub.metrics import LISTENER_LOSSES, LISTENER_UP
from runtime_jobs.db_errors import log_level_of
from runtime_jobs.identifiers import new_id

log = logging.getLogger(__name__)

CHANNEL = "lanes"  # the payload is the slug of a pool that has work
PROBE_INTERVAL = 15.0  # seconds
ECHO_TIMEOUT = 5.0  # seconds
RECONNECT_PAUSES = (0.2, 5.0)  # seconds between two attempts to connect: the first, and the limit of its doubling


class ProbeTimeout(Exception):
    """The connection is open, but the probe notification did not arrive in time."""


class Listener:
    """Receives notifications and reports whether they arrive.

    A connection may be dead for minutes without an error, and behind a pooler it may never receive a notification. The
    process therefore notifies itself on a channel of its own through another connection. Only the echo proves that
    notifications arrive.
    """

    def __init__(
        self, channels: Mapping[str, Callable[[str, int], None]], *, on_status: Callable[[bool], None] = lambda _: None
    ) -> None:
        """Create a listener; `run` starts it.

        Args:
            channels: For each channel the function that receives its payloads, each with the PID of the database
                session that sent the notification.
            on_status: Called with True once notifications are known to arrive, and with False when they no longer do.
        """
        self.on_status = on_status
        self._channels = dict(channels)
        self.probe_channel = new_id("probe")
        self.is_alive = False
        self._log_level = logging.WARNING
        self._echoes = 0
        self._echo_deadline: float | None = None
        self._probes: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Listen for ever; replace a connection that is lost."""
        pause = RECONNECT_PAUSES[0]
        while True:
            try:
                async with await _connect() as session:
                    await self._receive(session)
            except (psycopg.Error, OSError, ProbeTimeout) as error:
                level = min(self._log_level, log_level_of(error))
                log.log(level, "receives no notifications of the database: %s", type(error).__name__)
                self._log_level = logging.DEBUG  # until notifications have arrived again
            pause = RECONNECT_PAUSES[0] if self.is_alive else min(2 * pause, RECONNECT_PAUSES[1])
            self._set_status(is_alive=False)
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))  # noqa: S311 jitter

    async def _receive(self, session: psycopg.AsyncConnection[Any]) -> None:
        for channel in (*self._channels, self.probe_channel):
            await session.execute(f'LISTEN "{channel}"')
        self._echo_deadline, next_probe = None, 0.0
        self._echoes += 1  # a probe of the session before, sent late, sets no deadline here
        while True:
            now = time.monotonic()
            if self._echo_deadline is not None and now > self._echo_deadline:
                raise ProbeTimeout
            if now >= next_probe:
                next_probe = now + PROBE_INTERVAL
                self._start_probe()
            # A probe that is sent meanwhile sets a deadline, so the wait is never longer than an echo may take.
            pause = min(next_probe, self._echo_deadline or next_probe, now + ECHO_TIMEOUT) - now
            async for notice in session.notifies(timeout=max(0.01, pause), stop_after=1):
                self._dispatch(notice)

    def _dispatch(self, notice: psycopg.Notify) -> None:
        if notice.channel == self.probe_channel:
            self._echoes += 1
            self._echo_deadline = None
            self._set_status(is_alive=True)
        else:
            self._channels[notice.channel](notice.payload, notice.pid)

    def _start_probe(self) -> None:
        """Send the probe in a task of its own: the receiving loop must not wait for a connection."""
        task = asyncio.create_task(self._send_probe())
        self._probes.add(task)
        task.add_done_callback(self._probes.discard)

    async def _send_probe(self) -> None:
        echoes = self._echoes
        try:
            await send_notification_async(self.probe_channel, "")
        except (DatabaseError, InterfaceError):
            return
        if self._echoes == echoes:
            self._echo_deadline = self._echo_deadline or time.monotonic() + ECHO_TIMEOUT

    def _set_status(self, *, is_alive: bool) -> None:
        if is_alive == self.is_alive:
            return
        self.is_alive, self._log_level = is_alive, logging.WARNING
        LISTENER_UP.set(is_alive)
        if not is_alive:
            LISTENER_LOSSES.inc()
        self.on_status(is_alive)


async def _connect() -> psycopg.AsyncConnection[Any]:
    params = connections["default"].get_connection_params()
    params["cursor_factory"] = psycopg.AsyncCursor
    params["application_name"] = f"{params['application_name']}-listener"
    return await psycopg.AsyncConnection.connect(**params, autocommit=True)


@release_connection_after
def send_notification(channel: str, payload: str) -> None:
    """Notify every process that listens on the channel."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, %s)", [channel, payload])


send_notification_async = sync_to_async(send_notification, thread_sensitive=False)
