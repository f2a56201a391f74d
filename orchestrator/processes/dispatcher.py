"""The dispatcher process: four loops, for events, deliveries, audit bundles and bulk actions.

    events loop:      distribute a page -> gathered notifications -> dead letters of inactive webhooks -> wait
    deliveries loop:  renew claims, record what has ended, claim what is due -> send in tasks -> wait for one to end
    exports loop:     claim an export job and execute it -> wait
    bulk loop:        claim a bulk action, apply its next targets, record them -> wait while no action is open

Each loop accesses the database in a thread of its own, so the event loop only sends. What was claimed and not recorded
when the process is killed is sent again by any process, when the claims have expired.
"""

import asyncio
import contextlib
import logging
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, Self, TypeVar

from django.db import connection

from orchestrator.bulk_actions.execution import advance_bulk_action
from orchestrator.core.sealing import SealedValueError, unseal
from orchestrator.evidence.exporting import ExportServer
from orchestrator.maintenance.counters import PendingCounts
from orchestrator.webhooks import delivery_queue, mail, notifications
from orchestrator.webhooks.delivery_queue import ClaimedDelivery, FinishedTry
from orchestrator.webhooks.distribution import distribute_page
from orchestrator.webhooks.health import record_health
from orchestrator.webhooks.models import Webhook
from orchestrator.webhooks.operations import WEBHOOK_KEY
from orchestrator.webhooks.sender import Message, Sender, TryResult
from runtime_jobs.db_errors import is_connection_lost, log_level_of

log = logging.getLogger(__name__)

EXPORT_POLL_SECONDS: Final = 1.0  # between two questions for export jobs, while there are none
POLL_SECONDS: Final = 0.25  # between two questions for events or due deliveries, while there are none
COLLECT_SECONDS: Final = 0.01  # after the first try that ends, so that one statement records several
COUNT_SECONDS: Final = 1.0  # between two writes of the counters
RELEASE_SECONDS: Final = 1.0  # between two looks for deliveries of webhooks that are not active
BULK_SECONDS: Final = 1.0  # between two looks for bulk actions, while none is open
ERROR_SECONDS: Final = 1.0  # after an error of the database
STOP_SECONDS: Final = 20.0  # at the end deliveries that are being sent have this long
DELIVERIES: Final = "deliveries"  # the counter of tries by their result

T = TypeVar("T")


class DispatcherProcess:
    """Turns events into deliveries and sends them, until `stop` is called."""

    def __init__(self, *, connections: int, sender: Sender | None = None, poll_seconds: float = POLL_SECONDS) -> None:
        """Prepare.

        Args:
            connections: The number of deliveries that are sent at a time.
            sender: Sends messages; by default to permitted addresses of the system's names.
            poll_seconds: The time between two questions while there is nothing to do.
        """
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self._connections, self._poll_seconds = connections, poll_seconds
        self._sender = sender or Sender()
        self._stop_requested = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed: asyncio.Event | None = None
        self._stopped: asyncio.Event | None = None
        self._sending: dict[int, tuple[asyncio.Task[None], ClaimedDelivery]] = {}
        self._finished: list[FinishedTry] = []
        self._counted_at = 0.0
        self._mail_threads = ThreadPoolExecutor(delivery_queue.MAIL_PLACES, thread_name_prefix="mail")

    def run(self) -> None:
        """Dispatch until `stop` is called."""
        asyncio.run(self._run())

    def stop(self) -> None:
        """End `run` soon; usable in a signal handler and in other threads."""
        self._stop_requested.set()
        for event in (self._changed, self._stopped):
            if self._loop is not None and event is not None:
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    self._loop.call_soon_threadsafe(event.set)

    def run_due(self, *, now: datetime | None = None) -> int:
        """Turn all events into deliveries, write all bundles, apply all bulk actions, and send all due deliveries.

        Args:
            now: The present; by default the time of the database.

        Returns:
            The number of tries.
        """
        while (page := distribute_page(now=now)) is not None and not page.is_complete:
            pass
        while notifications.send_gathered(now=now):
            pass
        delivery_queue.release_inactive(now=now)
        exports = ExportServer()
        while exports.serve_next(now=now):
            pass
        while advance_bulk_action(now=now) is not None:
            pass
        number = 0
        while claimed := self._claim(self._connections, delivery_queue.MAIL_PLACES, now=now):
            tries = asyncio.run(self._send_all(claimed))
            delivery_queue.record_tries(tries, record_health=record_health, now=now)
            number += len(tries)
        return number

    # --- loops --------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        self._loop, self._changed, self._stopped = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
        if self._stop_requested.is_set():
            self._stopped.set()
        async with self._sender:
            loops = (self._distribute(), self._deliver(), self._export(), self._apply_bulk_actions())
            try:
                await asyncio.gather(*(asyncio.create_task(loop) for loop in loops))
            finally:
                self._mail_threads.shutdown(wait=False, cancel_futures=True)

    async def _distribute(self) -> None:
        with _DatabaseThread("events") as database:
            release_at = 0.0
            while not self._stop_requested.is_set():
                page = await database.call(distribute_page)
                sent = await database.call(notifications.send_gathered)
                if asyncio.get_running_loop().time() >= release_at:
                    release_at = asyncio.get_running_loop().time() + RELEASE_SECONDS
                    await database.call(delivery_queue.release_inactive)
                if sent or (page is not None and page.deliveries):
                    self._wake()
                if sent or (page is not None and not page.is_complete and page.scanned):
                    continue
                await self._pause(self._poll_seconds)

    async def _apply_bulk_actions(self) -> None:
        with _DatabaseThread("bulk") as database:
            while not self._stop_requested.is_set():
                if await database.call(advance_bulk_action) is None:
                    await self._pause(min(BULK_SECONDS, self._poll_seconds * 4))

    async def _deliver(self) -> None:
        assert self._changed is not None  # noqa: S101 set by `_run`
        counts = PendingCounts()
        with _DatabaseThread("deliveries") as database:
            while not self._stop_requested.is_set():
                self._changed.clear()
                claimed = await database.call(self._exchange, counts)
                for delivery in claimed or ():
                    task = asyncio.create_task(self._send(delivery))
                    self._sending[delivery.id] = (task, delivery)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), self._poll_seconds * random.uniform(0.8, 1.2))  # noqa: S311 jitter
                    await asyncio.sleep(COLLECT_SECONDS)
            await self._end_deliveries(database, counts)

    async def _export(self) -> None:
        exports = ExportServer(is_stopping=self._stop_requested.is_set)
        with _DatabaseThread("exports") as database:
            while not self._stop_requested.is_set():
                if not await database.call(exports.serve_next):
                    await self._pause(EXPORT_POLL_SECONDS)

    async def _end_deliveries(self, database: "_DatabaseThread", counts: PendingCounts) -> None:
        """Wait for what is being sent, record it, and leave the rest to other processes."""
        tasks = [task for task, _ in self._sending.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=STOP_SECONDS)
        await database.call(self._record, counts)
        await database.call(counts.write)
        await database.call(delivery_queue.give_back, [delivery for _, delivery in self._sending.values()])

    def _exchange(self, counts: PendingCounts) -> list[ClaimedDelivery]:
        """Renew claims, record what has ended, and claim what is due. Runs in the thread of the database."""
        # Before the record, which ends claims, and before the claim, which may choose a delivery with an expired claim.
        delivery_queue.renew_claims([delivery for _, delivery in list(self._sending.values())])
        self._record(counts)
        self._write_counts(counts)
        running = list(self._sending.values())
        mails = sum(delivery.webhook_id is None for _, delivery in running)
        return self._claim(self._connections - len(running), delivery_queue.MAIL_PLACES - mails)

    def _record(self, counts: PendingCounts) -> None:
        number = len(self._finished)
        tries = self._finished[:number]  # the event loop only appends
        if not tries:
            return
        delivery_queue.record_tries(tries, record_health=record_health)
        del self._finished[:number]
        for one in tries:
            counts.add(DELIVERIES, "succeeded" if one.result.is_success else "failed")

    def _write_counts(self, counts: PendingCounts) -> None:
        """Write the counters at most once a second: all dispatchers change the same rows."""
        if time.monotonic() >= self._counted_at + COUNT_SECONDS:
            self._counted_at = time.monotonic()
            counts.write()

    def _claim(self, places: int, mail_places: int, *, now: datetime | None = None) -> list[ClaimedDelivery]:
        return delivery_queue.claim_deliveries(places, now=now) + delivery_queue.claim_mail(
            min(places, mail_places), now=now
        )

    # --- one delivery -------------------------------------------------------------------------------------------------

    async def _send(self, delivery: ClaimedDelivery) -> None:
        try:
            result = await self._try(delivery)
            self._finished.append(FinishedTry(delivery, result))
        finally:
            self._sending.pop(delivery.id, None)
            self._wake()

    async def _send_all(self, claimed: Sequence[ClaimedDelivery]) -> list[FinishedTry]:
        async with self._sender:
            results = await asyncio.gather(*(self._try(delivery) for delivery in claimed))
        return [FinishedTry(delivery, result) for delivery, result in zip(claimed, results, strict=True)]

    async def _try(self, delivery: ClaimedDelivery) -> TryResult:
        if delivery.webhook_id is None:
            loop = asyncio.get_running_loop()
            result = await loop.run_in_executor(self._mail_threads, mail.send_mail, delivery.recipients, delivery.body)
        else:
            result = await self._post(delivery)
        log.info(
            "delivery of event %s to %s, try %d: %s (%d ms)",
            delivery.event_id,
            delivery.webhook_ulid or "mail",
            delivery.tries + 1,
            result.sentence,
            result.duration_ms,
        )
        return result

    async def _post(self, delivery: ClaimedDelivery) -> TryResult:
        try:
            keys = keys_of(delivery)
        except SealedValueError as error:
            log.error("the secret of webhook %s cannot be opened: %s", delivery.webhook_ulid, error)  # noqa: TRY400 no bug
            text = "The secret of the webhook cannot be opened. Nothing was sent."
            return TryResult(datetime.now(UTC), 0, is_success=False, sentence=text)
        message = Message(delivery.url, keys, str(delivery.event_id), delivery.body.encode())
        return await self._sender.send(message)

    # --- waiting ------------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        if self._changed is not None:
            self._changed.set()

    async def _pause(self, seconds: float) -> None:
        """Wait for so long, or until `stop` is called."""
        assert self._stopped is not None  # noqa: S101 set by `_run`
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopped.wait(), seconds)


class _DatabaseThread:
    """A thread with a database connection. Nothing that a call raises ends the loop: the database may be back later."""

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"database-{name}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.submit(_disconnect).result()
        self._thread.shutdown()

    async def call(self, function: Callable[..., T], *arguments: Any) -> T | None:
        """Call a function in the thread. After an error, which is logged, wait a little and return None."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, _guarded, function, arguments)
        except Exception as error:
            if is_connection_lost(error):
                log.log(log_level_of(error), "the session has ended: %s", str(error).strip())
            else:
                log.exception("a step of the dispatcher failed")
            await asyncio.sleep(ERROR_SECONDS * random.uniform(0.8, 1.2))  # noqa: S311 jitter
            return None


def _disconnect() -> None:
    """Close the connection of the calling thread. `connection.close` as an argument would be that of another one."""
    connection.close()


def _guarded(function: Callable[..., T], arguments: tuple[Any, ...]) -> T:
    try:
        return function(*arguments)
    except Exception:
        connection.close()  # the next call begins with a new one
        raise


def keys_of(delivery: ClaimedDelivery) -> tuple[bytes, ...]:
    """Return the keys that sign a delivery, the current one first.

    Raises:
        SealedValueError: A key cannot be opened.
    """
    place = Webhook(webhook_ulid=delivery.webhook_ulid)
    sealed = [(delivery.sealed_secret, place.sealing_context)]
    sealed.append((delivery.sealed_former_secret, place.former_sealing_context))
    return tuple(_opened(secret, context) for secret, context in sealed if secret is not None)


@lru_cache(maxsize=1024)
def _opened(sealed: bytes, context: str) -> bytes:
    return unseal(WEBHOOK_KEY, sealed, context=context)
