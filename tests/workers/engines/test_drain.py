"""Pumps: everything is read, no more than the cap is handed on, and the trace holds the command's lines only."""

import os
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.engines.sandbox.pumps import PipePump, TracePump, trace_fifo
from workers.engines.tracing.strace import StraceReader, TracedCall

SETUP = b"""\
700   1795000000.000001 execve("/usr/bin/bwrap", ["bwrap"], 0x1 /* 0 vars */) = 0
700   1795000000.000002 clone(child_stack=NULL, flags=CLONE_NEWPID|SIGCHLD) = 701
701   1795000000.000003 openat(AT_FDCWD, "/proc/sys/kernel/overflowuid", O_RDONLY) = 3
701   1795000000.000004 clone(child_stack=NULL, flags=SIGCHLD) = 2
702   1795000000.000005 execve("/usr/bin/perl", ["perl"], 0x1 /* 0 vars */) = 0
702   1795000000.000006 openat(AT_FDCWD, "/proc/self/fd/6", O_RDONLY) = 3
"""
COMMAND = b"""\
702   1795000000.000007 execve("/usr/bin/sh", ["sh"], 0x1 /* 9 vars */) = 0
702   1795000000.000008 openat(AT_FDCWD, "/etc/passwd", O_RDONLY) = 3
7020  1795000000.000009 openat(AT_FDCWD, "/etc/group", O_RDONLY) = 3
"""
AFTER = b"""\
700   1795000000.000010 openat(AT_FDCWD, "/own", O_RDONLY) = 3
702   1795000000.000011 +++ exited with 3 +++
701   1795000000.000012 +++ exited with 3 +++
700   1795000000.000013 +++ exited with 3 +++
"""


class Source:
    def __init__(self, make):
        self.got = []
        reader, self.writer = os.pipe()
        self.pump = make(reader, self.got.append)
        self.pump.start()

    def send(self, *parts):
        for part in parts:
            os.write(self.writer, part)
        return self

    def end(self):
        os.close(self.writer)
        self.pump.join(60)
        assert not self.pump.is_alive()
        return b"".join(self.got)


def tracing(cap=1 << 20, own_execs=2):
    return Source(lambda reader, sink: TracePump(reader, sink, cap, own_execs=own_execs))


def test_output_is_cut_at_the_cap_and_counted_on():
    source = Source(lambda reader, sink: PipePump("output", reader, sink, 10))
    assert source.send(b"12345", b"67890", b"more").end() == b"1234567890"
    assert (source.pump.total, source.pump.truncated) == (14, True)


def test_exactly_the_cap_is_not_cut():
    source = Source(lambda reader, sink: PipePump("output", reader, sink, 10))
    assert source.send(b"1234567890").end() == b"1234567890"
    assert not source.pump.truncated


def test_a_sink_that_raised_is_left_alone_and_the_pipe_is_emptied():
    def sink(_):
        calls.append(1)
        raise RuntimeError("full")

    calls = []
    source = Source(lambda reader, _: PipePump("output", reader, sink, 1 << 30))
    source.send(*[b"x" * 60_000] * 10).end()
    assert len(calls) == 1
    assert isinstance(source.pump.error, RuntimeError)
    assert source.pump.total == 600_000


@pytest.mark.parametrize("size", [1, 7, 100, 5000])
def test_the_trace_begins_with_the_command_and_has_its_lines_only(size):
    data = SETUP + COMMAND + AFTER
    source = tracing()
    source.send(*(data[at : at + size] for at in range(0, len(data), size)))
    assert source.end() == COMMAND + b"702   1795000000.000011 +++ exited with 3 +++\n"
    assert (source.pump.exit_code, source.pump.killed_by, source.pump.has_ended) == (3, None, True)


@pytest.mark.parametrize(
    "line",
    [
        b'701   1795000000.000010 openat(AT_FDCWD, "/taken", O_RDONLY) = 3\n',
        b"701   1795000000.000010 --- SIGSTOP {si_signo=SIGSTOP} ---\n",
        b"701   1795000000.000010 +++ killed by SIGSYS +++\n",
        b'701   1795000000.000010 <... connect resumed>, {sa_family=AF_UNIX, sun_path="+++ exited with 0 +++"}, 9) = 0\n',
    ],
)
def test_what_pid_1_does_after_the_start_is_in_the_trace(line):
    source = tracing()
    source.send(SETUP, COMMAND, line, AFTER)
    assert line in source.end()


def test_a_death_by_signal_is_noticed():
    source = tracing()
    source.send(SETUP, COMMAND, b"702   1795000000.000011 +++ killed by SIGSEGV (core dumped) +++\n").end()
    assert (source.pump.exit_code, source.pump.killed_by) == (None, "SIGSEGV")


def test_the_end_of_another_process_is_not_the_command_s():
    source = tracing()
    source.send(SETUP, COMMAND, b"7020  1795000000.000011 +++ exited with 9 +++\n").end()
    assert not source.pump.has_ended


def test_the_trace_is_cut_at_a_line_and_its_end_is_noticed_all_the_same():
    source = tracing(cap=len(COMMAND) - 5)
    assert source.send(SETUP, COMMAND, AFTER).end() == b"".join(COMMAND.splitlines(keepends=True)[:2])
    assert source.pump.truncated
    assert source.pump.exit_code == 3
    assert source.pump.total > len(COMMAND)


def test_after_the_cut_nothing_follows():
    source = tracing(cap=150)
    long, short = b"702   1.0 open(" + b"x" * 100 + b")\n", b"702   1.0 open()\n"
    source.send(SETUP, COMMAND[:80], COMMAND[80:], long)
    assert source.send(short).end().count(b"\n") <= 2


def long_call(result: str, *, head: str = "") -> bytes:
    """A call with arguments of 2 MiB that hold what looks like the end of the command."""
    forged = '702   1795000000.000009 +++ exited with 0 +++", "'
    words = (forged * (2 << 20))[: 2 << 20]
    return f'702   1795000000.000010 execve("/x", ["{head}{words}"], 0x1 /* 9 vars */) = {result}\n'.encode()


@pytest.mark.parametrize("size", [1, 1_000, 4_096, 65_536, 1 << 20])
@pytest.mark.parametrize("place", range(0, 50, 7))
def test_a_line_that_is_too_long_loses_its_middle_and_forges_no_other(size, place):
    call = long_call("-1 E2BIG (Argument list too long)", head="x" * place)
    after = b'702   1795000000.000020 openat(AT_FDCWD, "/etc/shadow", O_RDONLY) = -1 EACCES (Permission denied)\n'
    got = []
    pump = TracePump(os.open("/dev/null", os.O_RDONLY), got.append, 1 << 30, own_execs=2)
    pump.take(SETUP + COMMAND)
    if size == 1:  # the bytes around the place at which the line is too long, one by one
        pump.take(call[: (1 << 20) - 100])
        for at in range((1 << 20) - 100, (1 << 20) + 100):
            pump.take(call[at : at + 1])
        pump.take(call[(1 << 20) + 100 :])
    else:
        for at in range(0, len(call), size):
            pump.take(call[at : at + size])
    os.close(pump.descriptor)
    assert not pump.has_ended
    pump.take(after + AFTER)
    lines = b"".join(got).splitlines()[len(COMMAND.splitlines()) :]
    assert [lines[0][:60], lines[0][-60:], lines[1] + b"\n"] == [call[:60], call[-61:-1], after]
    assert len(lines) == 3
    assert len(lines[0]) < (1 << 20) + 1024
    assert (pump.exit_code, pump.truncated) == (3, False)
    reader = StraceReader()
    execve = [event for event in reader.feed(b"".join(got)) if isinstance(event, TracedCall) and event.cut]
    assert [(call.name, call.arguments[0], call.errno) for call in execve] == [("execve", b'"/x"', "E2BIG")]
    assert reader.bad_lines == 0


def test_the_result_of_a_line_that_is_too_long_is_its_last_one():
    """A string in its middle, where the line is cut, may look like a result."""
    got = []
    pump = TracePump(os.open("/dev/null", os.O_RDONLY), got.append, 1 << 30, own_execs=2)
    begin, end = (
        b'702   1795000000.000010 execve("/x", ["',
        b'"], 0x1 /* 9 vars */) = -1 ENOENT (No such file or directory)\n',
    )
    forged = b"x" * ((1 << 20) - len(begin) - 5) + b") = 0"
    pump.take(SETUP + COMMAND)
    for part in (begin + forged, b"x" * 2_000, end):
        pump.take(part)
    os.close(pump.descriptor)
    [call] = [event for event in StraceReader().feed(b"".join(got)) if isinstance(event, TracedCall) and event.cut]
    assert (call.result, call.errno) == (-1, "ENOENT")


def test_a_line_without_end_takes_no_more_memory():
    source = tracing(cap=1 << 30)
    source.send(SETUP, COMMAND, *[b"x" * 60_000] * 40, b"\n702   1795000000.000020 +++ exited with 0 +++\n")
    assert len(source.end()) < len(COMMAND) + (1 << 20) + 1024
    assert not source.pump.truncated
    assert source.pump.exit_code == 0


@pytest.mark.parametrize(
    ("end", "found"),
    [
        (b"exited with 7 +++", (7, None)),
        (b"killed by SIGSEGV (core dumped) +++", (None, "SIGSEGV")),
        (b"killed by SIGRT_3 +++", (None, "SIGRT_3")),
        (b"exited with 7 +++ = 0", (None, None)),
        (b"exited with 7", (None, None)),
        (b"killed by SIGKILL (core dumped", (None, None)),
    ],
)
def test_only_a_whole_line_is_the_end_of_the_command(end, found):
    source = tracing()
    source.send(SETUP, COMMAND, b"702   1795000000.000020 +++ " + end + b"\n").end()
    assert (source.pump.exit_code, source.pump.killed_by) == found


def test_a_tracer_that_died_within_a_line_has_truncated():
    source = tracing()
    source.send(SETUP, COMMAND, b"702   1795000000.0000").end()
    assert source.pump.truncated


def answered(at, call="mount", result="-1 EPERM (Operation not permitted)"):
    return f'702   1795000000.{at:06d} {call}("x") = {result}'.encode()


def test_answered_calls_come_in_the_order_of_their_times():
    got = []
    pump = TracePump(os.open("/dev/null", os.O_RDONLY), got.append, 1 << 20, own_execs=2)
    pump.take(SETUP + COMMAND[: COMMAND.index(b"7020")])
    pump.answered(answered(9))
    pump.answered(answered(11))
    pump.take(b"".join(f"702   1795000000.{at:06d} openat() = 3\n".encode() for at in (8, 10, 12)))
    times = [line.split()[1][-2:] for line in b"".join(got).splitlines()[2:]]
    assert times == [b"08", b"09", b"10", b"11", b"12"]


def test_answered_calls_do_not_wait_for_a_tracer_that_is_silent():
    source = tracing()
    source.send(SETUP, COMMAND)
    wait_for(lambda: source.pump.command)
    source.pump.answered(answered(50))
    wait_for(lambda: any(b"mount" in part for part in source.got))
    source.end()


def test_an_attempt_that_both_saw_is_written_down_once():
    source = tracing()
    source.send(SETUP, COMMAND)
    wait_for(lambda: source.pump.command)
    seen = (
        '702   1795000000.000040 execve("/bin/true", ["true"], 0x1 /* 2 vars */) = -1 EPERM (Operation not permitted)\n'
    )
    source.pump.answered(answered(41, call="execve"))
    source.send(seen.encode(), answered(60, call="mount") + b"\n")
    lines = source.end().splitlines()[3:]
    assert [line.split()[2][:5] for line in lines] == [b"execv", b"mount"]
    source = tracing()
    source.send(SETUP, COMMAND, seen.encode())
    assert source.end().count(b"execve") == 2, "one that only strace saw stays"


class LineByLine(TracePump):
    """Looks at each line, whatever the chunk holds."""

    def _is_plain(self, data: bytes) -> bool:
        return False


LINES = st.sampled_from(
    [
        b'702   1795000000.000020 openat(AT_FDCWD, "/x", O_RDONLY) = 3\n', b"7020  1795000000.000021 +++ exited with 4 +++\n",
        b'700   1795000000.000022 openat(AT_FDCWD, "/own", O_RDONLY) = 3\n', b"701   1795000000.000023 +++ exited with 3 +++\n",
        b'701   1795000000.000024 openat(AT_FDCWD, "/init", O_RDONLY) = 3\n', b"702   1795000000.000025 +++ exited with 5 +++\n",
        b"702   1795000000.000026 +++ killed by SIGSEGV +++\n", b"702   1795000000.000027 +++ exited with 5\n", b"\n",
        b'702   1795000000.000028 openat(AT_FDCWD, "702   1795000000.000025 +++ exited with 9 +++", O_RDONLY) = 3\n',
        answered(41, call="execve") + b"\n", answered(60) + b"\n",
    ]
)  # fmt: skip


@given(
    st.lists(LINES | st.sampled_from([answered(41, call="execve"), answered(30), b"pause"]), max_size=30),
    st.integers(1, 300),
    st.sampled_from([1 << 20, 900]),
)
def test_chunks_without_special_lines_are_passed_on_as_their_lines_would_be(parts, size, cap):
    """Parts with a newline come from strace, the others are answered by the worker, or are a pause."""
    seen = []
    for kind in (TracePump, LineByLine):
        got, chunk = [], SETUP + COMMAND
        pump = kind(os.open("/dev/null", os.O_RDONLY), got.append, cap, own_execs=2)
        for part in parts:
            if part.endswith(b"\n"):
                chunk += part
            else:
                pump.take(chunk)
                chunk = b""
                pump.idle() if part == b"pause" else pump.answered(part)
            while len(chunk) > size:
                pump.take(chunk[:size])
                chunk = chunk[size:]
        pump.take(chunk)
        os.close(pump.descriptor)
        seen.append((b"".join(got), pump.total, pump.truncated, pump.exit_code, pump.killed_by))
    assert seen[0] == seen[1]


def test_a_chunk_of_plain_lines_is_not_split(monkeypatch):
    got = []
    pump = TracePump(os.open("/dev/null", os.O_RDONLY), got.append, 1 << 20, own_execs=2)
    pump.take(SETUP + COMMAND)
    monkeypatch.setattr(pump, "_is_own", None)
    pump.take(COMMAND * 2)
    os.close(pump.descriptor)
    assert got == [COMMAND, COMMAND * 2]


def wait_for(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_the_fifo_is_read_to_the_end_and_held_until_then(tmp_path):
    path, reader, hold = trace_fifo(tmp_path, None)
    assert path.stat().st_mode & 0o777 == 0o600
    got = []
    pump = PipePump("trace", reader, got.append, 100)
    pump.start()
    for _ in range(2):  # a tracer comes and goes; the pump does not take that for the end
        with path.open("wb") as tracer:
            tracer.write(b"line\n")
    assert pump.is_alive()
    os.close(hold)
    pump.join(5)
    assert b"".join(got) == b"line\nline\n"
    assert threading.active_count() >= 1


def test_a_line_in_no_form_at_all_stops_nothing():
    source = tracing()
    source.send(SETUP, COMMAND)
    wait_for(lambda: source.pump.command)
    source.pump.answered(answered(41))
    source.send(b"\n \nx\nnot a line of strace\n702   1795000000.000050 +++ exited with 0 +++\n")
    source.end()
    assert source.pump.error is None
    assert source.pump.exit_code == 0
