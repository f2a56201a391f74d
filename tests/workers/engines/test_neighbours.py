"""Two jobs at the same time in two slots of one worker: neither reaches the other, nor the worker through descriptors."""

import contextlib
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.workers.engines.conftest import Run
from tests.workers.engines.payloads import TRY, results
from workers.engines.contract import StopSignal
from workers.engines.sandbox import processes

pytestmark = pytest.mark.usefixtures("unchanged_machine")
SECRET = "the-neighbour-keeps-this"


@dataclass
class Neighbour:
    """A job that runs in slot 5 until the test is over: its workspace, and its processes' numbers outside."""

    place: str
    pids: list[int]


@contextlib.contextmanager
def neighbour(bench):
    """Start a job that holds open files, names sockets and shared memory, and waits."""
    script = f"""
        umask 0; echo {SECRET} > secret; echo {SECRET} > /tmp/secret; echo {SECRET} > ~/secret; chmod 777 . ~ /tmp
        (perl -e 'use IO::Socket::UNIX; IO::Socket::UNIX->new(Local => "socket", Listen => 1); IO::Socket::UNIX->new(
            Local => "\\0neighbour-{os.getpid()}", Listen => 1); shmget(4712, 4096, 01777); open my $f, "<", "secret";
            open my $s, ">", "started"; close $s; sleep 100' &)
        while [ ! -e started ]; do sleep 0.01; done; : > ready; sleep 100
        """
    spec = bench.spec("sh", "-c", script, slot=5, timeout_seconds=60.0)
    stop, result = StopSignal(), []
    thread = threading.Thread(
        target=lambda: result.append(bench.engine.run(spec, output=bytes, trace=bytes, stop=stop)), daemon=True
    )
    thread.start()
    deadline = time.monotonic() + 30
    while not (spec.workspace / "ready").exists():
        assert time.monotonic() < deadline, result
        assert thread.is_alive(), result
        time.sleep(0.01)
    uid = bench.engine.owner(5)
    try:
        yield Neighbour(str(spec.workspace), processes.of_uid(uid) if uid is not None else [])
    finally:
        stop.request(now=True)
        thread.join(30)
    assert result[0].kind == "stopped"


@pytest.mark.root
def test_a_neighbour_cannot_be_reached(bench):
    with neighbour(bench) as other:
        pids = " ".join(map(str, other.pids))
        assert pids
        run: Run = bench.perl(
            TRY
            + rf"""
            my $place = '{other.place}'; my $part = "\0" x 16; my $limit = pack 'Q Q', 0, 0;
            for my $name ('secret', '.', 'socket') {{ my ($path, $flags) = ("$place/$name", 0);
                try("read-$name" => sub {{ syscall 2, $path, $flags, 0 }}) }}
            for my $name ('home/secret', 'tmp/secret', 'trace/trace') {{ my ($path, $flags) = ("$place.private/$name", 1);
                try("write-$name" => sub {{ syscall 2, $path, $flags, 0 }}) }}
            try(make => sub {{ mkdir("$place/mine") ? 0 : -1 }});
            try(socket => sub {{ my $a = pack 'S a*', 1, "$place/socket\0"; syscall 42, syscall(41, 1, 1, 0), $a, length $a }});
            try(abstract => sub {{ my $a = pack 'S a*', 1, "\0neighbour-{os.getpid()}";
                syscall 42, syscall(41, 1, 1, 0), $a, length $a }});
            try(shared => sub {{ syscall 29, 4712, 4096, 0 }});
            for my $text (qw({pids})) {{
                my $pid = $text + 0;
                for my $name (qw(mem environ maps fd cwd/secret root/etc/hostname)) {{
                    my ($path, $flags) = ("/proc/$pid/$name", 0);
                    try("$pid-$name" => sub {{ syscall 2, $path, $flags, 0 }});
                }}
                calls("$pid-signal" => [62, $pid, 0], "$pid-limit" => [302, $pid, 0, $limit, 0], "$pid-readv" => [310, $pid, $part, 1, $part, 1, 0],
                    "$pid-nice" => [141, 0, $pid, 19], "$pid-affinity" => [203, $pid, 16, $part]);
            }}
            """,
            slot=4,
        )
        found = results(run)
        assert len(found) >= 10 + 11 * len(other.pids)
        allowed = {"EACCES", "EPERM", "ENOENT", "ESRCH", "ECONNREFUSED", "EROFS"}
        assert {name: value for name, value in found.items() if value not in allowed} == {}
        assert SECRET not in run.output


def test_descriptors_do_not_leave_through_a_socket(bench):
    """Every socket that leads out of a job takes bytes only: what is sent along with them is lost."""
    bench.sh("true")  # the slot's volume keeps descriptors from its first job on
    before = len(list(Path("/proc/self/fd").iterdir()))
    run = bench.perl(
        TRY
        + r"""
        sub send_with { my ($socket, $fd) = @_; my $data = 'x'; my $part = pack 'P Q', $data, 1;
            my $rights = pack 'Q l l l x4', 20, 1, 1, $fd;
            my $message = pack 'Q L x4 P Q P Q l x4', 0, 0, $part, 1, $rights, length $rights, 0;
            syscall 46, $socket, $message, 0x4000 }
        my $pair = "\0" x 8; syscall 53, 1, 1, 0, $pair;
        try(inside => sub { send_with((unpack 'l2', $pair)[0], 0) });
        my $address = pack 'S n C4 x8', 2, 53, 127, 0, 0, 1;
        for (1 .. 50) {
            my $out = syscall 41, 2, 2, 0; syscall 42, $out, $address, 16; send_with($out, 0); send_with($out, $out); syscall 3, $out;
            my $stream = syscall 41, 2, 1, 0; send_with($stream, 0); syscall 3, $stream;
        }
        """
    )
    assert results(run) == {"inside": "done"}
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


def test_what_waits_for_the_deadline_does_not_pass_it(bench):
    """Processes that ignore SIGTERM, left their session, stopped themselves, or wait in vfork write nothing after it."""
    run = bench.perl(
        r"""
        $SIG{$_} = 'IGNORE' for qw(TERM HUP INT);
        sub bomb { for (1 .. 10000) { select undef, undef, undef, 0.01; if (-e 'over') { open my $f, '>', "late-$_[0]" } } exit }
        if (!fork) { syscall 112; exit if fork; bomb('session') }
        if (!fork) { open my $f, '<&', *STDIN; close STDOUT; close STDERR; bomb('quiet') }
        my $stopped = fork; if (!$stopped) { kill 'STOP', $$; bomb('stopped') }
        if (!fork) { select undef, undef, undef, 0.2; kill 'CONT', $stopped; bomb('waker') }
        if (!fork) { syscall 58; exec '/bin/sh', '-c', 'trap "" TERM; while :; do [ -e over ] && : > late-vfork; sleep 0.01; done' }
        open my $s, '>', 'started'; close $s; bomb('main');
        """,
        timeout_seconds=5.0,
        grace_seconds=0.3,
    )
    assert run.kind == "timeout"
    assert (run.workspace / "started").exists()
    (run.workspace / "over").touch()
    uid = bench.engine.owner(0)
    if uid is not None:
        assert processes.of_uid(uid) == []
    assert list(run.workspace.glob("late-*")) == []


def test_a_program_in_memory_is_in_the_trace_or_refused(bench):
    script = TRY + r"""
        my ($name, $empty) = ('hidden', ''); my $fd = syscall 319, $name, 0;
        open my $in, '<', '/bin/true'; binmode $in; local $/; my $bytes = <$in>; open my $out, '>&=', $fd; binmode $out;
        syswrite $out, $bytes;
        my $words = pack 'p Q', $name, 0; my $child = fork;
        if (!$child) { syscall 322, $fd, $empty, $words, 0, 0x1000; exit 9 }
        waitpid $child, 0; print 'code ', $? >> 8, "\n";
        """  # fmt: skip
    run = bench.perl(script)
    assert results(run) == {"code": "0"}
    assert run.seen("memfd_create(", '"hidden"')
    assert run.seen("execveat(", "memfd:hidden", "= 0")
    run = bench.perl(script, allow_exec=False)
    assert results(run) == {"code": "9"}
    assert run.seen("execveat(", "memfd:hidden", "EPERM")
