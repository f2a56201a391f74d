"""Promises of every engine that really runs something: the command, its places, its trace."""

import select
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from workers.engines.contract import EgressPolicy, RunSpec, StopSignal
from workers.engines.sandbox import launcher


def test_the_trace_begins_with_the_command(bench):
    run = bench.sh("cat /etc/os-release >/dev/null; exit 4")
    first = run.trace.splitlines()[0]
    assert 'execve("/usr/bin/sh", ["sh", "-c", "cat /etc/os-release' in first
    assert run.seen("openat(", '"/etc/os-release"')
    assert run.seen('execve("/usr/bin/cat"')
    assert run.seen(first.split()[0] + " ", "+++ exited with 4 +++")
    assert not run.seen("bwrap")
    assert run.result.trace_bytes == len(run.trace)
    assert "strace" in run.result.tool_version


def test_what_does_not_exist_is_not_found(bench):
    for name in ("no-such-command", "./no-such-file"):
        run = bench.run(name)
        assert (run.kind, run.result.exit_code) == ("not_found", None)
        assert f"cannot run '{name}': No such file or directory" in run.output


class LatePoll:
    """Returns nothing, and that only after the launcher has ended, as for a worker that gets no processor meanwhile."""

    def register(self, connection, events):
        self.end = select.poll()
        self.end.register(connection, 0)  # without events a poll waits for the end of the connection

    def poll(self, milliseconds):
        self.end.poll()
        return []


def test_what_does_not_exist_is_not_found_when_the_launcher_ended_between_two_polls(bench, monkeypatch):
    """The poll is replaced, because the kernel alone decides when a worker gets a processor."""
    monkeypatch.setattr(launcher, "select", SimpleNamespace(poll=LatePoll, POLLIN=select.POLLIN))
    run = bench.run("no-such-command", egress=EgressPolicy(("example.test",)))
    assert (run.kind, run.result.exit_code) == ("not_found", None)


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
    spec = bench.spec("sh", "-c", "pwd; echo $HOME; echo $TMPDIR; cd; touch file; cd $TMPDIR; touch file; echo done")
    received = []
    bench.engine.run(spec, output=received.append, trace=bytes, stop=StopSignal())
    mount_points = bench.engine.mount_points(spec)
    assert b"".join(received).decode().splitlines() == [
        mount_points.workspace,
        mount_points.home,
        mount_points.temporary[0],
        "done",
    ]
    assert mount_points.home != mount_points.workspace


def test_a_look_for_credentials_at_home_is_seen(bench):
    spec = bench.spec("sh", "-c", "cat ~/.ssh/id_rsa ~/.aws/credentials")
    lines = bytearray()
    bench.engine.run(spec, output=bytes, trace=lines.extend, stop=StopSignal())
    home = bench.engine.mount_points(spec).home
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
def test_texts_that_cannot_be_encoded_are_refused(bench, wrong):
    spec = bench.spec("true")
    with pytest.raises(ValueError, match="must not be empty"):
        bench.engine.run(RunSpec(**{**vars(spec), **wrong}), output=bytes, trace=bytes, stop=StopSignal())


def test_arguments_arrive_as_they_are(bench):
    words = ("first", "--", "-c", "", "a b", "quote'\"", "new\nline", "ünï", "$HOME")
    run = bench.run("/usr/bin/perl", "-e", 'print join("|", @ARGV)', *words)
    assert run.output == "|".join(words)


def test_a_command_too_long_for_the_kernel_is_not_started(bench):
    run = bench.run("true", "x" * (200 << 10))
    assert run.kind == "not_found"
    assert "cannot run 'true': Argument list too long" in run.output


def test_a_sink_that_fails_ends_the_job_and_is_heard(bench):
    spec = bench.spec("sh", "-c", "echo hello; sleep 30")

    def full(_):
        raise OSError("no space left")

    started = time.monotonic()
    with pytest.raises(OSError, match="no space left"):
        bench.engine.run(spec, output=full, trace=bytes, stop=StopSignal())
    assert time.monotonic() - started < 18


def test_what_the_command_leaves_running_ends_with_it(bench):
    run = bench.sh("(setsid sleep 61 >/dev/null 2>&1 &); (sleep 62 &) & echo started")
    assert (run.kind, run.result.exit_code) == ("exited", 0)


LOOPS = "for i in 1 2 3 4; do (trap '' TERM; while :; do cat </dev/null; done) & done; echo started"


def test_what_is_killed_sees_the_mounts_to_its_end(bwrap):
    """Otherwise the log says that `sleep` or /dev/null does not exist."""
    left = [bwrap.sh(script).output for script in ("sleep 300 & echo started", LOOPS) * 4]
    killed = [bwrap.sh(f"{LOOPS}; wait", timeout_seconds=0.7, grace_seconds=0.0).output for _ in range(4)]
    assert left + killed == ["started\n"] * 12


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
    assert run.result.exit_code == 0


def test_resources_are_measured(bench):
    run = bench.sh("head -c 5000000 /dev/zero > file; i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done")
    resources = run.result.resources
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


def test_what_the_sandbox_itself_says_is_not_the_job_s_output(bwrap):
    run = bwrap.sh("(echo mimicry > /proc/1/fd/2) 2>/dev/null; echo real; echo error >&2")
    assert run.output == "real\nerror\n"


def test_orders_of_one_job_share_home_and_tmp_if_they_say_so(bench):
    spec = bench.spec("sh", "-c", "echo x > ~/kept; echo y > $TMPDIR/kept", keeps_home=True)
    output = bytearray()

    def follow(script, **changes):
        following = replace(spec, argv=("sh", "-c", script), **changes)
        output.clear()
        return bench.engine.run(following, output=output.extend, trace=lambda _: None, stop=StopSignal())

    follow("echo x > ~/kept; echo y > $TMPDIR/kept")
    assert follow("cat ~/kept $TMPDIR/kept; rm -r ~/* $TMPDIR/*").exit_code == 0
    assert output == b"x\ny\n"
    private = spec.workspace.with_name(spec.workspace.name + ".private")
    assert sorted(path.name for path in private.iterdir()) == ["home", "tmp"], "no trace is left"
    assert follow("ls -A ~ $TMPDIR | grep kept", keeps_home=False).exit_code == 1
    assert not private.exists()
