"""No job takes over a process of its own uid: not pid 1 of its sandbox, not its tracer. Each protection holds alone."""

import os
import subprocess

import pytest

from tests.workers.engines import takeover
from tests.workers.engines.payloads import TRY, results
from tests.workers.engines.takeover import unprotect_init

pytestmark = pytest.mark.usefixtures("unchanged_machine")


def attempt(bench, **details):
    """Run the attack against pid 1, or where there is no pid namespace against the parent, which is the tracer."""
    place = "/job" if bench.engine.name == "bubblewrap" else "."
    target = "1" if bench.engine.name == "bubblewrap" else "parent"
    arguments = (takeover.code(f"{place}/taken").hex(), f"{place}/taken", target)
    return bench.run("/usr/bin/perl", "-e", takeover.SCRIPT, *arguments, **details)


@pytest.mark.parametrize("allow_exec", [True, False])
def test_a_job_cannot_take_over_a_process_of_its_uid(bench, allow_exec):
    run = attempt(bench, allow_exec=allow_exec)
    assert run.output.startswith("refused: "), run.output
    assert "taken" not in run.output
    assert not (run.workspace / "taken").exists()
    assert (run.kind, run.result.exit_code) == ("exited", 0)


@pytest.mark.parametrize("left", ["dumpable", "landlock", "filter"])
def test_each_protection_of_pid_1_holds_alone(bwrap, monkeypatch, left):
    unprotect_init(monkeypatch, *({"dumpable", "landlock", "filter"} - {left}))
    run = attempt(bwrap)
    assert not (run.workspace / "taken").exists()
    if left == "filter":  # the memory was written: the first call that the code made ended the namespace
        assert run.output.startswith("written")
        assert "taken" not in run.output
        assert run.seen("+++ killed by SIGSYS")
        assert run.result.kind == "signaled"
    else:
        assert run.output.startswith("refused: ")


def test_the_attack_succeeds_where_nothing_protects_pid_1(bwrap, monkeypatch):
    """Shows that the attack is a real one, and that whatever pid 1 does is in the trace."""
    unprotect_init(monkeypatch, "dumpable", "landlock", "filter")
    run = attempt(bwrap)
    assert "taken" in run.output, run.output
    found = takeover.results((run.workspace / "taken").read_bytes())
    assert {name: value for name, value in found.items() if value < 0} == {}
    assert run.seen("creat(", '"/job/taken"')
    assert run.seen("socket(AF_VSOCK")


def others(whom):
    """The number of another process, as an expression of perl."""
    return {"first": "1", "parent": "getppid", "sibling": "getppid() + 1", "worker": str(os.getpid())}[whom]


FILES = ("auxv", "environ", "fd", "io", "map_files", "maps", "mem", "pagemap", "stack", "syscall", "clear_refs")


@pytest.mark.parametrize("whom", ["first", "parent", "sibling", "worker"])
def test_nothing_of_another_process_can_be_opened(bench, whom):
    run = bench.perl(
        TRY
        + f"my $pid = {others(whom)}; $pid = 1 if $pid == $$;"
        + f"""
        for my $name (qw({" ".join(FILES)})) {{
            my ($path, $flags) = ("/proc/$pid/$name", $name eq 'clear_refs' ? 1 : 0);
            try($name => sub {{ syscall 2, $path, $flags, 0 }});
        }}
        try(write => sub {{ my ($path, $flags) = ("/proc/$pid/mem", 2); syscall 2, $path, $flags, 0 }});
        try(oom => sub {{ my ($path, $flags) = ("/proc/$pid/oom_score_adj", 1); syscall 2, $path, $flags, 0 }});
        try(link => sub {{ defined readlink "/proc/$pid/exe" ? 0 : -1 }});
        """
    )
    assert set(results(run).values()) <= {"EACCES", "EPERM", "ENOENT"}


@pytest.mark.parametrize("whom", ["first", "parent", "worker"])
def test_no_other_process_can_be_read_written_signalled_or_limited(bench, whom):
    run = bench.perl(
        TRY
        + f"my $pid = {others(whom)};"
        + r"""
        my $room = "\0" x 128; my $part = pack('P Q', $room, 8); my $limit = pack('Q Q', 0, 0);
        calls(attach => [101, 16, $pid, 0, 0], seize => [101, 0x4206, $pid, 0, 0], readv => [310, $pid, $part, 1, $part, 1, 0],
            writev => [311, $pid, $part, 1, $part, 1, 0], stop => [62, $pid, 19], cont => [62, $pid, 18], end => [62, $pid, 9],
            queue => [129, $pid, 19, $room], limit => [302, $pid, 0, $limit, 0], limit_high => [302, $pid | 1 << 32, 0, $limit, 0],
            affinity => [203, $pid, 8, $room], policy => [144, $pid, 5, $room], param => [142, $pid, $room],
            attributes => [314, $pid, $room, 0], priority => [141, 0, $pid, 19], io => [251, 1, $pid, 3 << 13],
            migrate => [256, $pid, 8, $room, $room]);
        my $handle = syscall 434, $pid, 0;
        try(handle_stop => sub { $handle == -1 ? ($! = 3, -1)[1] : syscall 424, $handle, 19, 0, 0 });
        try(handle_take => sub { $handle == -1 ? ($! = 3, -1)[1] : syscall 438, $handle, 0, 0 });
        try(owner => sub { my ($a, $b); pipe $a, $b; syscall 72, fileno $a, 8, $pid } );
        """
    )
    found = results(run)
    found.pop("owner")  # naming a receiver of SIGIO is judged when the signal is sent
    assert set(found.values()) <= {"EPERM", "ESRCH", "EINVAL"}, found
    assert {found["limit"], found["limit_high"], found["stop"], found["writev"]} <= {"EPERM", "ESRCH"}


def test_all_processes_of_a_user_cannot_be_slowed_down(restricted):
    run = restricted.perl(
        TRY + "calls(user => [141, 2, 0, 19], group => [141, 1, 0, 19], io_user => [251, 3, $<, 3 << 13]);"
    )
    assert set(results(run).values()) == {"EPERM"}
    assert run.seen("setpriority(", "EPERM")


def test_a_process_sets_how_it_runs_itself(bench):
    run = bench.perl(
        TRY
        + r"""
        my $set = pack 'Q', 3; my $limit = pack 'Q Q', 100, 100; my $room = "\0" x 16;
        for my $pid (0, $$ + 0) {
            try('limit' . !!$pid => sub { syscall 302, $pid, 7, $limit, $room });
            try('nice' . !!$pid => sub { syscall 141, 0, $pid, 5 });
            try('affinity' . !!$pid => sub { syscall 203, $pid, 8, $set });
            try('io' . !!$pid => sub { syscall 251, 1, $pid, 2 << 13 | 7 });
        }
        print 'files ', unpack('Q', $room), "\n";
        """
    )
    found = results(run)
    assert found.pop("files") == "100"
    assert len(found) == 8
    assert set(found.values()) == {"done"}


def test_a_stop_of_every_process_that_can_be_reached_ends_at_the_deadline(bench):
    run = bench.perl("kill 'STOP', 1, getppid; kill 'STOP', -1; sleep 100", timeout_seconds=1.0)
    assert run.kind == "timeout"


@pytest.mark.parametrize("abi", [2, 5, 6])
def test_a_domain_without_rights_on_files_forbids_none(bwrap, monkeypatch, abi):
    monkeypatch.setattr(bwrap.engine, "abi", abi)
    run = bwrap.sh("mkdir a b; echo x > a/f; mv a/f b/g; ln b/g a/h; mv a b; mv b ~/c; cat ~/c/g ~/c/a/h; kill -0 $$")
    assert run.output == "x\nx\n"
    assert run.result.exit_code == 0
    assert "landlock" in run.result.enforced_layers


def test_a_stopped_pid_1_holds_nothing_up(bwrap, monkeypatch):
    """A kernel before Linux 6.12 lets a job stop pid 1: the end is seen in the trace."""
    monkeypatch.setattr(bwrap.engine, "abi", 0)
    run = bwrap.sh("kill -STOP 1 && echo stopped; (sleep 0.01 &); exit 3", timeout_seconds=30)
    assert run.output == "stopped\n"
    assert (run.kind, run.result.exit_code) == ("exited", 3)
    assert run.seen("kill(1, SIGSTOP) = 0")


@pytest.mark.root
def test_processes_and_files_of_the_same_uid_outside_of_the_job_are_out_of_reach(bench, base):
    """Where the worker is an ordinary user, it and the jobs of its other slots have the job's uid."""
    uid = bench.engine.owner(0)
    place = base / "neighbour"
    for path in (place, place / "folder"):
        path.mkdir()
    (place / "secret").write_text("the neighbour's")
    for path in (place, *place.iterdir()):
        os.chown(path, uid, uid)
    spec = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--", "/usr/bin/perl", "-e"]
    with subprocess.Popen([*spec, '$| = 1; print "ready\\n"; sleep 60'], stdout=subprocess.PIPE, env={}) as bystander:
        assert bystander.stdout.readline() == b"ready\n"
        priority = os.getpriority(os.PRIO_PROCESS, bystander.pid)
        run = bench.perl(
            TRY
            + f"my $pid = {bystander.pid};"
            + r"""
            my $part = pack('P Q', my $room = "\0" x 16, 8); my $limit = pack('Q Q', 0, 0);
            calls(limit => [302, $pid, 0, $limit, 0], affinity => [203, $pid, 16, $room], nice => [141, 0, $pid, 19],
                policy => [144, $pid, 5, $room], io => [251, 1, $pid, 3 << 13], probe => [62, $pid, 0], stop => [62, $pid, 19],
                all => [62, -1, 19], nice_user => [141, 2, 0, 19], readv => [310, $pid, $part, 1, $part, 1, 0]);
            for my $name (qw(mem environ maps fd)) { my ($path, $flags) = ("/proc/$pid/$name", 0);
                try($name => sub { syscall 2, $path, $flags, 0 }) }
            """
            + f"chdir '/'; my $place = '{place}';"
            + r"""
            for my $name ('secret', '.') { my ($path, $flags) = ("$place/$name", 0);
                try("read-$name" => sub { syscall 2, $path, $flags, 0 }) }
            my ($secret, $new, $flags) = ("$place/secret", "$place/new", 0102);
            try(write => sub { my $for = 1; syscall 2, $secret, $for, 0 });
            try(cut => sub { syscall 76, $secret, 0 });
            try(make => sub { syscall 2, $new, $flags, 0644 });
            try(folder => sub { mkdir($new) ? 0 : -1 });
            try(link => sub { symlink('/', $new) ? 0 : -1 });
            try(name => sub { link($secret, 'mine') ? 0 : -1 });
            try(move => sub { rename($secret, $new) ? 0 : -1 });
            try(remove => sub { unlink($secret) ? 0 : -1 });
            try(clear => sub { rmdir("$place/folder") ? 0 : -1 });
            """
        )
        assert os.getpriority(os.PRIO_PROCESS, bystander.pid) == priority
        bystander.kill()
    found = results(run)
    found.pop("all")  # reaches no one, or the job's own
    if bench.engine.name == "bubblewrap":
        assert found.pop("nice_user") == "done"  # of the processes in its own namespace
    assert set(found.values()) <= {"EPERM", "EACCES", "ESRCH", "ENOENT", "EROFS"}, found
    assert sorted(path.name for path in place.iterdir()) == ["folder", "secret"]
    assert (place / "secret").read_text() == "the neighbour's"
