"""Request threads compute in turn, and a thread that waits for PostgreSQL lets another one compute."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection

from orchestrator.core import compute_slots as module
from orchestrator.core.compute_slots import ComputeSlots
from tests.live_server import eventually

LONG = 60.0


@pytest.fixture
def threads():
    with ThreadPoolExecutor(16) as pool:
        yield pool


class Work:
    """Pieces of work, each of which waits until it is released; `order` has their names as they began."""

    def __init__(self, *names):
        self.order = []
        self.begun = threading.Semaphore(0)
        self.released = {name: threading.Event() for name in names}

    def __call__(self, name):
        self.order.append(name)
        self.begun.release()
        assert self.released[name].wait(LONG)


def waiting(slots):
    return sum(len(turns) for turns in slots._waiting.values())


def test_a_client_computes_in_one_thread_and_clients_take_turns(threads):
    slots = ComputeSlots(2, per_client=1, max_wait=LONG)
    work = Work("flood-0", "flood-1", "flood-2", "other", "third")
    futures = [threads.submit(slots.run, "flood", work, "flood-0")]
    assert work.begun.acquire(timeout=LONG)
    for number in (1, 2):
        futures.append(threads.submit(slots.run, "flood", work, f"flood-{number}"))
        eventually(lambda number=number: waiting(slots) == number)
    futures.append(threads.submit(slots.run, "other", work, "other"))
    assert work.begun.acquire(timeout=LONG)
    assert work.order == ["flood-0", "other"], "the limit of the client holds, and leaves a slot to the other"
    futures.append(threads.submit(slots.run, "third", work, "third"))
    eventually(lambda: waiting(slots) == 3)
    for expected in ("flood-0", "other", "flood-1", "third", "flood-2"):
        assert expected in work.order
        work.released[expected].set()
        if len(work.order) < 5:
            assert work.begun.acquire(timeout=LONG)
    for future in futures:
        future.result(LONG)
    assert (slots._free, slots._held, waiting(slots)) == (2, {}, 0)
    assert sorted(work.order) == ["flood-0", "flood-1", "flood-2", "other", "third"]


def test_a_thread_that_waits_for_something_else_gives_its_slot_to_another(threads):
    slots = ComputeSlots(1, per_client=1, max_wait=LONG)
    outside, back = threading.Event(), threading.Event()
    order = []

    def first():
        with slots.released():
            outside.set()
            assert back.wait(LONG)
        order.append("first")

    running = threads.submit(slots.run, "a", first)
    assert outside.wait(LONG)
    threads.submit(slots.run, "b", order.append, "second").result(LONG)
    back.set()
    running.result(LONG)
    assert order == ["second", "first"]
    assert slots._free == 1


def test_a_thread_continues_without_a_slot_when_it_waits_too_long(threads):
    """The thread with the slot may need a lock of the thread that waits."""
    slots = ComputeSlots(1, per_client=1, max_wait=0.01)
    lock = threading.Event()

    def holder():
        assert lock.wait(LONG)

    running = threads.submit(slots.run, "a", holder)
    eventually(lambda: slots._free == 0)
    threads.submit(slots.run, "a", lock.set).result(LONG)
    running.result(LONG)
    assert (slots._free, slots._held, waiting(slots)) == (1, {}, 0)


def test_other_threads_need_no_slot():
    slots = ComputeSlots(0, per_client=0, max_wait=LONG)
    assert slots.leave() is False
    with slots.released():
        pass


def test_a_slot_is_freed_by_a_request_that_fails(threads):
    slots = ComputeSlots(1, per_client=1, max_wait=LONG)

    def fail():
        raise LookupError

    with pytest.raises(LookupError):
        slots.run("a", fail)
    assert slots._free == 1


@pytest.mark.django_db(transaction=True)
def test_a_query_frees_the_slot_while_it_waits_for_postgresql(threads, monkeypatch):
    slots = ComputeSlots(1, per_client=1, max_wait=LONG)
    monkeypatch.setattr("config.postgres.backend.base.compute_slots", slots)
    monkeypatch.setattr(module, "compute_slots", slots)

    def locked():
        try:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_advisory_xact_lock(4711)")
        finally:
            connection.close()

    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(4711)")
        running = threads.submit(slots.run, "a", locked)
        cursor.execute("SELECT 1")
        eventually(lambda: _is_waiting(cursor))
        threads.submit(slots.run, "a", int).result(LONG)  # the only slot is free
        assert not running.done()
        cursor.execute("SELECT pg_advisory_unlock(4711)")
    running.result(LONG)
    assert slots._free == 1


def _is_waiting(cursor):
    cursor.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
    return cursor.fetchone()[0] == 1
