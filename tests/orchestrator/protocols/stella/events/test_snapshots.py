"""The snapshots of streams: shared, and never of a time before the stream has chosen its place."""

import asyncio
import threading

import pytest
from django.db import OperationalError

from orchestrator.protocols.stella.events.snapshots import Snapshots, dashboard_numbers
from orchestrator.pubsub.log_hub import SourceUnavailable
from tests.factories import OrganizationFactory, ProjectFactory, claimed, submitted

ACME, OTHER = frozenset({"acme"}), frozenset({"other"})


class Numbers:
    """Counts the reads; each waits until it is let through."""

    def __init__(self):
        self.reads, self.gate = [], threading.Event()

    def __call__(self, audience):
        number = len(self.reads)
        self.reads.append(audience)
        self.gate.wait(20)
        return {"read": number}


def test_streams_that_begin_together_share_a_read_that_has_not_begun():
    numbers = Numbers()

    async def story():
        snapshots = Snapshots(numbers)
        first = [asyncio.create_task(snapshots.read(ACME)) for _ in range(10)]
        while not numbers.reads:  # noqa: ASYNC110 there is no event to wait for
            await asyncio.sleep(0.001)
        later = [asyncio.create_task(snapshots.read(ACME)) for _ in range(10)]
        await asyncio.sleep(0.01)
        assert numbers.reads == [ACME]
        numbers.gate.set()
        assert {found["read"] for found in await asyncio.gather(*first)} == {0}
        assert {found["read"] for found in await asyncio.gather(*later)} == {1}
        assert not snapshots._running
        assert not snapshots._next

    asyncio.run(story())


def test_audiences_do_not_wait_for_one_another():
    numbers = Numbers()
    numbers.gate.set()

    async def story():
        snapshots = Snapshots(numbers)
        await asyncio.gather(snapshots.read(ACME), snapshots.read(OTHER), snapshots.read(None))
        assert len(numbers.reads) == 3

    asyncio.run(story())


def test_a_database_that_is_away_ends_the_streams_and_not_the_next_ones():
    answers = [{"read": 1}, OperationalError()]

    def read(_audience):
        answer = answers.pop()
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def story():
        snapshots = Snapshots(read)
        with pytest.raises(SourceUnavailable):
            await snapshots.read(ACME)
        assert await snapshots.read(ACME) == {"read": 1}

    asyncio.run(story())


@pytest.mark.django_db
def test_the_numbers_are_those_of_the_audience():
    mine, other = (ProjectFactory(organization=OrganizationFactory(slug=slug)) for slug in ("acme", "other"))
    submitted(mine)
    claimed()
    submitted(mine), submitted(other)
    counts = [dashboard_numbers(audience)["jobs"] for audience in (ACME, None)]
    assert [{status: number for status, number in found.items() if number} for found in counts] == [
        {"queued": 1, "running": 1},
        {"queued": 2, "running": 1},
    ]
