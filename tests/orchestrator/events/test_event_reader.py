"""The reader of events without a database: each listener gets its events once and in order, or a gap."""

import asyncio
import contextlib
import threading

import pytest
from django.db import OperationalError
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.events import channels
from orchestrator.events import reader as event_reader
from orchestrator.events.channels import EventChannel, EventFilter, FeedEntry
from orchestrator.events.pages import JOB, EventPage, Place
from orchestrator.events.place_tokens import encode_place
from orchestrator.events.reader import EventReader, Gap, GapReason
from orchestrator.pubsub.log_hub import SourceUnavailable
from tests.orchestrator.events.test_envelopes import event_of_operator

ALL = EventFilter()
ACME, OTHER = frozenset({"acme"}), frozenset({"other"})


def entry(number, org_slug="acme", *, job_type="scan", event_type="job.queued", job=None):
    place = Place(number, JOB, number)
    return FeedEntry(place, f"p{number}", org_slug, event_type, job_type, job, b'{"n":%d}' % number)


class Table:
    """Events by their number. Those from `bound` on are not committed yet."""

    def __init__(self):
        self.entries, self.bound, self.rows = [], 1, 1000
        self.reads, self.trouble, self.during = [], [], lambda: None
        self.gate = threading.Event()
        self.gate.set()

    def add(self, *entries):
        self.entries += entries
        self.bound = max(entry.place.stamp for entry in self.entries) + 1

    def newest_place(self):
        return Place(self.bound)

    def read(self, after, audience):
        self.reads.append((after, audience))
        if self.trouble:
            raise self.trouble.pop()
        bound = self.bound  # once: the test changes it in another thread
        later = [one for one in self.entries if one.place > after and one.place.stamp < bound]
        page = later[: self.rows]
        self.during()
        self.gate.wait(20)
        is_complete = len(later) < self.rows
        place = max(after, Place(bound)) if is_complete else page[-1].place
        visible = [one for one in page if audience is None or one.org_slug in audience]
        return EventPage([], place, bound, len(page), is_complete=is_complete, seconds_behind=0.0), visible

    def progress(self, place, audience):
        return []


@pytest.fixture
def table(monkeypatch):
    monkeypatch.setattr(event_reader, "POLL_INTERVAL", 0.001)
    monkeypatch.setattr(event_reader, "RETRY_PAUSE", 0.001)
    monkeypatch.setattr(event_reader, "LINGER_SECONDS", 0.0)
    return Table()


class Listener:
    """Takes what a stream yields."""

    def __init__(self, reader, audience=ACME, event_filter=ALL, after=None, idle=60.0):
        self.items = reader.listen(audience, event_filter, after=after, idle_seconds=idle)
        self.start, self.numbers, self.gap, self.places = None, [], None, []

    async def begin(self):
        self.start = (await anext(self.items)).place
        return self

    async def take(self, count):
        """Take events until there are so many, or a gap."""
        async with asyncio.timeout(20):
            while len(self.numbers) < count and self.gap is None:
                await self.step()
        return self.numbers

    async def step(self):
        item = await anext(self.items)
        if isinstance(item, Gap):
            self.gap = item
        else:
            assert item.frames == b"".join(one.frame for one in item.entries)
            self.numbers += [one.place.stamp for one in item.entries]
            self.places.append(item.place)

    async def end(self):
        await self.items.aclose()


def play(story):
    asyncio.run(story())


def test_a_listener_gets_what_is_committed_after_it_came(table):
    async def story():
        table.add(entry(1))
        reader = EventReader(table)
        listener = await Listener(reader).begin()
        assert listener.start == Place(2)
        table.add(entry(2), entry(3, "other"), entry(4))
        assert await listener.take(2) == [2, 4]
        await listener.end()

    play(story)


def test_a_hundred_listeners_share_the_reads(table):
    async def story():
        reader = EventReader(table)
        listeners = [await Listener(reader).begin() for _ in range(100)]
        before = len(table.reads)
        table.add(*(entry(number) for number in range(1, 11)))
        for listener in listeners:
            assert await listener.take(10) == list(range(1, 11))
        assert len({place for place, _ in table.reads[before:]}) <= 3
        for listener in listeners:
            await listener.end()

    play(story)


def test_tenants_are_apart_and_staff_see_all(table):
    async def story():
        reader = EventReader(table)
        mine, other, both, staff = [
            await Listener(reader, audience).begin() for audience in (ACME, OTHER, ACME | OTHER, None)
        ]
        table.add(entry(1), entry(2, "other"), entry(3, "third"), entry(4, None), entry(5), entry(6, "other"))
        assert await mine.take(2) == [1, 5]
        assert await other.take(2) == [2, 6]
        assert await both.take(4) == [1, 2, 5, 6]
        assert await staff.take(6) == [1, 2, 3, 4, 5, 6]
        for listener in (mine, other, both, staff):
            await listener.end()

    play(story)


def test_filters(table):
    async def story():
        reader = EventReader(table)
        filters = [
            EventFilter(job_types=frozenset({"scan"})),
            EventFilter(event_types=frozenset({"job.failed"})),
            EventFilter(root_job_id="rtj_1"),
        ]
        listeners = [await Listener(reader, ACME, one).begin() for one in filters]
        table.add(
            entry(1), entry(2, job_type="export"), entry(3, job_type="export", event_type="job.failed"),
            entry(4, job="rtj_1"), entry(5, job_type="export", job="rtj_1", event_type="job.failed"),
        )  # fmt: skip
        assert await listeners[0].take(2) == [1, 4]
        assert await listeners[1].take(2) == [3, 5]
        assert await listeners[2].take(2) == [4, 5]
        for listener in listeners:
            await listener.end()

    play(story)


def test_an_organization_that_joins_during_a_read_misses_nothing(table):
    async def story():
        reader = EventReader(table)
        first = await Listener(reader).begin()
        joined = []

        def join():
            table.during = lambda: None
            joined.append(asyncio.run_coroutine_threadsafe(Listener(reader, OTHER).begin(), loop))
            # Committed while the page that began without this organization is read.
            table.add(entry(1), entry(2, "other"))

        loop = asyncio.get_running_loop()
        table.during = join
        while not joined:  # noqa: ASYNC110 there is no event to wait for
            await asyncio.sleep(0)
        second = await asyncio.wrap_future(joined[0])
        table.add(entry(3, "other"))
        expected = [number for number in (2, 3) if Place(number, JOB, number) > second.start]
        assert expected[-1] == 3
        assert await second.take(len(expected)) == expected
        assert await first.take(1) == [1]
        await first.end()
        await second.end()

    play(story)


def test_a_listener_continues_in_memory_after_its_place(table):
    async def story():
        reader = EventReader(table)
        first = await Listener(reader).begin()
        table.add(*(entry(number) for number in range(1, 6)))
        await first.take(5)
        before = list(table.reads)
        second = await Listener(reader, after=entry(3).place).begin()
        assert await second.take(2) == [4, 5]
        assert all(after >= Place(5) for after, _ in table.reads[len(before) :]), "not from the table"
        await first.end()
        await second.end()

    play(story)


def test_a_listener_of_another_process_continues_from_the_table_then_from_memory(table):
    async def story():
        table.add(*(entry(number) for number in range(1, 8)))
        table.rows = 3
        reader = EventReader(table)
        listener = await Listener(reader, after=entry(2).place).begin()
        assert listener.start == entry(2).place
        table.add(entry(8), entry(9))
        assert await listener.take(7) == [3, 4, 5, 6, 7, 8, 9]
        await listener.end()

    play(story)


def test_a_listener_that_is_ahead_of_the_reader_gets_nothing_twice(table):
    """Another process had sent it events that this one has not read yet."""

    async def story():
        table.add(entry(1))
        reader = EventReader(table)
        first = await Listener(reader).begin()
        listener = await Listener(reader, after=entry(3).place).begin()
        table.add(entry(2), entry(3))
        await first.take(2)
        table.add(entry(4), entry(5))
        assert await listener.take(2) == [4, 5]
        await first.end()
        await listener.end()

    play(story)


def test_a_place_that_is_too_old_gives_a_gap_and_then_what_is_new(table, monkeypatch):
    monkeypatch.setattr(event_reader, "MAX_CATCH_UP_ROWS", 4)

    async def story():
        table.add(*(entry(number) for number in range(1, 21)))
        table.rows = 2
        reader = EventReader(table)
        listener = await Listener(reader, after=Place(0)).begin()
        await listener.take(20)
        assert listener.numbers == [1, 2, 3, 4]
        assert listener.gap == Gap(GapReason.TOO_OLD, entry(4).place, Place(21))
        listener.gap = None
        table.add(entry(21))
        assert await listener.take(5) == [1, 2, 3, 4, 21]
        await listener.end()

    play(story)


def test_a_client_that_reads_too_slowly_gets_a_gap_and_delays_no_other(table, monkeypatch):
    monkeypatch.setattr(channels, "MAX_ENTRIES", 5)

    async def story():
        reader = EventReader(table)
        slow, quick = await Listener(reader).begin(), await Listener(reader).begin()
        table.add(entry(1))
        await slow.take(1)
        for number in range(2, 12):
            table.add(entry(number))
            await quick.take(number)
        assert quick.numbers == list(range(1, 12))
        await slow.take(2)
        assert slow.gap == Gap(GapReason.TOO_SLOW, slow.places[-1], None)
        assert slow.gap.after >= entry(1).place
        with pytest.raises(StopAsyncIteration):
            await anext(slow.items)
        # It connects again, and continues from the table.
        again = await Listener(reader, after=slow.gap.after).begin()
        assert await again.take(10) == list(range(2, 12))
        await again.end()
        await quick.end()

    play(story)


def test_memory_is_bounded_by_bytes_too(monkeypatch):
    monkeypatch.setattr(channels, "MAX_BYTES", 100)

    async def story():
        channel = EventChannel(ACME)
        channel.begin(Place(0))
        for number in range(1, 200):
            channel.append(entry(number))
        assert sum(len(one.data) for one in channel._entries) <= 100
        assert channel.start == channel._entries[0].place._replace(
            stamp=channel._entries[0].place.stamp - 1, id=channel._entries[0].place.id - 1
        )

    play(story)


def test_a_long_backlog_is_sent_in_parts(table, monkeypatch):
    monkeypatch.setattr(channels, "MAX_BATCH_BYTES", 20)

    async def story():
        reader = EventReader(table)
        listener = await Listener(reader).begin()
        table.add(*(entry(number) for number in range(1, 31)))
        assert await listener.take(30) == list(range(1, 31))
        assert len(listener.places) > 3
        assert listener.places == sorted(listener.places)
        await listener.end()

    play(story)


def test_an_open_transaction_delays_and_loses_nothing(table):
    async def story():
        reader = EventReader(table)
        listener = await Listener(reader).begin()
        table.entries, table.bound = [entry(1), entry(2), entry(3)], 2
        assert await listener.take(1) == [1]
        reads = len(table.reads)
        while len(table.reads) < reads + 3:  # noqa: ASYNC110 there is no event to wait for
            await asyncio.sleep(0.001)
        assert listener.numbers == [1]
        table.bound = 4
        assert await listener.take(3) == [1, 2, 3]
        await listener.end()

    play(story)


def test_a_database_that_is_away_delays_and_loses_nothing(table):
    async def story():
        reader = EventReader(table)
        listener = await Listener(reader).begin()
        table.trouble = [OperationalError(), OperationalError()]
        table.add(entry(1))
        assert await listener.take(1) == [1]
        await listener.end()

    play(story)


def test_a_database_that_does_not_answer_at_the_beginning(table, monkeypatch):
    monkeypatch.setattr(event_reader, "GIVE_UP_AFTER", 0.05)

    def away():
        raise OperationalError

    table.newest_place = away

    async def story():
        with pytest.raises(SourceUnavailable):
            await Listener(EventReader(table)).begin()

    play(story)


def test_after_a_restore_every_listener_gets_a_gap(table):
    async def story():
        table.add(*(entry(number) for number in range(1, 11)))
        reader = EventReader(table)
        listener = await Listener(reader).begin()
        table.entries, table.bound = [], 3
        await listener.take(1)
        assert listener.gap == Gap(GapReason.RESTORED, Place(11), Place(3))
        listener.gap = None
        table.add(entry(5))
        assert await listener.take(1) == [5]
        await listener.end()

    play(story)


def test_an_event_that_cannot_be_encoded_stops_no_other(caplog):
    wrong, right = event_of_operator(event_id="evt_no-ulid"), event_of_operator()
    assert [one.place_token for one in event_reader._encoded([wrong, right])] == [encode_place(right.place)]
    assert "evt_no-ulid" in caplog.text


def test_signs_of_life_carry_the_place(table):
    async def story():
        reader = EventReader(table)
        listener = await Listener(reader, idle=0.01).begin()
        table.add(entry(1, "other"), entry(2, "other"))
        while not listener.places or listener.places[-1] < Place(3):
            await listener.step()
        assert listener.numbers == []
        await listener.end()

    play(story)


def test_without_listeners_nothing_is_read(table):
    async def story():
        reader = EventReader(table)
        listener = await Listener(reader).begin()
        await listener.end()
        while reader._task is not None:  # noqa: ASYNC110 there is no event to wait for
            await asyncio.sleep(0.001)
        reads = len(table.reads)
        await asyncio.sleep(0.02)
        assert len(table.reads) <= reads + 1
        assert reader.place is None
        assert not reader._channels

    play(story)


@settings(max_examples=40)
@given(st.lists(st.sampled_from(["write", "commit", "join", "leave", "turn"]), max_size=60))
def test_whatever_happens_in_any_order_each_listener_gets_each_event_once(steps):
    """Listeners leave and continue after the last place that they have got, at this reader or at another one."""
    table = Table()

    async def story():
        with contextlib.ExitStack() as patched:
            for name, value in (("POLL_INTERVAL", 0.0), ("LINGER_SECONDS", 0.0)):
                patched.enter_context(pytest.MonkeyPatch.context()).setattr(event_reader, name, value)
            readers = [EventReader(table), EventReader(table)]
            listener, number, began, last = None, 0, None, None
            for step in [*steps, "join", "commit"]:
                match step:
                    case "write":
                        number += 1
                        table.entries.append(entry(number))
                    case "commit":
                        table.bound = number + 1
                    case "join" if listener is None:
                        readers.reverse()
                        listener = await Listener(readers[0], after=last).begin()
                        began = began or listener.start
                        last = last or listener.start
                    case "leave" if listener is not None:
                        await listener.end()
                        last = entry(listener.numbers[-1]).place if listener.numbers else last
                        seen_before.extend(listener.numbers)
                        listener = None
                    case "turn":
                        await asyncio.sleep(0.002)
            expected = [one.place.stamp for one in table.entries if one.place > began]
            await listener.take(len(expected) - len(seen_before))
            assert seen_before + listener.numbers == expected
            await listener.end()

    seen_before = []
    asyncio.run(story())
