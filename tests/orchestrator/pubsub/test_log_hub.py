"""The log hub without a database: which followers share a read, and that none misses a change."""

import asyncio
import contextlib
import threading

import pytest
from django.db import OperationalError

from orchestrator.pubsub import log_hub as hubs
from orchestrator.pubsub.hub import NotificationHub
from orchestrator.pubsub.log_hub import BatchCache, ChunkBatch, Hub, SourceUnavailable

BATCH = 4


class Quiet(NotificationHub):
    """A process that listens to nothing."""

    async def start(self):
        pass


class Text:
    """Texts by topic; a position is an offset. `reads` are the positions that were read."""

    def __init__(self, **texts):
        self.texts = {name: text.encode() for name, text in texts.items()}
        self.ended, self.reads, self.asked, self.trouble, self.watched = set(), [], 0, [], []
        self.during = lambda: None

    def read(self, topic, position):
        self.reads.append(position)
        if self.trouble:
            raise self.trouble.pop()
        data = self.texts[topic][position : position + BATCH]
        ended = not data and topic in self.ended
        self.during()
        return ChunkBatch(data, position + len(data), ended)

    def watch(self, topics):
        self.watched += topics

    def states(self, topics):
        self.asked += 1
        return {name: (len(self.texts[name]), name in self.ended) for name in topics}


class Follower:
    def __init__(self, hub, name="log"):
        self.found = b""
        self.task = asyncio.ensure_future(self.run(hub, name))

    async def run(self, hub, name):
        async for part in hub.follow(name, 0):
            self.found += part

    async def has(self, text):
        async with asyncio.timeout(20):
            while self.found != text:  # noqa: ASYNC110 the hub knows of no such event
                await asyncio.sleep(0.001)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(hubs, "MIN_WAKE_INTERVAL", 0)
    monkeypatch.setattr(hubs, "WAKE_INTERVAL_PER_FOLLOWER", 0)
    monkeypatch.setattr(hubs, "RECHECK_WITHOUT", 3600)
    monkeypatch.setattr(hubs, "RETRY_PAUSE", 0.001)


def played(story, source):
    async def play():
        hub = Hub(source, Quiet())
        await story(hub)
        await asyncio.sleep(0)
        assert not hub._topics
        assert not hub._reading
        assert hub._rechecking is None

    asyncio.run(play())


def test_many_followers_share_each_read():
    source = Text(log="one two three")

    async def story(hub):
        followers = [Follower(hub) for _ in range(50)]
        for one in followers:
            await one.has(b"one two three")
        async with asyncio.timeout(20):
            while len(source.reads) < 5:  # noqa: ASYNC110 the last read finds nothing, and no follower sees it
                await asyncio.sleep(0.001)
        assert sorted(source.reads) == [0, 4, 8, 12, 13]
        assert source.watched == ["log"]
        source.texts["log"] += b"!"
        hub.receive(["log"])
        for one in followers:
            await one.has(b"one two three!")
        source.ended.add("log")
        hub.receive(["log", "another"])
        await asyncio.gather(*[one.task for one in followers])
        assert len(source.reads) <= 8

    played(story, source)


def test_a_read_that_found_nothing_serves_later_followers_until_a_change():
    source = Text(log="ab")

    async def story(hub):
        followers = [Follower(hub)]
        await followers[0].has(b"ab")
        topic = hub._topics["log"]
        for number in range(1, 6):
            async with asyncio.timeout(20):
                while len(topic._waiting) < number:  # noqa: ASYNC110 the hub knows of no such event
                    await asyncio.sleep(0.001)
            followers.append(Follower(hub))
        assert source.reads == [0, 2]
        source.texts["log"] += b"c"
        hub.receive(["log"])
        for one in followers:
            await one.has(b"abc")
        source.ended.add("log")
        hub.receive(["log"])
        await asyncio.gather(*[one.task for one in followers])

    played(story, source)


def test_a_change_during_a_read_is_not_missed():
    source = Text(log="")

    async def story(hub):
        loop, announced = asyncio.get_running_loop(), threading.Event()

        def announce():
            source.texts["log"] += b"news"
            hub.receive(["log"])
            announced.set()

        def during():
            source.during = lambda: None
            loop.call_soon_threadsafe(announce)
            assert announced.wait(20)

        source.during = during  # this read has seen nothing, and ends after the announcement
        first = Follower(hub)
        assert await asyncio.to_thread(announced.wait, 20)
        second = Follower(hub)  # joins while the old read may still be open
        await first.has(b"news")
        await second.has(b"news")
        source.ended.add("log")
        hub.receive(["log"])
        await asyncio.gather(first.task, second.task)

    played(story, source)


def test_a_lost_announcement_is_made_good_by_the_re_check(monkeypatch):
    monkeypatch.setattr(hubs, "RECHECK_WITHOUT", 0.01)
    source = Text(log="a", other="")

    async def story(hub):
        follower, other = Follower(hub), Follower(hub, "other")
        await follower.has(b"a")
        source.texts["log"] += b"b"
        await follower.has(b"ab")
        source.ended |= {"log", "other"}
        await asyncio.gather(follower.task, other.task)

    played(story, source)


def test_announcements_that_may_have_been_lost_cause_a_re_check_at_once():
    source = Text(log="a")

    async def story(hub):
        follower = Follower(hub)
        await follower.has(b"a")
        source.texts["log"] += b"b"
        source.ended.add("log")
        hub.receive(None)
        await asyncio.wait_for(follower.task, 20)
        assert follower.found == b"ab"

    played(story, source)


def test_a_topic_that_was_deleted_wakes_its_followers(monkeypatch):
    monkeypatch.setattr(hubs, "RECHECK_WITHOUT", 0.01)
    source = Text(log="")

    async def story(hub):
        follower = Follower(hub)
        await asyncio.sleep(0.05)
        monkeypatch.setattr(source, "states", lambda _: {})
        source.ended.add("log")
        await asyncio.wait_for(follower.task, 20)

    played(story, source)


def test_who_leaves_ends_nobody_else_s_read():
    source = Text(log="text")

    async def story(hub):
        leaves, stays = Follower(hub), Follower(hub)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        leaves.task.cancel()
        await stays.has(b"text")
        source.ended.add("log")
        hub.receive(["log"])
        await asyncio.wait_for(stays.task, 20)
        with contextlib.suppress(asyncio.CancelledError):
            await leaves.task

    played(story, source)


def test_trouble_with_the_database_is_waited_out_and_ends_a_stream_if_it_lasts(monkeypatch):
    source = Text(log="text")
    source.trouble = [OperationalError(), OSError("the bucket did not answer"), OperationalError()]

    async def story(hub):
        follower = Follower(hub)
        await follower.has(b"text")
        assert source.reads.count(0) == 4
        async with asyncio.timeout(60):
            while 4 not in source.reads or hub._reading:  # noqa: ASYNC110 a read under way has another limit
                await asyncio.sleep(0.001)
        monkeypatch.setattr(hubs, "GIVE_UP_AFTER", 0)
        source.trouble = [OperationalError()] * 1000
        for _ in range(200):  # a read that is under way takes the first notification
            hub.receive(["log"])
            if (await asyncio.wait({follower.task}, timeout=0.1))[0]:
                break
        with pytest.raises(SourceUnavailable):
            await asyncio.wait_for(follower.task, 20)

    played(story, source)


def test_frequent_changes_wake_followers_seldom(monkeypatch):
    monkeypatch.setattr(hubs, "MIN_WAKE_INTERVAL", 3600)
    monkeypatch.setattr(hubs, "MAX_WAKE_INTERVAL", 3600)
    source = Text(log="a")

    async def story(hub):
        follower = Follower(hub)
        await follower.has(b"a")
        reads = len(source.reads)
        for _ in range(50):
            hub.receive(["log"])
            await asyncio.sleep(0)
        topic = hub._topics["log"]
        assert topic.version == 1
        assert len(source.reads) <= reads + 2
        source.ended.add("log")
        topic._wake()
        await asyncio.wait_for(follower.task, 20)

    played(story, source)


def test_a_follower_of_a_quiet_topic_gets_empty_bytes_and_no_further_read():
    source = Text(log="")

    async def story(hub):
        found = []
        async for part in hub.follow("log", 0, idle_seconds=0.001):
            found.append(part)
            if len(found) == 3:
                source.ended.add("log")
                hub.receive(["log"])
        assert set(found) == {b""}
        assert len(found) >= 3
        assert len(source.reads) == 2, "one before the first wait, one after the announcement"

    played(story, source)


def test_a_read_once_ends_where_nothing_follows():
    source = Text(log="one two")

    async def story(hub):
        assert [part async for part in hub.read_to_end("log", 0)] == [b"one ", b"two"]

    played(story, source)


def test_the_cache_keeps_a_number_of_bytes_and_forgets_what_was_used_longest_ago():
    cache = BatchCache(limit=3 * (hubs.ENTRY_OVERHEAD + 10))
    for position in range(3):
        cache.put("log", position, ChunkBatch(b"x" * 10, position + 1, ended=False))
    cache.put("log", 0, ChunkBatch(b"y" * 10, 1, ended=False))
    assert cache.get("log", 1)
    cache.put("log", 3, ChunkBatch(b"x" * 10, 4, ended=False))
    assert [bool(cache.get("log", position)) for position in range(4)] == [True, True, False, True]
    cache.clear()
    assert cache.get("log", 3) is None
    assert cache._size == 0
