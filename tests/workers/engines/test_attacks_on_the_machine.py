"""Attacks on other processes, files and services, one test each: the attempt fails inside, the machine is unchanged.

The numbers are those of the list of attacks in the design of this product.
"""

import contextlib
import os
import shutil
import socket
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tests.workers.engines.payloads import TRY, results
from workers.engines.contract import EgressPolicy, RunLimits, StopSignal

pytestmark = pytest.mark.usefixtures("unchanged_machine")
SECRET = "the-worker-keeps-this"


def test_125_pid_1_has_no_secrets(bwrap, monkeypatch):
    monkeypatch.setenv("WORKER_SECRET", SECRET)
    script = "cat /proc/1/environ 2>&1; tr '\\0' ' ' < /proc/1/cmdline"
    refusal, command = bwrap.sh(script, environment={"JOB_SECRET": SECRET}).output.splitlines()
    assert refusal == "cat: /proc/1/environ: Permission denied"
    assert command.startswith("/usr/bin/perl /proc/self/fd/")
    assert SECRET not in command


def test_125_no_other_process_can_be_looked_at(restricted):
    run = restricted.sh("cat /proc/1/environ /proc/$PPID/environ /proc/self/environ; ls /proc; cat /proc/$PPID/cmdline")
    assert run.output.count("Permission denied") >= 4


def test_125_files_of_the_machine_cannot_be_read(bench):
    secret = bench.base / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o644)
    names = f"{secret} /etc/shadow /root/.bashrc /var/log/dpkg.log /home /tmp/* /boot"
    run = bench.sh(f"cat {names} 2>&1; ls -la {bench.base} /root /var/log 2>&1; true")
    assert SECRET not in run.output
    assert "root:" not in run.output
    assert run.seen(str(secret), "-1 E")


def test_125_no_path_of_the_machine_is_in_proc(bwrap):
    files = "mountinfo mounts mountstats maps smaps environ cmdline cgroup stat status limits"
    run = bwrap.sh(
        f"""for at in self 1 thread-self; do for name in {files}; do cat /proc/$at/$name 2>/dev/null; done; done
        ls -l /proc/self/fd /proc/self/cwd /proc/self/root /proc/self/map_files 2>&1; pwd -P; echo end"""
    )
    assert run.output.endswith("/job\nend\n")
    assert str(bwrap.base) not in run.output
    assert ".private" not in run.output


def test_125_the_mount_table_cannot_be_read(bench):
    run = bench.sh(
        "cat /proc/self/mountinfo /proc/mounts /proc/1/mountinfo /proc/$PPID/mountinfo 2>/dev/null; echo end"
    )
    assert run.output == "end\n"


def test_117_files_move_and_mounts_stay_where_no_mount_is_listed(bwrap):
    run = bwrap.sh(
        """mkdir a b && echo x > a/f && mv a/f b/f && ln b/f a/g && cp b/f /tmp/f && mv /tmp/f ~/f && cat ~/f a/g
        cd /; ls -d .. job usr/bin/perl; ls /../etc/hosts; touch /usr/x /x /etc/x 2>&1 | grep -c 'Read-only'"""
    )
    assert run.output.split() == ["x", "x", "..", "job", "usr/bin/perl", "/../etc/hosts", "3"]


def test_128_no_capability_is_left(bench):
    run = bench.perl(
        TRY
        + r"""
        my ($header, $held) = (pack('L l', 0x20080522, 0), "\0" x 24);
        syscall 125, $header, $held; print 'held ', unpack('H*', $held), "\n";
        for my $number (0 .. 40) {
            try("bounding$number" => sub { syscall(157, 23, $number, 0, 0, 0) ? 0 : -1 });
            try("ambient$number" => sub { syscall(157, 47, 1, $number, 0, 0) ? 0 : -1 });
            try("raise$number" => sub { syscall 157, 47, 2, $number, 0, 0 });
        }
        """
    )
    found = results(run)
    assert set(found.pop("held")) == {"0"}
    bounding = {name: value for name, value in found.items() if name.startswith("bounding")}
    assert {name for name in found if found[name] == "done"} <= (set() if os.geteuid() == 0 else set(bounding))


@contextlib.contextmanager
def listening(family, address):
    """A service of the machine, and a list of those who came."""
    came = []
    with socket.socket(family, socket.SOCK_STREAM) as server:
        server.bind(address)
        server.listen()

        def accept():
            with contextlib.suppress(OSError):
                while True:
                    came.append(server.accept()[0])

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield server.getsockname(), came
        server.shutdown(socket.SHUT_RDWR)
    thread.join()
    for end in came:
        end.close()


CONNECT = r"""
sub to { my ($name, $socket, $address) = @_;
    try($name => sub { $socket == -1 ? -1 : syscall 42, $socket, $address, length $address }) }
sub internet { my ($name, $port, @bytes) = @_;
    to($name, syscall(41, 2, 1, 0), pack('S n C4 x8', 2, $port, @bytes)) }
"""


def test_125_services_of_the_machine_cannot_be_reached(bench):
    with (
        listening(socket.AF_INET, ("127.0.0.1", 0)) as (loopback, on_loopback),
        listening(socket.AF_UNIX, f"\0engine-test-{os.getpid()}") as (abstract, on_abstract),
        listening(socket.AF_UNIX, str(bench.base / "socket")) as (_, on_path),
    ):
        (bench.base / "socket").chmod(0o777)
        name = abstract.decode().replace("\0", "\\0")
        run = bench.perl(
            TRY
            + CONNECT
            + f"""
            internet(loopback => {loopback[1]}, 127, 0, 0, 1); internet(metadata => 80, 169, 254, 169, 254);
            internet(world => 443, 203, 0, 113, 9);
            to(abstract => syscall(41, 1, 1, 0), pack('S a*', 1, "{name}"));
            to(path => syscall(41, 1, 1, 0), pack('S a*', 1, "{bench.base}/socket\\0"));
            try(datagram => sub {{ my $s = syscall 41, 1, 2, 0; return -1 if $s == -1;
                my $a = pack('S a*', 1, "{name}"); my $d = 'x'; syscall 44, $s, $d, 1, 0, $a, length $a }});
            """
        )
        assert (on_loopback, on_abstract, on_path) == ([], [], [])
    found = results(run)
    assert (found["loopback"], found["metadata"], found["world"]) == ("ECONNREFUSED", "ENETUNREACH", "ENETUNREACH")
    assert found["abstract"] in {"ECONNREFUSED", "EACCES"}
    assert found["path"] in {"ENOENT", "EACCES"}
    assert found["datagram"] in {"ECONNREFUSED", "EACCES"}
    assert run.seen("connect(", 'inet_addr("169.254.169.254")', "htons(80)", "ENETUNREACH")
    assert run.seen("connect(", 'inet_addr("203.0.113.9")', "htons(443)", "ENETUNREACH")


def test_125_no_name_of_the_machine_can_be_taken(restricted):
    run = restricted.perl(TRY + r"""
        try(abstract => sub { my $a = pack('S a*', 1, "\0engine-test-taken"); syscall 49, syscall(41, 1, 1, 0), $a, length $a });
        try(port => sub { my $a = pack('S n C4 x8', 2, 0, 127, 0, 0, 1); syscall 49, syscall(41, 2, 1, 0), $a, 16 });
        """)  # fmt: skip
    assert results(run) == {"abstract": "EACCES", "port": "EACCES"}
    assert run.seen("bind(", 'sun_path=@"engine-test-taken"', "EACCES")
    assert run.seen("bind(", 'inet_addr("127.0.0.1")', "EACCES")


def test_125_names_that_are_looked_up_are_seen(bench):
    run = bench.sh("getent hosts name.looked-up.example; getent ahosts second.looked-up.example; true")
    assert run.kind == "exited"
    assert run.seen("connect(", "htons(53)", "= 0")
    for name in (r"\4name\tlooked-up\7example", r"\6second\tlooked-up\7example"):
        assert run.seen("sendmmsg(", name) or run.seen("sendto(", name)
    time_of = {word: min(line.split()[1] for line in run.seen(word)) for word in ("htons(53)", r"\4name\tlooked-up")}
    assert time_of["htons(53)"] < time_of[r"\4name\tlooked-up"]
    times = [line.split()[1] for line in run.trace.splitlines() if "connect(" in line or "sendmmsg(" in line]
    assert times == sorted(times)


def test_126_the_tracer_cannot_be_found_or_killed(bench):
    run = bench.sh(
        "grep -h TracerPid /proc/self/status 2>/dev/null; pkill -9 strace; pgrep strace; echo alive; cat /etc/hosts >/dev/null"
    )
    assert "alive" in run.output
    assert not any(line.isdigit() for line in run.output.splitlines())
    assert run.seen('"/etc/hosts"')


def test_126_the_tracer_cannot_be_blinded(bench):
    """A process that is not dumpable hides its memory, and so every name, from a tracer without capabilities."""
    run = bench.perl(
        TRY
        + r"""
        try(hide => sub { syscall 157, 4, 0, 0, 0, 0 }); try(high => sub { syscall 157, 4 | 1 << 32, 0, 0, 0, 0 });
        print 'dumpable ', syscall(157, 3, 0, 0, 0, 0), "\n";
        open my $f, '<', '/etc/a-hidden-name'; open my $g, '<', '/etc/hosts';
        """
    )
    assert results(run) == {"hide": "done", "high": "done", "dumpable": "1"}
    assert run.seen('"/etc/a-hidden-name"')
    assert run.seen('"/etc/hosts"', "</etc/hosts>")
    assert run.seen("prctl(0x4")


def test_126_no_other_process_can_be_signalled(bench):
    bystander = bench.perl(
        TRY
        + f"try(worker => sub {{ syscall 62, {os.getpid()}, 0 }}); try(parent => sub {{ syscall 62, getppid() || 1, 0 }});"
    )
    found = results(bystander)
    assert found["worker"] in {"ESRCH", "EPERM"}


def test_126_only_three_descriptors_come_in(bench):
    script = 'for my $fd (0 .. 5000) { print "$fd\\n" if syscall(72, $fd, 1) != -1 }'
    assert bench.perl(script).output.split() == ["0", "1", "2"]


def test_126_no_line_of_the_trace_can_be_forged(bench):
    forged = '99999 1795000000.000000 execve("/forged", ["forged"], 0x1) = 0'
    name = "a\\n" + forged.replace('"', '\\"') + '\\n>\\"'
    run = bench.perl(
        f'open(my $f, "<", "{name}"); open(my $g, ">", "b>\\n{forged.split(maxsplit=1)[0]} x"); exec {{ "{name}" }} "x"; exit 0'
    )
    assert run.seen("forged")
    assert not any(line.startswith("99999") for line in run.trace.splitlines())
    assert all(line.split()[0].isdigit() for line in run.trace.splitlines())


def test_126_no_line_about_an_answered_call_can_be_forged(bench):
    run = bench.perl(
        r"""my ($a, $b) = ("x\n99999 1795000000.000000 execve(\"/forged\") = 0\n\"", "y"); syscall 165, $a, $b, $a, 0, 0;
        my $p = "\n99999 1.0 x"; syscall 59, $p, 0, 0;""",
        allow_exec=False,
    )
    assert run.seen("mount(", "forged", "EPERM")
    assert run.seen("execve(", "99999", "EPERM")
    assert not any(line.startswith("99999") for line in run.trace.splitlines())


def test_127_shared_memory_is_small_or_none(bwrap, limits):
    run = bwrap.sh(
        "head -c 100M /dev/zero > /dev/shm/x; ls -l /dev/shm/x | awk '{print $5}'",
        limits=replace(limits, disk_bytes=1 << 30),
    )
    assert "No space left" in run.output
    assert int(run.output.split()[-1]) <= 64 << 20


def test_127_shared_memory_of_the_machine_is_closed(restricted):
    run = restricted.perl(
        TRY + "calls(shmget => [29, 4711, 4096, 0x3ff], msgget => [68, 4711, 0x3ff], semget => [64, 4711, 1, 0x3ff]);"
    )
    assert set(results(run).values()) == {"EPERM"}
    assert " 4711 " not in Path("/proc/sysvipc/shm").read_text()
    assert "Permission denied" in restricted.sh("echo x > /dev/shm/left-behind").output


def test_127_descriptors_run_out_inside_only(bench):
    run = bench.perl("my @f; while (open my $f, '<', '/dev/null') { push @f, $f } print scalar @f, \" $!\"")
    count, reason = run.output.split(" ", 1)
    assert int(count) < 1024
    assert reason == "Too many open files"


@pytest.mark.root
def test_128_a_setuid_program_gives_nothing(bench):
    place = bench.place(files={"id": Path(shutil.which("id")).read_bytes()})
    os.chown(place / "id", 0, 0)
    (place / "id").chmod(0o4755)
    spec = bench.spec("./id", "-u")
    name = bytearray()
    bench.engine.run(replace(spec, workspace=place), output=name.extend, trace=bytes, stop=StopSignal())
    assert name.decode().strip() == str(bench.engine.owner(0))


def test_131_a_link_in_place_of_the_workspace_is_refused(bench):
    spec = bench.spec("sh", "-c", "ls")
    spec.workspace.rename(spec.workspace.with_name("elsewhere"))
    spec.workspace.symlink_to("/etc")
    with pytest.raises(OSError):
        bench.engine.run(spec, output=bytes, trace=bytes, stop=StopSignal())


def test_132_a_busy_loop_ends_at_the_worker_s_clock(bench):
    assert bench.perl("1 while 1", timeout_seconds=0.7).kind == "timeout"


def test_134_no_core_is_dumped(bench):
    run = bench.sh("ulimit -c; ulimit -c unlimited; kill -SEGV $$")
    assert run.output.splitlines()[0] == "0"
    assert (run.kind, run.result.signal) == ("signaled", "SIGSEGV")
    assert list(run.workspace.iterdir()) == []


def test_a_storm_of_refused_calls_slows_itself_down(bench):
    """The worker answers 500 calls at once, and the 1000 after them at 500 a second, however busy the machine is."""
    script = r"""
        sub now { my $time = "\0" x 16; syscall 228, 1, $time; my ($s, $ns) = unpack 'q q', $time; $s + $ns / 1e9 }
        my $start = now(); syscall 101, 0, 0, 0, 0 for 1 .. 1500; print now() - $start;
        """
    run = bench.perl(script, timeout_seconds=120.0)
    assert run.kind == "exited"
    assert float(run.output) >= 1.8


def test_a_storm_does_not_hold_up_the_deadline(bench):
    script = "for (1 .. 20) { fork } while (1) { syscall 101, 0, 0, 0, 0 }"
    assert bench.perl(script, timeout_seconds=1.0, limits=RunLimits(processes=40)).kind == "timeout"


def test_egress_gives_no_interface(bench):
    run = bench.perl(
        TRY + CONNECT + "internet(world => 443, 203, 0, 113, 9); internet(loopback => 22, 127, 0, 0, 1);",
        egress=EgressPolicy(("*",)),
    )
    assert results(run) == {"world": "ENETUNREACH", "loopback": "ECONNREFUSED"}


def test_links_that_an_earlier_step_left_lead_no_mount_point_outside(bwrap, base):
    """bwrap follows links while it makes mount points, so none may be below a directory that a job writes to."""
    outside = base / "outside"
    outside.mkdir()
    outside.chmod(0o777)
    plant = f"""for place in /job ~ /tmp; do ln -s {outside} $place/oldroot
        for name in job home tmp etc var dev proc .config; do ln -s /oldroot{outside} $place/$name || exit 9; done; done"""
    spec = bwrap.spec("sh", "-c", plant, keeps_home=True)
    look = ("sh", "-c", "ls -d /job/.config ~/.config /tmp/.config; cut -d: -f1 /etc/passwd")
    output = bytearray()
    for step in (spec, replace(spec, argv=look)):
        assert bwrap.engine.run(step, output=output.extend, trace=bytes, stop=StopSignal()).exit_code == 0
    assert output.decode().split() == ["/home/job/.config", "/job/.config", "/tmp/.config", "job"]
    assert list(outside.iterdir()) == []
    passed: list[int] = []
    with bwrap.engine.run_environment(spec) as environment:
        words = bwrap.engine.backend(environment)._arguments(passed)
    for descriptor in passed:
        os.close(descriptor)
    made = words[words.index("--bind-fd") :]
    assert [word for word in made if word.startswith(("/job/", "/home/job/", "/tmp/"))] == []
