"""The shared state of all long polls and streams of one event loop: waiters, listening connection, limits."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from django.conf import settings
from django.db import DatabaseError, InterfaceError, connection

from orchestrator.core.db_scope import release_connection_after
from orchestrator.core.principal_cache import CHANNEL as CREDENTIALS
from orchestrator.core.principal_cache import principals
from orchestrator.pubsub.announcer import Announcer
from orchestrator.pubsub.job_updates import CHANNEL as JOB_UPDATES
from orchestrator.pubsub.job_updates import parse_job_ids
from orchestrator.pubsub.listener import CHANNEL, Listener, send_notification_async
from orchestrator.pubsub.shutdown import on_shutdown
from orchestrator.pubsub.waiters import NOTIFIED, POLLING, WaiterRegistry
from runtime_jobs.db_errors import log_level_of

log = logging.getLogger(__name__)

NOTIFY_INTERVAL = 0.1  # seconds at least between two notifications of one pool to other processes
ANNOUNCE_INTERVAL = 0.01  # seconds at least between two announcements of queued jobs by a process


class NotificationHub:
    """Connects waiting long polls and followed logs of one event loop with the notifications of PostgreSQL.

    Attributes:
        waiters: The waiting long polls.
        listener: The connection that receives notifications.
        job_subscribers: Callbacks for the ids of jobs that changed. They receive None after
            notifications may have been lost: then any job may have changed.
        attempts: Limits how many woken claims query the database at a time: half of the connections, so that short
            requests get the others.
    """

    def __init__(self) -> None:
        self.waiters = WaiterRegistry()
        channels: dict[str, Callable[[str, int], None]] = {
            CHANNEL: self.waiters.notify_pool,
            JOB_UPDATES: self._on_job_updates,
            CREDENTIALS: lambda *_: principals.clear(),
        }
        self.listener = Listener(channels, on_status=self._on_listener_status)
        self.job_subscribers: list[Callable[[list[str] | None], None]] = []
        self.attempts = asyncio.Semaphore(max(1, settings.DATABASES["default"]["OPTIONS"]["pool"]["max_size"] // 2))
        self._tasks: set[asyncio.Task[None]] = set()
        self._pending_pools: set[str] = set()  # their notification waits for NOTIFY_INTERVAL
        self._notified_at: dict[str, float] = {}

    async def start(self) -> None:
        """Start listening and polling. Later calls have no effect."""
        if self._tasks:
            return
        on_shutdown(self.waiters.close)
        self._start_task(self.listener.run())
        self._start_task(self.waiters.keep_polling())

    def notify_other_processes(self, pool: str) -> None:
        """Notify all processes that a pool may have more work, because no waiter of this process is left for it.

        A notification takes a connection and a lock of the whole cluster, so those of one pool are combined.
        """
        if pool in self._pending_pools:
            return
        self._pending_pools.add(pool)
        self._start_task(self._notify(pool))

    async def _notify(self, pool: str) -> None:
        try:
            await asyncio.sleep(max(0.0, self._notified_at.get(pool, 0.0) + NOTIFY_INTERVAL - time.monotonic()))
        finally:
            self._pending_pools.discard(pool)
        self._notified_at[pool] = time.monotonic()
        try:
            await send_notification_async(CHANNEL, pool)
        except (DatabaseError, InterfaceError) as error:
            log.log(log_level_of(error), "could not notify other processes: %s", type(error).__name__)

    def _on_listener_status(self, is_alive: bool) -> None:
        self.waiters.poll_interval = NOTIFIED if is_alive else POLLING
        if is_alive:
            self.waiters.notify_all_pools()
            for receive in self.job_subscribers:
                receive(None)

    def _on_job_updates(self, payload: str, _backend: int) -> None:
        for receive in self.job_subscribers:
            receive(parse_job_ids(payload))

    def _start_task(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def hand_over(pools: list[str]) -> None:
    """Wake long polls of this process for the pools in which an operation has queued jobs. Never raises.

    Call it after the commit. `pool_announcer` notifies the other processes later.
    """
    for loop, hub in list(_hubs.items()):
        for pool in dict.fromkeys(pools):
            if hub.waiters.has_waiters(pool):
                with suppress(RuntimeError):  # the loop was closed in the meantime
                    loop.call_soon_threadsafe(hub.waiters.hand_over, pool)


@release_connection_after
def announce_pools(pools: list[str]) -> None:
    """Notify every process that these pools have work, by a transaction that does nothing else.

    The hubs of this process first learn the session that notifies: they have handed the jobs over already.
    """
    with connection.cursor() as cursor:
        for hub in list(_hubs.values()):
            hub.waiters.add_own_backend(connection.connection.info.backend_pid)
        cursor.execute("SELECT pg_notify(%s, pool) FROM unnest(%s::text[]) AS pool", [CHANNEL, pools])


pool_announcer = Announcer("pools", announce_pools, interval=ANNOUNCE_INTERVAL)


_hubs: dict[asyncio.AbstractEventLoop, NotificationHub] = {}


def hub_of_running_loop() -> NotificationHub:
    """Return the hub of the running event loop; all waiters of a process share its listening connection."""
    loop = asyncio.get_running_loop()
    if loop not in _hubs:
        _hubs.clear()  # a process has one loop; only tests run several, one after the other
        _hubs[loop] = NotificationHub()
    return _hubs[loop]
