"""The listening connection: alive only after its own echo, replaced when it is lost or receives nothing."""

import asyncio
import contextlib

import pytest
from django.db import OperationalError, connection

from orchestrator.notifications import listener as listening
from orchestrator.notifications.listener import CHANNEL, Listener, call

pytestmark = pytest.mark.django_db(transaction=True)


class Ear:
    """A running listener and its callbacks in order: pools, and whether it is alive."""

    def __init__(self):
        self.said = asyncio.Queue()
        self.listener = Listener(self.said.put_nowait, self.said.put_nowait)

    async def next(self):
        return await asyncio.wait_for(self.said.get(), 20)


def played(story):
    async def play():
        ear = Ear()
        task = asyncio.create_task(ear.listener.run())
        try:
            await story(ear)
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    asyncio.run(play())


def kill_listeners():
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
            " WHERE application_name LIKE '%-listener' AND datname = current_database()"
        )
        return cursor.fetchone()[0]


def test_it_hears_which_pool_was_called():
    async def story(ear):
        assert await ear.next() is True
        await call(CHANNEL, "gpu")
        assert await ear.next() == "gpu"

    played(story)


def test_a_connection_that_was_cut_is_made_anew():
    async def story(ear):
        assert await ear.next() is True
        assert await asyncio.to_thread(kill_listeners) == 1
        assert await ear.next() is False
        assert await ear.next() is True
        await call(CHANNEL, "gpu")
        assert await ear.next() == "gpu"

    played(story)


def test_only_an_echo_proves_that_it_hears(monkeypatch):
    """As behind a pooler, where LISTEN is answered and nothing ever comes."""
    monkeypatch.setattr(listening, "ECHO_WITHIN", 0.05)
    real, lost, enough = listening.call, [], asyncio.Event()

    async def lose(channel, payload):
        lost.append(channel)
        if len(lost) == 3:  # it tries again with new connections
            enough.set()

    monkeypatch.setattr(listening, "call", lose)

    async def story(ear):
        await asyncio.wait_for(enough.wait(), 20)
        assert ear.said.empty()
        monkeypatch.setattr(listening, "call", real)
        monkeypatch.setattr(listening, "ECHO_WITHIN", 10)
        assert await ear.next() is True

    played(story)


def test_one_that_has_become_deaf_is_noticed(monkeypatch):
    monkeypatch.setattr(listening, "PROBE_EVERY", 0.05)

    async def story(ear):
        assert await ear.next() is True
        monkeypatch.setattr(listening, "ECHO_WITHIN", 0.05)
        real = listening.call

        async def lose(channel, payload):
            monkeypatch.setattr(listening, "call", real)

        monkeypatch.setattr(listening, "call", lose)
        assert await ear.next() is False
        monkeypatch.setattr(listening, "ECHO_WITHIN", 10)
        assert await ear.next() is True

    played(story)


def test_a_probe_that_could_not_be_sent_proves_nothing(monkeypatch):
    monkeypatch.setattr(listening, "PROBE_EVERY", 0.02)
    monkeypatch.setattr(listening, "ECHO_WITHIN", 0.1)

    async def story(ear):
        assert await ear.next() is True
        failed, enough = [], asyncio.Event()

        async def fail(channel, payload):
            failed.append(channel)
            if len(failed) == 10:
                enough.set()
            raise OperationalError

        monkeypatch.setattr(listening, "call", fail)
        await asyncio.wait_for(enough.wait(), 20)
        assert ear.said.empty()
        assert ear.listener.is_alive

    played(story)
