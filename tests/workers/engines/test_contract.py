"""Runs one scenario on every engine: what `contract.py` promises, in commands that each engine understands."""

import contextlib
import threading
import time

import pytest

from tests.workers.engines.conftest import Bench
from tests.workers.engines.image_bench import BenchInImage
from workers.engines import ENGINES, engine_named
from workers.engines.contract import EngineUnavailable, Isolation, StopSignal
from workers.engines.null import FLAG

WORDS = {
    "say": ("echo hello", "print=hello"),
    "fail": ("exit 3", "exit=3"),
    "wait": ("sleep 30", "sleep=30"),
    "say_and_wait": ("echo on; sleep 30", "print=on sleep=30"),
    "wait_for_good": ("trap '' TERM; while :; do sleep 1; done", "ignore-term sleep=30"),
    "die": ("kill -SEGV $$", "signal=SIGSEGV"),
    "shout": ("head -c 3000000 /dev/zero | tr '\\0' x", "print=" + "x" * 3_000_000),
}


@pytest.fixture(params=ENGINES)
def bench_and_command(request, monkeypatch, base):
    """The bench of an engine, and its commands."""
    monkeypatch.setenv(FLAG, "1")
    if request.param != "null":
        kind = BenchInImage if request.param == "oci" else Bench
        with contextlib.closing(kind(request.getfixturevalue("engines")[request.param], base)) as bench:
            yield bench, lambda word: ("sh", "-c", WORDS[word][0])
    else:
        bench = Bench(engine_named("null"), base)
        yield bench, lambda word: ("null", *WORDS[word][1].split())


def test_an_engine_says_what_it_is(bench_and_command, checked_engines):
    bench, _ = bench_and_command
    engine = bench.engine
    assert engine.name in ENGINES
    assert isinstance(engine.isolation, Isolation)
    found = engine.check() if engine.name == "null" else checked_engines[engine.name][1]
    assert found.missing == ()
    assert "linux" in found.offered


def test_output_and_exit_code_come_back(bench_and_command):
    bench, word = bench_and_command
    run = bench.run(*word("say"))
    assert (run.kind, run.result.exit_code, run.output) == ("exited", 0, "hello\n")
    assert run.result.output_bytes == 6
    assert 0 < run.result.started_at <= run.result.finished_at


def test_a_failure_is_an_end_and_not_an_error(bench_and_command):
    bench, word = bench_and_command
    run = bench.run(*word("fail"))
    assert (run.kind, run.result.exit_code, run.result.signal) == ("exited", 3, None)


def test_death_by_a_signal_is_distinguished_from_an_exit(bench_and_command):
    bench, word = bench_and_command
    run = bench.run(*word("die"))
    assert (run.kind, run.result.exit_code, run.result.signal) == ("signaled", None, "SIGSEGV")


def test_the_deadline_ends_it(bench_and_command):
    bench, word = bench_and_command
    started = time.monotonic()
    # Until the deadline the command must have begun, also on a busy machine.
    run = bench.run(*word("wait"), timeout_seconds=5.0, grace_seconds=20.0)
    assert (run.kind, run.result.signal) == ("timeout", "SIGTERM")
    assert 5.0 <= time.monotonic() - started < 18


def test_the_deadline_ends_also_what_ignores_sigterm(bench_and_command):
    bench, word = bench_and_command
    started = time.monotonic()
    # Until the deadline it must have begun to ignore the signal, also on a busy machine.
    run = bench.run(*word("wait_for_good"), timeout_seconds=5.0, grace_seconds=0.4)
    assert (run.kind, run.result.signal) == ("timeout", "SIGKILL")
    assert 5.4 <= time.monotonic() - started < 18


def test_stop_ends_it_from_another_thread(bench_and_command):
    bench, word = bench_and_command
    stop = StopSignal()
    # The null engine has no trace, and starts its command at once.
    later = threading.Timer(0.4, stop.request)
    if bench.engine.name == "null":
        later.start()
    run = bench.run(*word("wait"), stop=stop, on_start=later.start, grace_seconds=20.0)
    assert (run.kind, run.result.signal) == ("stopped", "SIGTERM")


def test_stop_now_spares_the_grace(bench_and_command):
    bench, word = bench_and_command
    stop = StopSignal()
    later = threading.Timer(0.5, lambda: stop.request(now=True))
    if bench.engine.name == "null":
        later.start()
    started = time.monotonic()
    run = bench.run(*word("wait_for_good"), stop=stop, on_start=later.start, grace_seconds=20.0)
    assert (run.kind, run.result.signal) == ("stopped", "SIGKILL")
    assert time.monotonic() - started < 18


def test_a_second_thought_cuts_the_grace_short(bench_and_command):
    bench, word = bench_and_command
    stop = StopSignal()
    threading.Timer(0.3, stop.request).start()
    threading.Timer(0.8, lambda: stop.request(now=True)).start()
    started = time.monotonic()
    assert bench.run(*word("wait_for_good"), stop=stop, grace_seconds=20.0).kind == "stopped"
    assert time.monotonic() - started < 18


def test_stop_asked_before_the_start_counts(bench_and_command):
    bench, word = bench_and_command
    stop = StopSignal()
    stop.request()
    assert bench.run(*word("say"), stop=stop).kind == "stopped"


def test_all_output_comes_and_is_counted(bench_and_command):
    bench, word = bench_and_command
    run = bench.run(*word("shout"))
    assert run.kind == "exited"
    assert len(run.output) == run.result.output_bytes >= 3_000_000


def test_a_slot_holds_one_job(bench_and_command):
    bench, word = bench_and_command
    stop, started, ends = StopSignal(), threading.Event(), []
    held, refused = bench.spec(*word("say_and_wait"), slot=2), bench.spec(*word("say"), slot=2)

    def hold():
        ends.append(bench.engine.run(held, output=lambda _: started.set(), trace=bytes, stop=stop))

    first = threading.Thread(target=hold)
    first.start()
    assert started.wait(10)
    with pytest.raises(EngineUnavailable, match="2"):
        bench.engine.run(refused, output=bytes, trace=bytes, stop=StopSignal())
    assert bench.run(*word("say"), slot=3).kind == "exited"
    stop.request(now=True)
    first.join()
    assert [result.kind for result in ends] == ["stopped"]
    assert bench.run(*word("say"), slot=2).kind == "exited"


def test_nothing_is_left_beside_the_workspace(bench_and_command):
    bench, word = bench_and_command
    run = bench.run(*word("say"))
    assert [path.name for path in run.workspace.parent.iterdir()] == [run.workspace.name]


def test_cleaning_empty_slots_changes_nothing(bench_and_command):
    bench, word = bench_and_command
    bench.engine.clean([0, 1, 2])
    assert bench.run(*word("say")).kind == "exited"


def test_an_unknown_engine_is_not_guessed():
    with pytest.raises(LookupError, match="bubblewrap, null, oci, restricted"):
        engine_named("chroot")
