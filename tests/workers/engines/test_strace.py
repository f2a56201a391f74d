"""The reader of traces: what strace really writes, what it never would, cut anywhere."""

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.workers.traced import RECORDED, line, recorded
from workers.engines.tracing import strace
from workers.engines.tracing.strace import Entered, Exited, Killed, StraceReader, Superseded, TracedCall
from workers.engines.tracing.values import Descriptor


def read(data: bytes) -> list[strace.Event]:
    reader = StraceReader()
    return [*reader.feed(data), *reader.finish()]


def calls(data: bytes) -> list[TracedCall]:
    return [event for event in read(data) if isinstance(event, TracedCall)]


def test_a_call_has_its_time_pid_name_arguments_and_result():
    [call] = read(b'42 1795225381.155703 openat(AT_FDCWD</job>, "x", O_RDONLY|O_CLOEXEC) = 3</job/x>\n')
    assert call == TracedCall(
        1795225381.155703,
        42,
        "openat",
        (b"AT_FDCWD</job>", b'"x"', b"O_RDONLY|O_CLOEXEC"),
        3,
        None,
        Descriptor(3, b"/job/x"),
    )
    assert call.ok


def test_a_failed_call_has_its_errno():
    [call] = read(line('open("/nope", O_RDONLY) = -1 ENOENT (No such file or directory)'))
    assert (call.result, call.errno, call.ok) == (-1, "ENOENT", False)


def test_a_call_that_never_returned_has_no_result():
    [call] = read(line("exit_group(0)   = ?"))
    assert call.result is None
    assert not call.ok


def test_halves_of_a_call_are_joined_across_other_threads():
    data = (
        line('rmdir("d" <unfinished ...>', pid=1)
        + line("getpid() = 2", pid=2)
        + line("<... rmdir resumed>) = 0", pid=1)
    )
    entered, other, joined = read(data)
    assert entered == Entered(entered.time, 1, "rmdir", b'"d"')
    assert (joined.name, joined.arguments, joined.result) == ("rmdir", (b'"d"',), 0)
    assert other.pid == 2


def test_a_call_cut_off_by_death_is_reported_before_the_death():
    data = line('unlink("/x" <unfinished ...>', pid=7) + line("+++ killed by SIGKILL +++", pid=7)
    _, call, death = read(data)
    assert (call.name, call.arguments, call.result) == ("unlink", (b'"/x"',), None)
    assert death == Killed(death.time, 7, "SIGKILL")


def test_a_call_cut_off_by_the_end_of_the_trace_is_reported():
    assert [call.arguments for call in calls(line('unlink("/x" <unfinished ...>'))] == [(b'"/x"',)]


def test_deaths_and_exits():
    data = (
        line("+++ exited with 3 +++")
        + line("+++ killed by SIGSEGV (core dumped) +++")
        + line("+++ killed by SIGRT_3 +++")
    )
    first, second, third = read(data)
    assert (first.code, second.signal, third.signal) == (3, "SIGSEGV", "SIGRT_3")


def test_a_thread_that_executes_becomes_its_process():
    """As strace 6.1 writes it, with its nonsense as the result."""
    data = (
        line('execve("/bin/echo", ["echo"], 0x1 /* 3 vars */ <pid changed to 12 ...>', pid=13)
        + line("+++ superseded by execve in pid 13 +++", pid=12)
        + line("<... execve resumed>) = -1 (errno 18446744073709551359)", pid=12)
    )
    _, superseded, call = read(data)
    assert superseded == Superseded(superseded.time, 12, 13)
    assert (call.pid, call.name, call.ok) == (12, "execve", True)


def test_signals_are_understood_and_say_nothing():
    reader = StraceReader()
    assert list(reader.feed(line("--- SIGTERM {si_signo=SIGTERM, si_code=SI_USER, si_pid=1, si_uid=0} ---"))) == []
    assert reader.bad_lines == 0


@pytest.mark.parametrize(
    "forged",
    [
        'openat(AT_FDCWD</job>, "a>, \\"fake\\", O_RDWR) = 3\\n1 1.0 unlink(\\"x\\") = 0", O_RDWR) = 3</job/a\\76, \\"fake\\", O_RDWR) = 3>',
        'openat(5</job/q\\76, x) = 0>, "y", O_RDONLY) = -1 ENOENT (No such file or directory)',
        'unlink("\\" <unfinished ...>") = 0',
        'unlink("+++ exited with 0 +++") = 0',
    ],
)
def test_names_cannot_forge_lines_or_results(forged):
    [call] = read(line(forged))
    assert call.name in {"openat", "unlink"}
    assert (call.result, call.errno) in {(3, None), (-1, "ENOENT"), (0, None)}


@pytest.mark.parametrize("name", [path.stem for path in RECORDED.glob("*.strace")])
def test_recorded_traces_have_no_line_that_is_not_understood(name):
    reader = StraceReader()
    events = [*reader.feed(recorded(name)), *reader.finish()]
    assert reader.lines > 50
    assert reader.bad_lines == 0
    assert any(isinstance(event, Exited) for event in events)


@pytest.mark.parametrize(
    "bad",
    [b"", b"nonsense", b"1 2 3", b"12 1.5 ", b"12 1.5 f(", b"12 1.5 f(1) = ", b"12 1.5 f(1)", b"12 1.5 <... f resumed>) = 0",
     b"12 1.5 +++ exited with x +++", b"12 1.5 --- what ---", b"12 1e400 f() = 0", b"99999999999999 1.5 f() = 0",
     b'12 1.5 f("a) = 0', b"12 1.5 F(1) = 0", b"\xff\xfe\x00", b"12 1.5 f(1) = 99999999999999999999999"],
)  # fmt: skip
def test_what_is_not_understood_is_counted(bad):
    reader = StraceReader()
    assert list(reader.feed(bad + b"\n")) == []
    assert (reader.lines, reader.bad_lines) == (1, 1)


PIECES = st.sampled_from(
    [b"1 1795225381.1 ", b"2 1795225381.2 ", b'open("', b'"', b"\\", b"\n", b", ", b") = 0", b" <unfinished ...>", b"<... open resumed>",
     b"+++ killed by SIGKILL +++", b"+++ superseded by execve in pid 2 +++", b"{sa_family=", b"[", b"]", b"}", b"3</a", b">", b"(deleted)", b"...",
     b" = -1 EPERM (Operation not permitted)", b"execve("]
)  # fmt: skip
HOSTILE = st.lists(PIECES | st.binary(max_size=8), max_size=60).map(b"".join)


@given(HOSTILE)
def test_no_bytes_raise(data):
    reader = StraceReader()
    for event in [*reader.feed(data), *reader.finish()]:
        assert event.pid >= 0
    assert reader.bad_lines <= reader.lines + 1


@settings(max_examples=50)
@given(HOSTILE, st.lists(st.integers(0, 400), max_size=8))
def test_where_the_bytes_are_split_does_not_matter(data, cuts):
    whole, parts = StraceReader(), StraceReader()
    expected = [*whole.feed(data), *whole.finish()]
    found, at = [], 0
    for cut in sorted(cuts):
        found += parts.feed(data[at:cut])
        at = max(at, cut)
    found += [*parts.feed(data[at:]), *parts.finish()]
    assert found == expected
    assert (parts.lines, parts.bad_lines) == (whole.lines, whole.bad_lines)


def test_a_line_too_long_keeps_its_beginning_and_its_result():
    words = ", ".join(f'"{"a" * 1000}"' for _ in range(500))
    [call] = read(line(f'execve("/tmp/evil", ["evil", {words}], 0x1 /* 3 vars */) = -1 E2BIG (Argument list too long)'))
    assert call.cut
    assert call.arguments[0] == b'"/tmp/evil"'
    assert (call.result, call.errno) == (-1, "E2BIG")


def test_the_result_of_a_line_too_long_cannot_be_forged_by_its_last_string():
    [call] = read(line(f'open("{"a" * 70_000}", 0) = 3</x\\) = -1 ENOENT (No such file)>'))
    assert call.cut
    assert call.result is None


def test_memory_is_bounded_for_a_line_without_end():
    reader = StraceReader()
    tracemalloc.start()
    try:
        for _ in range(400):
            assert not list(reader.feed(b"a" * 65_536))
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
    finally:
        tracemalloc.stop()


def test_memory_is_bounded_for_calls_that_never_end():
    reader = StraceReader()
    for pid in range(5_000):
        list(reader.feed(line("read(3, <unfinished ...>", pid=pid)))
    assert len(list(reader.finish())) <= 1024
    assert reader.bad_lines == 5_000 - 1024
