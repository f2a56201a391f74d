"""Clients take turns for the threads of a web process."""

import asyncio
import threading
from collections import Counter

import pytest

from orchestrator.http.asgi.thread_pools import ThreadPool


def test_a_client_that_sends_hundreds_at_once_delays_its_own_requests_only():
    started = threading.Event()
    release = threading.Event()
    order = []

    def first():
        started.set()
        release.wait(30)

    async def scene():
        pool = ThreadPool("test-turns", threads=1, queue=300)
        running = asyncio.create_task(pool.run(first, client="flood"))
        await asyncio.to_thread(started.wait, 30)
        flood = [asyncio.create_task(pool.run(order.append, f"flood-{n}", client="flood")) for n in range(100)]
        await asyncio.sleep(0)
        other = [asyncio.create_task(pool.run(order.append, f"other-{n}", client="other")) for n in range(2)]
        await asyncio.sleep(0)
        release.set()
        await asyncio.gather(running, *flood, *other)
        assert pool.pending == 0

    asyncio.run(scene())
    assert order[:4] == ["flood-0", "other-0", "flood-1", "other-1"]
    assert order[4:] == [f"flood-{n}" for n in range(2, 100)]


def test_a_client_may_fill_half_of_the_queue_and_all_of_them_the_whole():
    release = threading.Event()

    async def scene():
        pool = ThreadPool("test-full", threads=1, queue=4)
        tasks = [asyncio.create_task(pool.run(release.wait, 30, client="flood")) for _ in range(3)]
        await asyncio.sleep(0)
        assert pool.is_full("flood")
        assert not pool.is_full("other")
        tasks += [asyncio.create_task(pool.run(release.wait, 30, client="other")) for _ in range(2)]
        await asyncio.sleep(0)
        assert pool.is_full("third")
        release.set()
        await asyncio.gather(*tasks)
        assert not pool.is_full("flood")

    asyncio.run(scene())


def test_a_request_that_is_given_up_while_it_waits_passes_its_turn_on():
    release = threading.Event()
    order = []

    async def scene():
        pool = ThreadPool("test-cancel", threads=1, queue=4)
        running = asyncio.create_task(pool.run(release.wait, 30, client="a"))
        await asyncio.sleep(0)
        gone = asyncio.create_task(pool.run(order.append, "gone", client="b"))
        stays = asyncio.create_task(pool.run(order.append, "stays", client="c"))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        release.set()
        await asyncio.gather(running, stays)
        assert pool.pending == 0

    asyncio.run(scene())
    assert order == ["stays"]


@pytest.mark.parametrize(
    ("clients", "expected"),
    [
        (["a"], {"a": 5}),
        (["a", "b"], {"a": 5, "b": 3}),
        (["a", "b", "c"], {"a": 5, "b": 3, "c": 1}),
        (["a", "b", "c", "d"], {"a": 5, "b": 3, "c": 1, "d": 1}),
    ],
)
def test_a_client_runs_fewer_requests_than_there_are_free_shares_and_always_one(clients, expected):
    release, has_started = threading.Event(), threading.Semaphore(0)
    started = []

    def work(client):
        started.append(client)
        has_started.release()
        release.wait(30)

    async def scene():
        pool = ThreadPool("test-share", threads=40, queue=100, shares=10)
        tasks = [asyncio.create_task(pool.run(work, name, client=name)) for name in clients for _ in range(8)]
        for _ in range(sum(expected.values())):
            assert await asyncio.to_thread(has_started.acquire, timeout=30)
        await asyncio.sleep(0)
        assert Counter(started) == expected
        release.set()
        await asyncio.gather(*tasks)
        assert (pool._total, pool._running) == (0, {})

    asyncio.run(scene())
    assert Counter(started) == dict.fromkeys(clients, 8)
