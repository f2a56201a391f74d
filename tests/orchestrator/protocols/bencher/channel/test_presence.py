"""The open channels of a process, as it reports them to the database."""

import asyncio
import logging
from typing import Any

import pytest
from django.db import InterfaceError, OperationalError

from orchestrator.core.db_scope import release_connection_after
from orchestrator.http.asgi.thread_pools import ThreadPool
from orchestrator.protocols.bencher.channel import presence
from orchestrator.protocols.bencher.channel.messages import ReadyFrame
from orchestrator.protocols.bencher.channel.presence import ChannelPresence
from orchestrator.protocols.bencher.channel.session import ChannelSession
from orchestrator.services.runner_channels import open_channels
from tests.orchestrator.protocols.bencher.channel.scene import new_runner
from workers.models import RunnerChannels, Worker

pytestmark = pytest.mark.django_db(transaction=True)


def session() -> ChannelSession:
    return ChannelSession(silence_seconds=90, now=0.0)


class Reports:
    """Records what a presence reports; `next` waits for it."""

    def __init__(self, monkeypatch, *, failures: int = 0, error: Exception | None = None) -> None:
        self._queue: asyncio.Queue[dict[int, dict[str, int]]] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._original, self._failures, self._error = presence._report_channels, failures, error
        monkeypatch.setattr(presence, "_report_channels", self._report)

    def _report(self, process: str, channels: Any, versions: Any) -> None:
        if self._failures:
            self._failures -= 1
            self._loop.call_soon_threadsafe(self._queue.put_nowait, None)
            raise self._error
        self._original(process, channels, versions)
        self._loop.call_soon_threadsafe(self._queue.put_nowait, {key: dict(states) for key, states in channels.items()})

    async def next(self) -> Any:
        async with asyncio.timeout(60):
            return await self._queue.get()


def story(scene) -> None:
    asyncio.run(scene())


def test_open_channels_are_reported_until_there_are_none(monkeypatch):
    runner = new_runner()

    async def scene():
        reports = Reports(monkeypatch)
        found = ChannelPresence(ThreadPool("test", threads=1, queue=10), period_seconds=0.01)
        first, second = session(), session()
        with found.opened(first, runner), found.opened(second, runner):
            assert await reports.next() == {runner.pk: {"idle": 2}}
            first.receive(ReadyFrame(30, "0.6.12"), 1.0)
            while (await reports.next()) != {runner.pk: {"idle": 1, "polling": 1}}:
                pass
            found_open = await asyncio.to_thread(release_connection_after(open_channels), [runner])
            assert found_open[runner.pk] == {"idle": 1, "polling": 1}
        while await reports.next():
            pass
        await asyncio.wait_for(found._task, 60)
        with found.opened(second, runner):
            assert await reports.next() == {runner.pk: {"idle": 1}}, "a new task, after the first has ended"

    story(scene)
    assert Worker.objects.get().agent_version == "0.6.12"


@pytest.mark.parametrize(
    ("error", "has_traceback"),
    [(OperationalError("gone"), False), (InterfaceError("closed"), False), (RuntimeError("a bug"), True)],
)
def test_a_report_that_fails_is_repeated(monkeypatch, caplog, error, has_traceback):
    caplog.set_level(logging.DEBUG)  # `runtime_jobs.db_outage` logs an outage itself
    runner = new_runner()

    async def scene():
        reports = Reports(monkeypatch, failures=2, error=error)
        found = ChannelPresence(ThreadPool("test", threads=1, queue=10), period_seconds=0.01)
        with found.opened(session(), runner):
            assert [await reports.next() for _ in range(3)] == [None, None, {runner.pk: {"idle": 1}}]
        while await reports.next():
            pass

    story(scene)
    assert not RunnerChannels.objects.exists()
    warnings = [record for record in caplog.records if record.getMessage().startswith("the open channels were not")]
    assert ["Traceback" in str(record.exc_text) for record in warnings] == [has_traceback] * 2
