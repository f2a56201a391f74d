"""When any process of a job is killed, all others end within a second, however they tried to stay."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.workers.engines.conftest import FIRST_UID, Bench
from workers.engines import engine_named
from workers.engines.contract import EngineUnavailable, StopSignal, TraceLevel
from workers.engines.limits.cgroups import FAMILY, ControlGroup
from workers.engines.sandbox import processes

# A child, a daemon in a session of its own, a grandchild of a parent that has left, one that is stopped, and all of
# them deaf to what can be ignored and holding the job's output. It is settled when four of them run, the one that
# leaves has left, and the one that stops is stopped (2: WUNTRACED; strace hides that state from /proc).
STAY = r"""
$SIG{$_} = 'IGNORE' for qw(TERM HUP INT QUIT PIPE);
pipe my $reader, my $writer;
sub stay { syswrite $writer, '.'; sleep 1 while 1 }
fork or stay();
fork or do { syscall 112; fork or stay(); syscall 112; stay() };
my $left = fork || do { fork or stay(); exit };
my $stopped = fork || do { kill 'STOP', $$; stay() };
sysread $reader, my $byte, 1 for 1 .. 4;
waitpid $left, 0; waitpid $stopped, 2;
$| = 1; print "settled\n"; stay();
"""
LEAST = 6  # processes that the payload alone has


def alive(known):
    return [
        process
        for process in known
        if (now := processes.read(process.pid)) and now.born == process.born and now.state not in "ZX"
    ]


def all_dead(known, within=30.0):
    """The contract promises one second, for a machine that is not overloaded by others; nothing else ends them so soon."""
    end = time.monotonic() + within
    while time.monotonic() < end:
        if not alive(known):
            return True
        time.sleep(0.01)
    return not alive(known)


def names(known):
    return sorted(Path(f"/proc/{process.pid}/comm").read_text().strip() for process in alive(known))


def wait_for(pipe, word, seconds=20):
    text = b""
    end = time.monotonic() + seconds
    while word not in text:
        assert time.monotonic() < end, text
        if select.select([pipe], [], [], 0.1)[0]:
            text += os.read(pipe.fileno(), 4096)


@pytest.fixture(params=[TraceLevel.FULL, TraceLevel.NONE])
def lone_worker(request, bench):
    """Start a worker process with a job that has started all its processes; yield it and these."""
    place = bench.place()
    root = Path(__file__).parents[3]
    command = [
        sys.executable,
        "-m",
        "tests.workers.engines.lone_worker",
        bench.engine.name,
        str(FIRST_UID),
        str(place),
        request.param,
    ]
    worker = subprocess.Popen(
        [*command, "/usr/bin/perl", "-e", STAY], cwd=root, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL
    )
    with worker:
        try:
            wait_for(worker.stdout, b"settled")
            known = processes.descendants(worker.pid)
            assert len(known) > LEAST
            yield worker, known
        finally:
            worker.kill()
    bench.engine.clean([0])


def test_nobody_survives_the_worker_by_a_second(lone_worker):
    worker, known = lone_worker
    worker.kill()
    worker.wait()
    assert all_dead(known), names(known)


@pytest.mark.root
def test_nothing_runs_under_the_slot_s_uid_after_the_worker_s_death(lone_worker):
    worker, known = lone_worker
    worker.kill()
    worker.wait()
    assert all_dead(known)
    assert processes.of_uid(FIRST_UID) == []


@pytest.mark.root
@pytest.mark.parametrize("is_empty", [True, False])
def test_the_machine_s_processes_are_read_unless_the_kernel_says_that_the_group_is_empty(bench, monkeypatch, is_empty):
    read = []
    kill_uid = processes.kill_uid
    monkeypatch.setattr(processes, "kill_uid", lambda uid: read.append(uid) or kill_uid(uid))
    if not is_empty:
        monkeypatch.setattr(ControlGroup, "is_empty", lambda _: False)
    assert bench.run("true").kind == "exited"
    assert read == ([] if is_empty else [bench.engine.owner(0)])


@pytest.mark.root
def test_cleaning_removes_what_a_killed_worker_left(lone_worker, bench):
    worker, known = lone_worker
    parents = {parent / FAMILY for parent in bench.engine.hierarchy.parents.values()}
    assert all(len(list(parent.glob(f"uid-{FIRST_UID}-*"))) == 1 for parent in parents)
    worker.kill()
    worker.wait()
    assert all_dead(known), names(known)
    bench.engine.clean([0])
    assert [path for parent in parents for path in parent.glob(f"uid-{FIRST_UID}-*")] == []
    assert processes.of_uid(FIRST_UID) == []


@pytest.mark.root
def test_cleaning_ends_processes_of_the_slot_and_no_others(bench):
    other = subprocess.Popen(["setpriv", f"--reuid={FIRST_UID + 11}", "--clear-groups", "sleep", "60"])
    left = subprocess.Popen(["setpriv", f"--reuid={FIRST_UID + 10}", "--clear-groups", "sleep", "60"])
    with other, left:
        while not processes.of_uid(FIRST_UID + 10):
            time.sleep(0.01)
        bench.engine.clean([10])
        assert left.wait(5) == -signal.SIGKILL
        assert other.poll() is None
        other.kill()


@pytest.mark.root
def test_the_slot_of_another_worker_is_neither_taken_nor_cleaned(lone_worker, bench, base):
    _, known = lone_worker
    # The job's directory is in a volume of `bench`: cleaning closes its own volumes, and would end the job by that.
    other = Bench(engine_named(bench.engine.name, first_uid=FIRST_UID, use_volumes=False), base)
    with pytest.raises(EngineUnavailable, match="another worker"):
        other.sh("true")
    other.engine.clean([0])
    assert len(alive(known)) == len(known)


def test_a_stopped_worker_that_is_killed_takes_all_with_it(lone_worker):
    worker, known = lone_worker
    worker.send_signal(signal.SIGSTOP)
    worker.kill()
    worker.wait()
    assert all_dead(known), names(known)


def start(bench, stop, trace=TraceLevel.FULL):
    """Run the payload in a thread. Returns the thread, its result to come, and the reaper with all below it.

    Other processes below us come and go: the supervisor of PostgreSQL may be a child of ours.
    """
    spec = bench.spec("/usr/bin/perl", "-e", STAY, timeout_seconds=60, trace=trace)
    settled, ends = threading.Event(), []

    def run():
        ends.append(bench.engine.run(spec, output=lambda _: settled.set(), trace=bytes, stop=stop))

    before = {process.pid for process in processes.descendants(os.getpid())}
    thread = threading.Thread(target=run)
    thread.start()
    assert settled.wait(20)
    ours = [process for process in processes.descendants(os.getpid()) if process.pid not in before]
    (reaper,) = (process for process in ours if process.parent == os.getpid())
    return thread, ends, [reaper, *processes.descendants(reaper.pid)]


def named(known, *words):
    """The first of these processes, from the top, whose program this is."""
    for process in known:
        command = Path(f"/proc/{process.pid}/cmdline").read_text().split("\0")
        if Path(command[0]).name in words:
            return process
    raise AssertionError(words)


VICTIMS = {
    "tracer": lambda known: named(known, "strace"),
    "outer_bwrap": lambda known: named(known, "bwrap"),
    "first_inside": lambda known: next(p for p in known if p.parent == named(known, "bwrap").pid),
    "reaper": lambda known: known[0],
}
TABLE = [
    ("bubblewrap", "reaper", "full"), ("bubblewrap", "reaper", "none"), ("bubblewrap", "tracer", "full"),
    ("bubblewrap", "outer_bwrap", "full"), ("bubblewrap", "outer_bwrap", "none"),
    ("bubblewrap", "first_inside", "full"), ("bubblewrap", "first_inside", "none"), ("restricted", "tracer", "full"),
    # For others than root no process is left that knows them all.
    pytest.param("restricted", "reaper", "full", marks=pytest.mark.root),
    pytest.param("restricted", "reaper", "none", marks=pytest.mark.root),
]  # fmt: skip


@pytest.mark.parametrize(("name", "victim", "trace"), TABLE)
def test_nobody_survives_the_death_of_a_part_of_the_sandbox(engines, base, name, victim, trace):
    with contextlib.closing(Bench(engines[name], base)) as bench:
        thread, ends, known = start(bench, StopSignal(), TraceLevel(trace))
        processes.send(VICTIMS[victim](known), signal.SIGKILL)
        thread.join(10)
        assert not thread.is_alive()
        assert all_dead(known), names(known)
        assert [(result.kind, result.signal) for result in ends] == [("signaled", "SIGKILL")]


def test_run_returns_when_nobody_lives(bench):
    stop = StopSignal()
    thread, ends, known = start(bench, stop)
    stop.request()
    thread.join(15)
    assert alive(known) == []
    assert [result.kind for result in ends] == ["stopped"]


def test_a_storm_of_signals_does_not_keep_it_alive(bench):
    script = """
    $SIG{$_} = 'IGNORE' for qw(TERM USR1 USR2);
    for (1 .. 4) { fork or do { while (1) { kill $_, getppid for 10, 12, 17, 18, 28 } } }
    sleep 1 while 1;
    """
    started = time.monotonic()
    assert bench.perl(script, timeout_seconds=0.7).kind == "timeout"
    assert time.monotonic() - started < 18


@pytest.mark.parametrize("trace", ["full", "none"])
def test_a_worker_that_died_while_it_started_a_sandbox_leaves_none(bench, trace):
    """Killed at random times: among the programs, in bwrap, in the launcher."""
    for hundredths in (0, 1, 3, 6):
        place = bench.place()
        root = Path(__file__).parents[3]
        arguments = [bench.engine.name, str(FIRST_UID), str(place), trace, "sleep", "47"]
        worker = subprocess.Popen(
            [sys.executable, "-m", "tests.workers.engines.lone_worker", *arguments], cwd=root, stdin=subprocess.DEVNULL
        )
        with worker:
            while not (known := processes.descendants(worker.pid)):
                assert worker.poll() is None
            time.sleep(hundredths / 100)
            known = processes.descendants(worker.pid) or known
            worker.kill()
        assert all_dead(known), names(known)
        end = time.monotonic() + 5
        while sleepers := [p for p in processes.all_processes() if _is_ours(p)]:
            assert time.monotonic() < end, sleepers
            time.sleep(0.02)
    bench.engine.clean([0])


def _is_ours(process):
    try:
        return Path(f"/proc/{process.pid}/cmdline").read_text() == "sleep\x0047\x00"
    except OSError:
        return False
