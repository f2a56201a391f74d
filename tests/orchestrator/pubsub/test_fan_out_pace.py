"""Listeners are woken at once while the processor is free, and seldom while other work wants it."""

import asyncio

import pytest

from orchestrator.events import reader as event_reader
from orchestrator.events.channels import EventFilter
from orchestrator.events.reader import EventReader
from orchestrator.pubsub import log_hub
from orchestrator.pubsub.fan_out_pace import MAX_INTERVAL, VALID_SECONDS, FanOutPace
from tests.orchestrator.events.test_event_reader import Table, entry


class Thread:
    """The time and the processor time of the event loop's thread, as a test sets them."""

    def __init__(self):
        self.now, self.used = 1000.0, 0.0
        self.pace = FanOutPace(clock=lambda: self.now, processor_time=lambda: self.used)

    def wake(self, *, seconds, used):
        """Wake listeners that send for so long, of which the thread had the processor for `used`."""

        async def run():
            self.pace.measure()
            await asyncio.sleep(0)  # the iteration in which the listeners send
            self.now, self.used = self.now + seconds, self.used + used
            await asyncio.sleep(0)
            await asyncio.sleep(0)

        asyncio.run(run())


def test_sending_itself_delays_no_further_wake_up():
    thread = Thread()
    for _ in range(20):
        thread.wake(seconds=0.05, used=0.05)
    assert thread.pace.interval == 0.0


def test_the_time_in_which_others_had_the_processor_delays_the_next_wake_up():
    thread = Thread()
    for _ in range(100):
        thread.wake(seconds=0.05, used=0.04)
    assert thread.pace.interval == pytest.approx(0.1, rel=0.01)
    for _ in range(100):
        thread.wake(seconds=0.02, used=0.02)
    assert thread.pace.interval == 0.0


def test_a_short_wait_delays_no_wake_up():
    thread = Thread()
    for _ in range(100):
        thread.wake(seconds=0.034, used=0.03)
    thread.wake(seconds=0.044, used=0.03)
    assert thread.pace.interval == 0.0


def test_no_wake_up_is_delayed_for_long():
    thread = Thread()
    for _ in range(40):
        thread.wake(seconds=0.9, used=0.01)
    assert thread.pace.interval == MAX_INTERVAL


def test_an_old_measurement_does_not_count():
    thread = Thread()
    for _ in range(40):
        thread.wake(seconds=0.9, used=0.01)
    thread.now += VALID_SECONDS + 0.1
    assert thread.pace.interval == 0.0
    thread.wake(seconds=0.01, used=0.01)
    assert thread.pace.interval == 0.0


def test_a_topic_waits_for_the_longer_of_both_intervals(monkeypatch):
    thread = Thread()
    monkeypatch.setattr(log_hub, "pace", thread.pace)
    topic = log_hub.Topic("events")
    topic.followers = 500
    assert topic.wake_interval == 0.05
    for _ in range(40):
        thread.wake(seconds=0.9, used=0.01)
    assert topic.wake_interval == MAX_INTERVAL


def test_a_wake_up_of_listeners_is_measured(monkeypatch):
    thread, measured = Thread(), []
    monkeypatch.setattr(log_hub, "pace", thread.pace)
    monkeypatch.setattr(thread.pace, "measure", lambda: measured.append(True))

    async def story():
        topic = log_hub.Topic("events")
        topic.note_change()
        assert not measured, "nobody has waited"
        listener = asyncio.create_task(topic.wait(topic.version))
        await asyncio.sleep(0)
        topic._wake()
        assert await listener
        assert measured == [True]

    asyncio.run(story())


def test_the_reader_polls_as_seldom_as_listeners_are_woken(monkeypatch):
    table = Table()
    monkeypatch.setattr(event_reader, "POLL_INTERVAL", 0.0)
    monkeypatch.setattr(event_reader, "LINGER_SECONDS", 0.0)
    monkeypatch.setattr(FanOutPace, "interval", 3600.0)

    async def story():
        loop, first_poll = asyncio.get_running_loop(), asyncio.Event()
        table.during = lambda: loop.call_soon_threadsafe(first_poll.set)
        reader = EventReader(table)
        items = reader.listen(frozenset({"acme"}), EventFilter(), after=None, idle_seconds=60.0)
        await anext(items)
        async with asyncio.timeout(20):
            await first_poll.wait()
        table.add(entry(1))
        await asyncio.sleep(0.05)
        assert len(table.reads) <= 2, "one poll, and one that had begun when the event was added"
        monkeypatch.setattr(FanOutPace, "interval", 0.0)
        reader.poll_now()
        assert [found.place_token for found in (await asyncio.wait_for(anext(items), 20)).entries] == ["p1"]
        await items.aclose()

    asyncio.run(story())
