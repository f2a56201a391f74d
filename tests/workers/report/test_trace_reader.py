"""The process that reads a slot's traces: the same report, and every way in which it may end."""

import contextlib
import os
import resource
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.workers.traced import METADATA, recorded, result, spec, trace
from workers.engines.contract import MountPoints
from workers.report import trace_reader
from workers.report.report import RunReport, encoded
from workers.report.trace_reader import TraceReader, TraceReaderFailed, TraceReaders


@pytest.fixture
def readers():
    with contextlib.closing(TraceReaders()) as made:
        yield made


def end() -> dict:
    return {"metadata": METADATA, "result": result(), "spec": spec()}


def read(readers: TraceReaders, data: bytes, slot: int = 0) -> tuple[int, bytes]:
    """Read a trace, and return the process that has read it, and the body."""
    with readers.reading(slot, MountPoints()) as reader:
        reader.feed(data)
        return reader._process.pid, reader.payload(**end())[0]


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split())


def descriptors() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


def is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("name", ["compiler", "git", "hostile", "npm", "pip"])
def test_the_body_is_that_of_a_report_in_this_process(readers, name):
    report = RunReport(MountPoints(), expected=("example.test",))
    with readers.reading(0, MountPoints(), expected=("example.test",)) as reader:
        for at in range(0, len(recorded(name)), 5_000):
            for each in (reader, report):
                each.feed(recorded(name)[at : at + 5_000])
        body, counts = reader.payload(**end())
    whole = report.payload(**end())
    assert body == encoded(whole)
    assert counts == whole["counts"]


def test_a_slot_keeps_its_process_and_nothing_of_the_run_before(readers):
    first, hostile = read(readers, recorded("hostile"))
    again, body = read(readers, trace())
    other, same = read(readers, recorded("hostile"), slot=1)
    assert (again, other != first, same) == (first, True, hostile)
    report = RunReport(MountPoints())
    report.feed(trace())
    assert body == encoded(report.payload(**end()))


def test_a_process_that_has_read_much_is_replaced(readers, monkeypatch):
    monkeypatch.setattr(trace_reader, "REPLACED_AFTER_BYTES", 2 * len(recorded("npm")))
    pids = [read(readers, recorded("npm"))[0] for _ in range(4)]
    assert len(set(pids)) > 1
    assert is_gone(pids[0])


def during(readers: TraceReaders, what: Callable[[TraceReader], object]) -> int:
    """Do something while a trace is read, and return the process."""
    with readers.reading(0, MountPoints()) as reader:
        reader.feed(trace())
        pid = reader._process.pid
        what(reader)
    return pid


def test_a_run_without_a_result_ends_the_process(readers):
    pid = during(readers, lambda _: None)
    assert is_gone(pid), "and it is no zombie"
    assert read(readers, trace())[0] != pid


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSEGV])
def test_a_process_that_dies_fails_its_run_and_no_later_one(readers, how):
    def die(reader: TraceReader) -> None:
        os.kill(reader._process.pid, how)
        reader._process._process.wait()

    def die_and_feed(reader: TraceReader) -> None:
        die(reader)
        reader.feed(trace())

    def die_and_ask(reader: TraceReader) -> None:
        die(reader)
        reader.payload(**end())

    for what in (die_and_feed, die_and_ask):
        with pytest.raises(TraceReaderFailed):
            during(readers, what)
        assert read(readers, trace())[1]


def test_a_process_that_died_between_two_runs_is_replaced(readers):
    pid, _ = read(readers, trace())
    os.kill(pid, signal.SIGKILL)
    readers._idle[0]._process.wait()
    assert read(readers, trace())[0] != pid


def hang(reader: TraceReader) -> None:
    os.kill(reader._process.pid, signal.SIGSTOP)


def test_a_process_that_hangs_fails_its_run(readers, monkeypatch):
    monkeypatch.setattr(trace_reader, "ANSWER_SECONDS", 0.2)

    def hang_and_ask(reader: TraceReader) -> None:
        hang(reader)
        reader.payload(**end())

    before = children()
    with pytest.raises(TraceReaderFailed, match="does not answer"):
        during(readers, hang_and_ask)
    assert children() == before


def test_a_thread_that_feeds_a_process_that_hangs_is_released(readers, monkeypatch):
    monkeypatch.setattr(trace_reader, "ANSWER_SECONDS", 0.2)
    seen = []

    def feed(reader: TraceReader) -> None:
        try:
            while True:
                reader.feed(b"x" * (1 << 20))
        except TraceReaderFailed as error:
            seen.append(str(error))

    thread = threading.Thread(target=lambda: feed(reader), daemon=True)
    with readers.reading(0, MountPoints()) as reader:
        hang(reader)
        thread.start()
        while not reader._lock.locked():
            pass
    thread.join(60)
    assert len(seen) == 1


def test_the_payload_does_not_wait_for_ever_for_a_thread_that_feeds(readers, monkeypatch):
    monkeypatch.setattr(trace_reader, "ANSWER_SECONDS", 0.2)

    def ask(reader: TraceReader) -> None:
        with reader._lock:
            reader.payload(**end())

    with pytest.raises(TraceReaderFailed, match="takes no more"):
        during(readers, ask)


def test_what_comes_after_the_end_of_a_run_does_not_reach_the_next_one(readers):
    """A pump that is late would hand bytes of the job to a process that waits for a message of the worker."""
    with readers.reading(0, MountPoints()) as reader:
        reader.payload(**end())
    with pytest.raises(TraceReaderFailed, match="has ended"):
        reader.feed(b"cos\nsystem\n(S'false'\ntR.")
    assert read(readers, trace())[1]


def test_a_trace_is_never_taken_for_a_message_of_the_worker(readers):
    process = trace_reader.ReaderProcess()
    process.send(b"T", b"cos\nsystem\n(S'false'\ntR.")
    assert process._process.wait(60) == 0
    process.close()


def test_the_process_ends_with_the_worker():
    script = (
        "import sys, time; from workers.report.trace_reader import TraceReaders; from workers.engines.contract import MountPoints\n"
        "reading = TraceReaders().reading(0, MountPoints()); reader = reading.__enter__()\n"
        "print(reader._process.pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as worker:
        handle = os.pidfd_open(int(worker.stdout.readline()))
        worker.kill()
    try:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        assert poll.poll(60_000)
    finally:
        os.close(handle)


def test_its_memory_is_limited_and_a_service_manager_s_signal_does_not_end_it(readers):
    with readers.reading(0, MountPoints()) as reader:
        reader.feed(trace())
        pid = reader._process.pid
        reader.payload(**end())  # it has begun to serve
        assert resource.prlimit(pid, resource.RLIMIT_DATA) == (trace_reader.MAX_DATA_BYTES,) * 2
        os.kill(pid, signal.SIGTERM)
    assert read(readers, trace())[0] == pid


def test_no_descriptor_and_no_process_is_left():
    before = descriptors(), children()
    with contextlib.closing(TraceReaders()) as readers:
        for slot in (0, 1, 0):
            read(readers, recorded("git"), slot)
        with contextlib.suppress(KeyError), readers.reading(2, MountPoints()):
            raise KeyError
    assert (descriptors(), children()) == before


def test_a_run_that_ends_after_the_worker_s_last_claim_keeps_no_process():
    readers = TraceReaders()
    with readers.reading(0, MountPoints()) as reader:
        readers.close()
        reader.payload(**end())
    assert is_gone(reader._process.pid)
