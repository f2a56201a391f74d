"""The listening connection: alive only after its own echo, replaced when it is lost or receives nothing."""

import asyncio
import contextlib

import pytest
from django.db import OperationalError, connection

from orchestrator.pubsub import listener as listening
from orchestrator.pubsub.hub import pool_announcer
from orchestrator.pubsub.listener import CHANNEL, Listener, send_notification_async
from tests.live_server import eventually

pytestmark = pytest.mark.django_db(transaction=True)


class Receiver:
    """A running listener and its callbacks in order: pools, and whether it is alive."""

    def __init__(self):
        self.received = asyncio.Queue()
        self.listener = Listener({CHANNEL: self.receive}, on_status=self.received.put_nowait)

    def receive(self, payload, _backend):
        self.received.put_nowait(payload)

    async def next(self):
        return await asyncio.wait_for(self.received.get(), 20)


def played(story):
    async def play():
        pool_announcer.flush(30)  # what tests before have submitted
        receiver = Receiver()
        task = asyncio.create_task(receiver.listener.run())
        try:
            await story(receiver)
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    asyncio.run(play())


def kill_listeners():
    return count_listeners("pg_terminate_backend(pid)")


def count_listeners(value="pid"):
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT count({value}) FROM pg_stat_activity"
            " WHERE application_name LIKE '%-listener' AND datname = current_database()"
        )
        return cursor.fetchone()[0]


def test_a_notification_names_the_pool():
    async def story(receiver):
        assert await receiver.next() is True
        await send_notification_async(CHANNEL, "gpu")
        assert await receiver.next() == "gpu"

    played(story)


def test_a_connection_that_was_cut_is_replaced():
    async def story(receiver):
        assert await receiver.next() is True
        await asyncio.to_thread(eventually, lambda: count_listeners() == 1)  # that of the test before has ended
        assert await asyncio.to_thread(kill_listeners) == 1
        assert await receiver.next() is False
        assert await receiver.next() is True
        await send_notification_async(CHANNEL, "gpu")
        assert await receiver.next() == "gpu"

    played(story)


def test_only_an_echo_proves_that_notifications_arrive(monkeypatch):
    """As behind a pooler, where LISTEN succeeds and no notification arrives."""
    monkeypatch.setattr(listening, "ECHO_TIMEOUT", 0.05)
    real, lost, enough = listening.send_notification_async, [], asyncio.Event()

    async def lose(channel, payload):
        lost.append(channel)
        if len(lost) == 3:  # it tries again with new connections
            enough.set()

    monkeypatch.setattr(listening, "send_notification_async", lose)

    async def story(receiver):
        await asyncio.wait_for(enough.wait(), 20)
        assert receiver.received.empty()
        monkeypatch.setattr(listening, "send_notification_async", real)
        monkeypatch.setattr(listening, "ECHO_TIMEOUT", 10)
        assert await receiver.next() is True

    played(story)


def test_notifications_that_stop_are_detected(monkeypatch):
    monkeypatch.setattr(listening, "PROBE_INTERVAL", 0.05)

    async def story(receiver):
        assert await receiver.next() is True
        monkeypatch.setattr(listening, "ECHO_TIMEOUT", 0.05)
        real = listening.send_notification_async

        async def lose(channel, payload):
            monkeypatch.setattr(listening, "send_notification_async", real)

        monkeypatch.setattr(listening, "send_notification_async", lose)
        assert await receiver.next() is False
        monkeypatch.setattr(listening, "ECHO_TIMEOUT", 10)
        assert await receiver.next() is True

    played(story)


def test_a_probe_that_could_not_be_sent_proves_nothing(monkeypatch):
    monkeypatch.setattr(listening, "PROBE_INTERVAL", 0.02)
    monkeypatch.setattr(listening, "ECHO_TIMEOUT", 0.1)

    async def story(receiver):
        assert await receiver.next() is True
        failed, enough = [], asyncio.Event()

        async def fail(channel, payload):
            failed.append(channel)
            if len(failed) == 10:
                enough.set()
            raise OperationalError

        monkeypatch.setattr(listening, "send_notification_async", fail)
        await asyncio.wait_for(enough.wait(), 20)
        assert receiver.received.empty()
        assert receiver.listener.is_alive

        waiting, longer_than_an_echo = asyncio.Event(), asyncio.Event()

        async def wait(channel, payload):
            """Wait for a connection, as while the pool has none."""
            waiting.set()
            await longer_than_an_echo.wait()
            raise OperationalError

        monkeypatch.setattr(listening, "send_notification_async", wait)
        await asyncio.wait_for(waiting.wait(), 20)
        await asyncio.sleep(3 * listening.ECHO_TIMEOUT)
        longer_than_an_echo.set()
        assert receiver.received.empty()
        assert receiver.listener.is_alive

    played(story)
