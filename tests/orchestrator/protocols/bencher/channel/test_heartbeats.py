"""Heartbeats of many sockets: at once when they are few, together when they are many."""

import asyncio
import time
from dataclasses import dataclass
from uuid import UUID

import pytest
from django.db import OperationalError

from orchestrator.protocols.bencher.channel import heartbeats
from orchestrator.protocols.bencher.channel.heartbeats import HeartbeatBatcher
from orchestrator.protocols.bencher.channel.session import LeasedJob, Reply


@dataclass(frozen=True)
class Handle:
    """A test double of a lease."""

    lease_ulid: str


def job(number):
    return LeasedJob(UUID(int=number), Handle(f"rtl_{number}"))


class Database:
    """Renews when `commit` is called; `batches` are the statements."""

    def __init__(self):
        self.batches, self.running, self.began, self._commits = [], [], [], asyncio.Queue()

    async def renew(self, jobs, running):
        self.running.append({int(name.removeprefix("rtl_")) for name in running})
        self.batches.append([found.uuid.int for found in jobs])
        self.began.append(time.monotonic())
        outcome = await self._commits.get()
        if isinstance(outcome, Exception):
            raise outcome
        return {found.handle.lease_ulid: outcome for found in jobs}

    def commit(self, outcome=Reply.ACK):
        self._commits.put_nowait(outcome)


def run(story):
    asyncio.run(asyncio.wait_for(story(), 30))


async def settled():
    for _ in range(30):
        await asyncio.sleep(0)


def test_a_single_heartbeat_is_written_at_once_and_answered_after_the_commit():
    async def story():
        database = Database()
        reply = asyncio.ensure_future(HeartbeatBatcher(database.renew).renew(job(1)))
        await settled()
        assert database.batches == [[1]]
        assert not reply.done()
        database.commit()
        assert await reply is Reply.ACK

    run(story)


def test_what_arrives_during_a_statement_is_one_further_statement():
    async def story():
        database = Database()
        batcher = HeartbeatBatcher(database.renew)
        replies = [asyncio.ensure_future(batcher.renew(job(1)))]
        await settled()
        replies += [asyncio.ensure_future(batcher.renew(job(number))) for number in range(2, 50)]
        await settled()
        assert database.batches == [[1]]
        database.commit()
        database.commit(Reply.CANCEL)
        assert await asyncio.gather(*replies) == [Reply.ACK, *[Reply.CANCEL] * 48]
        assert database.batches == [[1], list(range(2, 50))]

    run(story)


def test_after_many_the_next_statement_begins_at_the_interval(monkeypatch):
    monkeypatch.setattr(heartbeats, "INTERVAL_SECONDS", 0.3)

    async def story():
        database = Database()
        batcher = HeartbeatBatcher(database.renew)
        before = time.monotonic()
        replies = [asyncio.ensure_future(batcher.renew(job(number))) for number in range(20)]
        await settled()
        replies.append(asyncio.ensure_future(batcher.renew(job(99), can_wait=True)))
        database.commit()
        database.commit()
        await asyncio.gather(*replies)
        assert len(database.batches) == 2
        assert database.began[1] - before >= 0.3

    run(story)


def test_after_many_small_statements_the_next_one_waits_for_the_interval(monkeypatch):
    monkeypatch.setattr(heartbeats, "INTERVAL_SECONDS", 3600)  # nine statements take less on any machine

    async def story():
        database = Database()
        batcher = HeartbeatBatcher(database.renew)
        for number in range(9):
            reply = asyncio.ensure_future(batcher.renew(job(number), can_wait=True))
            database.commit()
            assert await reply is Reply.ACK
            await settled()
        waiting = asyncio.ensure_future(batcher.renew(job(9), can_wait=True))
        await settled()
        assert database.batches == [[number] for number in range(9)]
        waiting.cancel()

    run(story)


def test_an_execution_that_begins_ends_the_pause_and_takes_along_what_is_due(monkeypatch):
    monkeypatch.setattr(heartbeats, "INTERVAL_SECONDS", 3600)

    async def story():
        database = Database()
        batcher = HeartbeatBatcher(database.renew)
        replies = [asyncio.ensure_future(batcher.renew(job(number), can_wait=True)) for number in range(9)]
        database.commit()
        await asyncio.gather(*replies)
        replies = [asyncio.ensure_future(batcher.renew(job(9), can_wait=True))]
        await settled()
        assert len(database.batches) == 1, "it waits"
        replies.append(asyncio.ensure_future(batcher.renew(job(10), is_running=True)))
        database.commit()
        await asyncio.gather(*replies)
        assert (database.batches[1:], database.running) == ([[9, 10]], [set(), {10}])

    run(story)


def test_an_unexpected_error_of_one_lease_reaches_its_socket_only():
    async def story():
        database = Database()
        batcher = HeartbeatBatcher(database.renew)
        replies = [asyncio.ensure_future(batcher.renew(job(number))) for number in range(3)]
        for outcome in (ValueError("together"), Reply.ACK, ValueError("alone"), Reply.ACK):
            database.commit(outcome)
        first, second, third = await asyncio.gather(*replies, return_exceptions=True)
        assert (first, str(second), third) == (Reply.ACK, "alone", Reply.ACK)
        assert database.batches == [[0, 1, 2], [0], [1], [2]]

    run(story)


def test_a_burst_of_one_lease_causes_no_pause(monkeypatch):
    monkeypatch.setattr(heartbeats, "INTERVAL_SECONDS", 3600)

    async def story():
        database = Database()
        batcher = HeartbeatBatcher(database.renew)
        for _ in range(50):
            reply = asyncio.ensure_future(batcher.renew(job(1), can_wait=True))
            database.commit()
            assert await reply is Reply.ACK
        assert len(database.batches) == 50

    run(story)


def test_two_sockets_of_one_lease_share_a_statement():
    async def story():
        database = Database()
        batcher = HeartbeatBatcher(database.renew)
        replies = [asyncio.ensure_future(batcher.renew(job(1))) for _ in range(2)]
        await settled()
        assert database.batches == [[1]]
        replies[0].cancel()
        database.commit()
        assert await replies[1] is Reply.ACK

    run(story)


def test_an_error_reaches_each_socket_and_the_next_heartbeat_is_written():
    async def story():
        database = Database()
        batcher = HeartbeatBatcher(database.renew)
        replies = [asyncio.ensure_future(batcher.renew(job(number))) for number in range(2)]
        database.commit(OperationalError("on purpose"))
        for reply in replies:
            with pytest.raises(OperationalError):
                await reply
        assert len(database.batches) == 1, "the database is away for all of them"
        database.commit()
        assert await batcher.renew(job(1)) is Reply.ACK

    run(story)
