from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.workers.agent.scripted import wait_until
from workers.agent.errors import LeaseRejected, RequestRefused, ServerConflict, ServerUnreachable, TransientRefusal
from workers.agent.log_shipper import CHUNK_BYTES, PIECE_BYTES, LogShipper, LogTrimmer


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


def test_the_writer_never_waits() -> None:
    store, gate = Store(), threading.Event()
    waited: list[bool] = []
    store.before = lambda call: waited.append(gate.wait(60))
    pump = LogShipper(store, Ear(), period=0.01)
    pump.start()
    pump.write(b"a" * 10)
    wait_until(lambda: store.calls == 1)
    for _ in range(20):
        pump.write(b"b" * CHUNK_BYTES)
    assert waited == [], "the store still waits, and all is written"
    gate.set()
    pump.close(within=20)
    assert store.text == b"a" * 10 + b"b" * 20 * CHUNK_BYTES


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


class Kept:
    def __init__(self) -> None:
        self.text = b""

    def write(self, data: bytes) -> None:
        self.text += data


MARKER = re.compile(rb"\n\[([\d,]+) bytes? in ([\d,]+) lines? dropped here\]\n")


def test_of_a_long_log_head_and_tail_are_kept_and_what_is_missing_is_counted() -> None:
    """200,000 lines: the numbers of the marker are those of the lines between."""
    log, trimmer = Kept(), LogTrimmer(1 << 20, 1 << 20)
    lines = [b"%06d of a log with many lines, of which the last ones say what went wrong\n" % n for n in range(200_000)]
    output = b"".join(lines)
    for start in range(0, len(output), 4099):
        trimmer.write(log, output[start : start + 4099])
    trimmer.flush()
    head, lost_bytes, lost_lines, tail = MARKER.split(log.text)
    assert output.startswith(head)
    assert output.endswith(tail)
    assert tail.splitlines(keepends=True)[0] in lines, "a whole line"
    assert (1 << 20) - 4099 <= len(head) <= 1 << 20
    assert (1 << 20) - 100 <= len(tail) <= 1 << 20
    missing = {"bytes": len(output) - len(head) - len(tail), "lines": 200_000 - (head + tail).count(b"\n")}
    assert trimmer.facts == {"log_truncated": missing}
    assert {"bytes": int(lost_bytes.replace(b",", b"")), "lines": int(lost_lines.replace(b",", b""))} == missing


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.text("ab\n", max_size=30)), max_size=30),
    st.integers(0, 60),
    st.integers(0, 60),
)
def test_what_is_written_comes_out_in_order_or_is_counted(pieces: list[tuple[int, str]], head: int, tail: int) -> None:
    logs, trimmer = [Kept(), Kept(), Kept()], LogTrimmer(head, tail)
    pieces.sort(key=lambda piece: piece[0])  # steps follow one another
    for number, text in pieces:
        trimmer.write(logs[number], text.encode())
    trimmer.flush()
    everything = "".join(text for _, text in pieces).encode()
    lost = trimmer.facts.get("log_truncated", {"bytes": 0, "lines": 0})
    kept = b"".join(MARKER.sub(b"", log.text) for log in logs)
    assert len(kept) == len(everything) - lost["bytes"] <= head + tail
    assert kept.count(b"\n") == everything.count(b"\n") - lost["lines"]
    assert sum(len(MARKER.findall(log.text)) for log in logs) == sum(log in trimmer._dropped for log in logs)
    if len(everything) <= head + tail and not lost["bytes"]:
        assert kept == everything
    end = everything[len(everything) - min(tail, len(everything)) :]
    assert b"\n" in end or kept.endswith(end), "the end is there, but for a line without its beginning"


def test_output_byte_by_byte_takes_no_more_memory() -> None:
    log, trimmer = Kept(), LogTrimmer(0, 1 << 18)
    for _ in range(1 << 19):
        trimmer.write(log, b"x")
    assert len(trimmer._tail) <= (1 << 18) // PIECE_BYTES + 2
