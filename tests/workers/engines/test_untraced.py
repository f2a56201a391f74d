"""Runs with less than a full trace: what is recorded, and that the end of the command is known as exactly."""

import pytest

from workers.engines.contract import StopSignal, TraceLevel
from workers.engines.sandbox import processes

OPENS_AND_CONNECTS = """
open my $file, '<', '/etc/passwd';
use Socket;
socket my $socket, AF_INET, SOCK_STREAM, 0;
connect $socket, pack_sockaddr_in(9, inet_aton('127.0.0.1'));
chdir '/tmp';
system '/bin/true';
"""


@pytest.mark.parametrize("level", TraceLevel)
@pytest.mark.parametrize(
    ("script", "end"),
    [
        ("exit 0", ("exited", 0, None)),
        ("exit 3", ("exited", 3, None)),
        ("exit 137", ("exited", 137, None)),  # as a shell reports a SIGKILL
        ("kill -KILL $$", ("signaled", None, "SIGKILL")),
        ("kill -SEGV $$", ("signaled", None, "SIGSEGV")),
        ("sh -c 'kill -KILL $$'; exit 137", ("exited", 137, None)),
        ("sleep 30 & exit 5", ("exited", 5, None)),
    ],
)
def test_the_end_of_the_command_is_exact(bench, level, script, end):
    result = bench.sh(script, trace=level).result
    assert (result.kind, result.exit_code, result.signal) == end


@pytest.mark.parametrize("level", TraceLevel)
def test_a_command_that_does_not_exist_is_not_found(bench, level):
    assert bench.run("no-such-program", trace=level).kind == "not_found"


def test_the_network_level_has_processes_and_network_and_no_files(bench):
    run = bench.perl(OPENS_AND_CONNECTS, trace=TraceLevel.NETWORK)
    assert run.seen("connect(", "htons(9)")
    assert run.seen("execve(", "/bin/true")
    assert run.seen("chdir(", "/tmp"), "the report resolves the names of programs by it"
    assert run.seen("+++ exited with 0 +++")
    assert not run.seen("openat(")


def test_nothing_runs_that_traces_and_the_result_says_so(bench):
    traced, names, seen = bench.run("true"), [], []

    def look(_: bytes) -> None:
        uid = bench.engine.owner(0)
        if uid is not None:
            names.extend((processes.PROC / str(pid) / "comm").read_text().strip() for pid in processes.of_uid(uid))

    spec = bench.spec("sh", "-c", "echo x; sleep 0.3", trace=TraceLevel.NONE)
    result = bench.engine.run(spec, output=look, trace=seen.append, stop=StopSignal())
    assert result.kind == "exited"
    assert seen == [b""], "the start of the command"
    assert result.trace_bytes == 0
    assert "strace" not in names
    assert "tracer_outside" in traced.result.enforced_layers
    assert set(traced.result.enforced_layers) - set(result.enforced_layers) == {"tracer_outside"}
    assert "strace" in traced.result.tool_version
    assert "strace" not in result.tool_version


def test_a_refused_call_is_still_refused(bench):
    script = "print syscall(165, my $n = 'none', my $d = '/tmp', my $t = 'tmpfs', 0, 0), ' ', $! + 0"
    run = bench.perl(script, trace=TraceLevel.NONE)
    assert (run.output, run.trace) == ("-1 1", "")


@pytest.mark.parametrize("level", TraceLevel)
def test_a_stop_reaches_the_command_before_it_is_killed(bench, level):
    """Without a tracer the first process of `restricted` is the command, and no part of the sandbox."""
    stop = StopSignal()
    output = bytearray()

    def take(data: bytes) -> None:
        output.extend(data)
        stop.request()

    spec = bench.spec("sh", "-c", "trap 'echo term; exit 9' TERM; echo on; while :; do sleep 0.05; done", trace=level,
                      grace_seconds=20.0)  # fmt: skip
    result = bench.engine.run(spec, output=take, trace=len, stop=stop)
    assert (result.kind, result.exit_code) == ("stopped", 9)
    assert b"term\n" in output
