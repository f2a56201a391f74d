from __future__ import annotations

import random
import threading
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.workers.agent.scripted import wait_until
from workers.agent.errors import LeaseRejected, RequestRefused, ServerConflict, ServerUnreachable, TransientRefusal
from workers.agent.log_shipper import BUFFER_BYTES, CHUNK_BYTES, Buffer, LogShipper


class Store:
    """Stores chunks as the server does; `trouble` may raise before or after it."""

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.calls = 0
        self.before: Callable[[int], object] = lambda call: None
        self.after: Callable[[int], object] = lambda call: None

    def __call__(self, seq: int, chunk: bytes) -> None:
        self.calls += 1
        self.before(self.calls)
        if seq > len(self.chunks):
            raise ServerConflict("chunk_gap", "", {"expected_seq": len(self.chunks)})
        if seq < len(self.chunks):
            if self.chunks[seq] != chunk:
                raise ServerConflict("chunk_conflict", "", {})
        else:
            self.chunks.append(chunk)
        self.after(self.calls)

    @property
    def text(self) -> bytes:
        return b"".join(self.chunks)


class Ear:
    def __init__(self) -> None:
        self.stale: list[LeaseRejected] = []

    def __call__(self, error: LeaseRejected) -> None:
        self.stale.append(error)


def pumped(store: Store, *writes: bytes, within: float = 5.0, ear: Ear | None = None) -> LogShipper:
    pump = LogShipper(store, ear or Ear(), period=0.01)
    pump._backoff._first = pump._backoff._bound = 0.01
    pump.start()
    for data in writes:
        pump.write(data)
    pump.close(within=within)
    return pump


def test_what_was_written_arrives_in_order_and_while_it_is_written() -> None:
    store = Store()
    pump = LogShipper(store, Ear(), period=0.01)
    pump.start()
    pump.write(b"one ")
    wait_until(lambda: store.text == b"one ")
    pump.write(b"two")
    pump.close(within=5)
    assert store.text == b"one two"


def test_nothing_written_is_nothing_sent() -> None:
    store = Store()
    pumped(store)
    assert store.calls == 0


def test_a_chunk_is_never_larger_than_the_server_takes() -> None:
    store = Store()
    data = random.Random(1).randbytes(CHUNK_BYTES * 2 + 5)
    pumped(store, data)
    assert store.text == data
    assert max(map(len, store.chunks)) <= CHUNK_BYTES


def test_after_trouble_the_same_bytes_go_under_the_same_number() -> None:
    store = Store()

    def fail(call: int) -> None:
        if call <= 3:
            raise ServerUnreachable("away")

    store.before = fail
    pumped(store, b"hello")
    assert store.chunks == [b"hello"]
    assert store.calls == 4


def test_a_rejected_token_costs_no_output() -> None:
    store = Store()

    def fail(call: int) -> None:
        if call <= 3:
            raise TransientRefusal(401, "unauthenticated", "")

    store.before = fail
    pumped(store, b"hello", b" more")
    assert store.text == b"hello more"


def test_a_chunk_whose_answer_was_lost_is_there_once() -> None:
    store = Store()

    def fail(call: int) -> None:
        if call == 1:
            raise ServerUnreachable("answer lost")

    store.after = fail
    pumped(store, b"hello")
    assert store.chunks == [b"hello"]


def test_a_server_that_is_ahead_is_followed() -> None:
    # As after a lost response to a chunk that another call counted, too.
    numbers = []

    def send(seq: int, chunk: bytes) -> None:
        numbers.append((seq, chunk))
        if len(numbers) == 1:
            raise ServerConflict("chunk_gap", "", {"expected_seq": 4})

    pump = LogShipper(send, Ear(), period=0.01)
    pump.start()
    pump.write(b"a")
    wait_until(lambda: numbers)
    pump.write(b"b")
    pump.close(within=5)
    assert numbers == [(0, b"a"), (4, b"b")]


def test_a_server_that_lost_chunks_gets_the_rest_under_the_number_it_expects() -> None:
    store = Store()
    pump = LogShipper(store, Ear(), period=0.01)
    pump._seq = 3
    pump.start()
    pump.write(b"rest")
    pump.close(within=5)
    assert store.chunks == [b"rest"]


def test_bytes_that_somebody_else_wrote_are_not_overwritten_and_ours_follow() -> None:
    store = Store()
    store.chunks = [b"theirs"]
    pumped(store, b"ours")
    assert store.chunks == [b"theirs", b"ours"]


def test_a_server_that_never_agrees_is_given_up() -> None:
    def send(seq: int, chunk: bytes) -> None:
        raise ServerConflict("chunk_conflict", "", {})

    pump = LogShipper(send, Ear(), period=0.01)
    pump.start()
    pump.write(b"x")
    pump.close(within=5)
    assert not pump._thread.is_alive()


def test_a_stale_lease_ends_the_log_and_is_reported() -> None:
    store, ear = Store(), Ear()

    def fail(call: int) -> None:
        raise LeaseRejected("lease_expired")

    store.before = fail
    pump = pumped(store, b"hello", ear=ear)
    pump.write(b"more")
    assert [error.reason for error in ear.stale] == ["lease_expired"]
    assert store.calls == 1


def test_a_server_that_wants_no_more_gets_no_more() -> None:
    store = Store()

    def fail(call: int) -> None:
        raise RequestRefused(413, "payload_too_large", "")

    store.before = fail
    pumped(store, b"hello", b"more")
    assert store.calls == 1


def test_the_writer_never_waits_and_the_log_says_what_is_missing() -> None:
    store, gate = Store(), threading.Event()
    waited: list[bool] = []
    store.before = lambda call: waited.append(gate.wait(60))
    pump = LogShipper(store, Ear(), period=0.01)
    pump.start()
    pump.write(b"a" * 10)
    wait_until(lambda: store.calls == 1)
    for _ in range(BUFFER_BYTES // CHUNK_BYTES + 4):
        pump.write(b"b" * CHUNK_BYTES)
    assert waited == [], "the store still waits, and all is written"
    gate.set()
    pump.close(within=20)
    assert store.text.endswith(f"\n[{4 * CHUNK_BYTES:,} bytes of output dropped here]\n".encode())
    assert len(store.text) < BUFFER_BYTES + 100


def test_closing_does_not_wait_for_the_answer_to_a_call() -> None:
    store, gate = Store(), threading.Event()
    store.before = lambda call: gate.wait(60)
    pump = LogShipper(store, Ear(), period=0.01)
    pump.start()
    pump.write(b"x")
    wait_until(lambda: store.calls == 1)
    pump.close(within=0.3)
    assert pump._thread.is_alive(), "the store has not answered yet"
    gate.set()
    wait_until(lambda: not pump._thread.is_alive())


def test_closing_gives_up_in_time() -> None:
    store = Store()

    def fail(call: int) -> None:
        raise ServerUnreachable("away")

    store.before = fail
    pump = LogShipper(store, Ear(), period=0.01)
    # Only the closing can end this wait.
    pump._backoff._first = pump._backoff._bound = pump._backoff._max_seconds = 600.0
    pump.start()
    pump.write(b"x")
    wait_until(lambda: store.calls == 1)
    pump.close(within=0.3)
    wait_until(lambda: not pump._thread.is_alive())


def test_closing_at_once_sends_nothing_more() -> None:
    store = Store()
    pump = LogShipper(store, Ear(), period=60)
    pump.start()
    pump.write(b"x" * 10)
    pump.close(within=0)
    wait_until(lambda: not pump._thread.is_alive())
    assert store.calls <= 1


@settings(deadline=None, max_examples=50)
@given(st.lists(st.binary(max_size=300)), st.integers(1, 200), st.integers(1, 400))
def test_what_the_buffer_takes_comes_out_in_order_or_is_counted(pieces: list[bytes], most: int, room: int) -> None:
    buffer = Buffer(room)
    for piece in pieces:
        buffer.write(piece)
    out = b"".join(iter(lambda: buffer.take(most), b""))
    everything = b"".join(pieces)
    if len(everything) <= room:
        assert out == everything
    else:
        kept = everything[:room]
        assert out.startswith(kept)
        noun = "byte" if len(everything) - room == 1 else "bytes"
        assert out[len(kept) :] == f"\n[{len(everything) - room:,} {noun} of output dropped here]\n".encode()
