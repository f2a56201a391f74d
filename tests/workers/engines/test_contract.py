"""One story, every engine: what `base.py` promises, told with the words that each engine understands."""

import threading
import time

import pytest

from tests.workers.engines.conftest import REAL, Bench
from workers.engines import ENGINES, engine_named
from workers.engines.base import EngineUnavailable, Isolation, Limits, Order, Stop
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
def told(request, monkeypatch, base):
    """An engine's bench, and how to say something to it."""
    monkeypatch.setenv(FLAG, "1")
    if request.param in REAL:
        bench = Bench(request.getfixturevalue("engines")[request.param], base)
        return bench, lambda word: ("sh", "-c", WORDS[word][0])
    bench = Bench(engine_named("null"), base)
    return bench, lambda word: ("null", *WORDS[word][1].split())


def test_an_engine_says_what_it_is(told):
    bench, _ = told
    assert bench.engine.name in ENGINES
    assert isinstance(bench.engine.isolation, Isolation)
    assert bench.engine.check().missing == ()
    assert "linux" in bench.engine.check().offered


def test_output_and_exit_code_come_back(told):
    bench, word = told
    run = bench.run(*word("say"))
    assert (run.kind, run.ended.exit_code, run.output) == ("exited", 0, "hello\n")
    assert run.ended.output_bytes == 6
    assert not run.ended.output_truncated
    assert 0 < run.ended.started_at <= run.ended.finished_at


def test_a_failure_is_an_end_and_not_an_error(told):
    bench, word = told
    run = bench.run(*word("fail"))
    assert (run.kind, run.ended.exit_code, run.ended.signal) == ("exited", 3, None)


def test_death_by_a_signal_is_told_from_an_exit(told):
    bench, word = told
    run = bench.run(*word("die"))
    assert (run.kind, run.ended.exit_code, run.ended.signal) == ("signaled", None, "SIGSEGV")


def test_the_deadline_ends_it(told):
    bench, word = told
    started = time.monotonic()
    run = bench.run(*word("wait"), timeout_seconds=0.5)
    assert (run.kind, run.ended.signal) == ("timeout", "SIGTERM")
    assert 0.5 <= time.monotonic() - started < 10


def test_the_deadline_ends_also_what_ignores_sigterm(told):
    bench, word = told
    started = time.monotonic()
    run = bench.run(*word("wait_for_good"), timeout_seconds=0.5, grace_seconds=0.4)
    assert (run.kind, run.ended.signal) == ("timeout", "SIGKILL")
    assert 0.9 <= time.monotonic() - started < 10


def test_stop_ends_it_from_another_thread(told):
    bench, word = told
    stop = Stop()
    threading.Timer(0.4, stop.ask).start()
    run = bench.run(*word("wait"), stop=stop)
    assert (run.kind, run.ended.signal) == ("stopped", "SIGTERM")


def test_stop_now_spares_the_grace(told):
    bench, word = told
    stop = Stop()
    threading.Timer(0.5, lambda: stop.ask(now=True)).start()
    started = time.monotonic()
    run = bench.run(*word("wait_for_good"), stop=stop, grace_seconds=20.0)
    assert (run.kind, run.ended.signal) == ("stopped", "SIGKILL")
    assert time.monotonic() - started < 10


def test_a_second_thought_cuts_the_grace_short(told):
    bench, word = told
    stop = Stop()
    threading.Timer(0.3, stop.ask).start()
    threading.Timer(0.8, lambda: stop.ask(now=True)).start()
    started = time.monotonic()
    assert bench.run(*word("wait_for_good"), stop=stop, grace_seconds=20.0).kind == "stopped"
    assert time.monotonic() - started < 10


def test_stop_asked_before_the_start_counts(told):
    bench, word = told
    stop = Stop()
    stop.ask()
    assert bench.run(*word("say"), stop=stop).kind == "stopped"


def test_output_is_capped_and_counted(told):
    bench, word = told
    run = bench.run(*word("shout"), limits=Limits(output_bytes=1000))
    assert run.kind == "exited"
    assert len(run.output) == 1000
    assert run.ended.output_truncated
    assert run.ended.output_bytes >= 3_000_000


def test_a_slot_holds_one_job(told):
    bench, word = told
    stop, started, ends = Stop(), threading.Event(), []
    held, refused = bench.order(*word("say_and_wait"), slot=2), bench.order(*word("say"), slot=2)

    def hold():
        ends.append(bench.engine.run(held, output=lambda _: started.set(), trace=bytes, stop=stop))

    first = threading.Thread(target=hold)
    first.start()
    assert started.wait(10)
    with pytest.raises(EngineUnavailable, match="2"):
        bench.engine.run(refused, output=bytes, trace=bytes, stop=Stop())
    assert bench.run(*word("say"), slot=3).kind == "exited"
    stop.ask(now=True)
    first.join()
    assert [ended.kind for ended in ends] == ["stopped"]
    assert bench.run(*word("say"), slot=2).kind == "exited"


def test_nothing_is_left_beside_the_workspace(told):
    bench, word = told
    run = bench.run(*word("say"))
    assert [path.name for path in bench.base.iterdir()] == [run.workspace.name]


def test_cleaning_empty_slots_changes_nothing(told):
    bench, word = told
    bench.engine.clean([0, 1, 2])
    assert bench.run(*word("say")).kind == "exited"


def test_an_unknown_engine_is_not_guessed():
    with pytest.raises(LookupError, match="bubblewrap, null, restricted"):
        engine_named("chroot")


# -- only what really runs something


def test_the_trace_begins_with_the_command(bench):
    run = bench.sh("cat /etc/os-release >/dev/null; exit 4")
    first = run.trace.splitlines()[0]
    assert 'execve("/usr/bin/sh", ["sh", "-c", "cat /etc/os-release' in first
    assert run.seen("openat(", '"/etc/os-release"')
    assert run.seen('execve("/usr/bin/cat"')
    assert run.seen(first.split()[0] + " ", "+++ exited with 4 +++")
    assert not run.seen("bwrap")
    assert run.ended.trace_bytes == len(run.trace)
    assert "strace" in run.ended.tool_version


def test_what_does_not_exist_is_not_found(bench):
    for name in ("no-such-command", "./no-such-file"):
        run = bench.run(name)
        assert (run.kind, run.ended.exit_code) == ("not_found", None)
        assert f"cannot run '{name}': No such file or directory" in run.output


def test_what_may_not_be_executed_is_not_found(bench):
    assert bench.run("/etc/os-release").kind == "not_found"


def test_a_missing_working_directory_is_named(bench):
    run = bench.sh("true", working_directory="no/such")
    assert run.kind == "not_found"
    assert "cannot enter the working directory" in run.output


def test_the_working_directory_is_below_the_workspace(bench):
    run = bench.sh("pwd; cat here", working_directory="deep/down", files={"deep/down/here": "found\n"})
    assert run.output.splitlines()[0].endswith("/deep/down")
    assert run.output.splitlines()[1] == "found"


@pytest.mark.parametrize("where", ["/etc", "..", "a/../../b"])
def test_the_working_directory_may_not_leave_the_workspace(bench, where):
    with pytest.raises(ValueError, match="leaves the workspace"):
        bench.sh("true", working_directory=where)


def test_the_workspace_can_be_written_and_stays(bench):
    run = bench.sh("echo made > new; cat old", files={"old": "was here\n"})
    assert run.output == "was here\n"
    assert (run.workspace / "new").read_text() == "made\n"


def test_places_are_where_the_engine_says(bench):
    order = bench.order("sh", "-c", "pwd; echo $HOME; echo $TMPDIR; cd; touch file; cd $TMPDIR; touch file; echo done")
    said = []
    bench.engine.run(order, output=said.append, trace=bytes, stop=Stop())
    places = bench.engine.places(order)
    assert b"".join(said).decode().splitlines() == [places.workspace, places.home, places.temporary[0], "done"]
    assert places.home != places.workspace


def test_a_look_for_credentials_at_home_is_seen(bench):
    order = bench.order("sh", "-c", "cat ~/.ssh/id_rsa ~/.aws/credentials")
    lines = bytearray()
    bench.engine.run(order, output=bytes, trace=lines.extend, stop=Stop())
    home = bench.engine.places(order).home
    assert f'"{home}/.ssh/id_rsa"'.encode() in lines
    assert f'"{home}/.aws/credentials"'.encode() in lines


def test_the_environment_is_what_was_ordered_and_no_more(bench, monkeypatch):
    monkeypatch.setenv("WORKER_SECRET", "hunter2")
    run = bench.run("env", environment={"GREETING": "hel=lo\nworld", "CI": "no"})
    assert "GREETING=hel=lo\nworld\n" in run.output
    assert "CI=no\n" in run.output
    assert "PATH=/usr/local/bin:/usr/bin:/bin\n" in run.output
    assert "WORKER_SECRET" not in run.output
    assert "proxy" not in run.output


@pytest.mark.parametrize("wrong", [{"argv": ()}, {"argv": ("a\0b",)}, {"environment": {"A=B": "c"}}])
def test_words_that_cannot_be_said_are_refused(bench, wrong):
    order = bench.order("true")
    with pytest.raises(ValueError, match="needs words"):
        bench.engine.run(Order(**{**vars(order), **wrong}), output=bytes, trace=bytes, stop=Stop())


def test_arguments_arrive_as_they_are(bench):
    words = ("first", "--", "-c", "", "a b", "quote'\"", "new\nline", "ünï", "$HOME")
    run = bench.run("/usr/bin/perl", "-e", 'print join("|", @ARGV)', *words)
    assert run.output == "|".join(words)


def test_a_command_too_long_for_the_kernel_is_not_started(bench):
    run = bench.run("true", "x" * (200 << 10))
    assert run.kind == "not_found"
    assert "cannot run 'true': Argument list too long" in run.output


def test_a_sink_that_fails_ends_the_job_and_is_heard(bench):
    order = bench.order("sh", "-c", "echo hello; sleep 30")

    def full(_):
        raise OSError("no space left")

    started = time.monotonic()
    with pytest.raises(OSError, match="no space left"):
        bench.engine.run(order, output=full, trace=bytes, stop=Stop())
    assert time.monotonic() - started < 10


def test_what_the_command_leaves_running_ends_with_it(bench):
    run = bench.sh("(setsid sleep 61 >/dev/null 2>&1 &); (sleep 62 &) & echo started")
    assert (run.kind, run.ended.exit_code) == ("exited", 0)


def test_ordinary_tools_work(bench):
    script = """
    set -e
    echo to-stderr > /dev/stderr; echo to-stdout > /dev/stdout; cat < /dev/null; head -c 4 /dev/urandom > random
    git init -q r; cd r; git config user.name a; git config user.email b
    echo text > file; git add file; git commit -qm first; git log --oneline | wc -l; cd ..
    tar czf r.tgz r; mkdir out; tar xzf r.tgz -C out; cmp r/file out/r/file; mv out/r moved; rm -rf out
    seq 1000 | sort -r | tail -1; find . -name file | wc -l; mktemp >/dev/null; date +%Y >/dev/null
    perl -e 'socketpair(my $a, my $b, 1, 1, 0) or die; syswrite $a, "pair"; sysread $b, my $c, 4; print "$c\n"'
    """
    run = bench.run("/bin/sh", "-c", script)
    assert run.output.split() == ["to-stderr", "to-stdout", "1", "1", "2", "pair"], run.output
    assert run.ended.exit_code == 0


def test_resources_are_measured(bench):
    run = bench.sh("head -c 5000000 /dev/zero > file; i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done")
    resources = run.ended.resources
    assert resources.disk_bytes >= 5_000_000
    assert resources.cpu_seconds > 0


def test_two_slots_run_side_by_side(bench):
    runs = []
    threads = [
        threading.Thread(target=lambda slot=slot: runs.append(bench.sh("sleep 0.3; echo done", slot=slot)))
        for slot in (4, 5, 6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [run.output for run in runs] == ["done\n"] * 3
