"""Attacks on the sandbox, one test each: the attempt fails inside, the job ends normally, the machine is unchanged.

The numbers are those of the list of attacks in the design of this product.
"""

import contextlib
import os
import platform
import shutil
import socket
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tests.workers.engines.payloads import INT80, TRY, said
from workers.engines.base import Egress, Limits, Stop

SECRET = "the-worker-keeps-this"
REFUSED = {"EPERM", "EACCES", "EROFS", "ENOENT"}


def host_state():
    kernel = Path("/proc/sys/kernel")
    return {
        "sysctls": {
            name: (kernel / name).read_text() for name in ("core_pattern", "hostname", "domainname", "core_uses_pid")
        },
        "mounts": Path("/proc/self/mountinfo").read_text(),
        "namespaces": {
            name: str(Path(f"/proc/self/ns/{name}").readlink()) for name in ("mnt", "net", "pid", "user", "ipc", "uts")
        },
        "interfaces": sorted(name for _, name in socket.if_nameindex()),
        "system": {path: Path(path).stat().st_mtime_ns for path in ("/usr", "/usr/bin", "/etc/passwd")},
    }


@pytest.fixture(autouse=True)
def unchanged_machine(request):
    before = host_state()
    yield
    assert host_state() == before


def results(run):
    assert run.kind == "exited", (run.ended, run.output)
    assert run.ended.exit_code == 0, run.output
    return said(run)


def test_116_the_kernel_s_switches_cannot_be_set(bench):
    paths = ("kernel/core_pattern", "kernel/modprobe", "kernel/hostname", "vm/drop_caches", "kernel/sysrq")
    script = "".join(f"try('{path}' => sub {{ open(my $f, '+<', '/proc/sys/{path}') ? 1 : -1 }});" for path in paths)
    script += "try('sysrq' => sub { open(my $f, '>', '/proc/sysrq-trigger') ? 1 : -1 });"
    script += "try('own' => sub { open(my $f, '>', '/proc/self/oom_score_adj') ? 1 : -1 }); "
    found = results(bench.perl(TRY + script))
    found.pop("own")  # a process may always offer itself
    assert set(found.values()) <= REFUSED


def test_117_nothing_can_be_mounted_and_no_namespace_entered(bench):
    run = bench.perl(
        TRY
        + r"""
        my ($a, $b) = ("none", "/tmp");
        calls(mount => [165, $a, $b, my $t = "tmpfs", 0, 0], umount => [166, my $p = "/proc", 0], chroot => [161, $b],
            pivot_root => [155, $b, my $c = "/tmp"], fsopen => [430, my $f = "tmpfs", 0], open_tree => [428, -100, $b, 1],
            unshare_user => [272, 0x10000000], unshare_mount => [272, 0x20000], setns => [308, 0, 0],
            move_mount => [429, -1, $a, -1, $b, 0]);
        """
    )
    assert set(results(run).values()) == {"EPERM"}
    assert run.seen("mount(", '"none"', '"/tmp"', "EPERM")
    assert run.seen("unshare(", "EPERM")


def test_118_no_process_can_be_entered(bench):
    run = bench.perl(
        TRY
        + r"""
        my $child = fork; if (!$child) { sleep 5; exit }
        my $room = "\0" x 64;
        calls(attach => [101, 16, $child, 0, 0], traceme => [101, 0, 0, 0, 0], readv => [310, $child, $room, 1, $room, 1, 0],
            writev => [311, $child, $room, 1, $room, 1, 0], getfd => [438, 3, 0, 0], kcmp => [312, $$, $child, 0, 0, 0],
            madvise => [440, 0, $room, 1, 21, 0]);
        kill 9, $child;
        """
    )
    assert set(results(run).values()) == {"EPERM"}
    assert run.seen("ptrace(", "EPERM")


def test_119_files_and_network_cannot_be_reached_past_the_tracer(bench):
    run = bench.perl(
        TRY
        + r"""
        my $room = "\0" x 256;
        calls(setup => [425, 8, $room], enter => [426, 0, 0, 0, 0, 0, 0], register => [427, 0, 0, 0, 0],
            by_handle => [304, -100, $room, 0], to_handle => [303, -100, my $p = "/", $room, $room, 0],
            secret_memory => [447, 0]);
        """
    )
    assert set(results(run).values()) == {"EPERM"}
    assert run.seen("io_uring_setup(", "EPERM")


def test_120_the_kernel_s_own_machines_are_closed(bench):
    run = bench.perl(
        TRY
        + r"""
        my $room = "\0" x 128;
        calls(bpf => [321, 0, $room, 128], perf => [298, $room, 0, -1, -1, 0], userfaultfd => [323, 0],
            keyctl => [250, 0, -3, 0, 0, 0], add_key => [248, my $t = "user", my $d = "x", $room, 8, -3],
            module => [313, 0, my $e = "", 0], reboot => [169, 0, 0, 0, 0], swapon => [167, my $s = "/tmp", 0],
            syslog => [103, 2, $room, 64], settime => [227, 0, $room], iopl => [172, 3], newest => [475, 0]);
        """
    )
    found = results(run)
    assert found.pop("newest") == "ENOSYS"
    assert set(found.values()) == {"EPERM"}


def test_121_only_families_of_sockets_that_namespaces_hold(bench):
    families = {"vsock": 40, "packet": 17, "alg": 38, "bluetooth": 31, "xdp": 44, "can": 29, "rds": 21, "tipc": 30}
    script = "".join(f"try({name} => sub {{ syscall 41, {number}, 3, 0 }});" for name, number in families.items())
    script += "try(raw => sub { syscall 41, 2, 3, 1 });"
    run = bench.perl(TRY + script)
    found = results(run)
    assert found.pop("raw") == "EPERM"
    assert set(found.values()) == {"EAFNOSUPPORT"}
    assert run.seen("socket(AF_VSOCK", "EAFNOSUPPORT")


def test_122_nobody_is_born_unseen(bench):
    run = bench.perl(
        TRY
        + r"""
        for my $flag (0x800000, 0x10000000, 0x20000, 0x20000000, 0x40000000, 0x2000000, 0x8000000, 0x4000000) {
            try(sprintf('%x', $flag) => sub { my $p = syscall 56, $flag | 17, 0, 0, 0, 0; exit 0 if $p == 0; $p });
        }
        my $room = pack('Q11', 0x800000, (0) x 10);
        try(clone3 => sub { syscall 435, $room, 88 });
        """
    )
    found = results(run)
    assert found.pop("clone3") == "ENOSYS"
    assert set(found.values()) == {"EPERM"}
    assert run.seen("clone(", "EPERM")


def test_122_children_and_threads_are_traced(bench):
    run = bench.sh("seq 200000 | sort -rn --parallel=2 -S 40M | tail -1; (: < /etc/passwd) & wait")
    assert run.output == "1\n"
    assert run.seen("CLONE_THREAD")
    assert run.seen('"/etc/passwd"')


@pytest.mark.skipif(platform.machine() != "x86_64", reason="needs x86_64, as the engines do")
def test_123_calls_by_another_door_kill(bench):
    run = bench.run("./int80", files={"int80": INT80})
    assert (run.kind, run.ended.signal) == ("signaled", "SIGSYS")
    run = bench.perl("syscall 0x40000000 + 39; print 'alive'")
    assert (run.kind, run.ended.signal, run.output) == ("signaled", "SIGSYS", "")


def test_124_nothing_can_be_typed_into_a_terminal(bench):
    run = bench.perl(
        TRY
        + r"""
        my $letter = 'x';
        calls(tiocsti => [16, 0, 0x5412, $letter], hidden => [16, 0, 0x5412 | (1 << 32), $letter],
            tioclinux => [16, 0, 0x541C, $letter]);
        try(terminal => sub { open(my $t, '<', '/dev/tty') ? 1 : -1 });
        """
    )
    found = results(run)
    assert found.pop("terminal") in {"ENXIO", "EACCES"}
    assert set(found.values()) == {"EPERM"}


def test_125_pid_1_has_no_secrets(bwrap, monkeypatch):
    monkeypatch.setenv("WORKER_SECRET", SECRET)
    run = bwrap.sh("wc -c < /proc/1/environ; tr '\\0' ' ' < /proc/1/cmdline", environment={"JOB_SECRET": SECRET})
    size, command = run.output.splitlines()
    assert size.strip() == "0"
    assert command.startswith("/usr/bin/bwrap --args ")
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
    order = bench.order("./id", "-u")
    name = bytearray()
    bench.engine.run(replace(order, workspace=place), output=name.extend, trace=bytes, stop=Stop())
    assert name.decode().strip() == str(bench.engine.owner(0))


def test_131_a_link_in_place_of_the_workspace_is_refused(bench):
    order = bench.order("sh", "-c", "ls")
    order.workspace.rename(order.workspace.with_name("elsewhere"))
    order.workspace.symlink_to("/etc")
    with pytest.raises(OSError):
        bench.engine.run(order, output=bytes, trace=bytes, stop=Stop())


def test_132_a_busy_loop_ends_at_the_worker_s_clock(bench):
    assert bench.perl("1 while 1", timeout_seconds=0.7).kind == "timeout"


def test_134_no_core_is_dumped(bench):
    run = bench.sh("ulimit -c; ulimit -c unlimited; kill -SEGV $$")
    assert run.output.splitlines()[0] == "0"
    assert (run.kind, run.ended.signal) == ("signaled", "SIGSEGV")
    assert list(run.workspace.iterdir()) == []


# -- the one program that may run


def test_one_program_may_not_start_another(bench):
    run = bench.sh("/bin/true; ls; (echo a subshell is no program)", allow_exec=False)
    assert run.output.count("Operation not permitted") == 2
    assert "a subshell is no program" in run.output
    assert run.seen('execve("/bin/true", ["/bin/true"]', "EPERM")
    assert run.seen("execve(", '"/usr/bin/ls", ["ls"]', "EPERM")
    assert len(run.seen('"/bin/true", [')) == 1, "each attempt stands there once"


def test_one_program_s_own_descriptor_cannot_be_had_again(bench):
    run = bench.perl(
        TRY
        + r"""
        my $empty = ''; open my $true, '<', '/bin/true';
        calls(execveat_same => [322, 4095, $empty, 0, 0, 0x1000], execveat_other => [322, fileno $true, $empty, 0, 0, 0x1000],
            dup2 => [33, fileno $true, 4095], dup => [72, fileno $true, 0, 4095], raise => [160, 7, my $l = pack('QQ', 9999, 9999)],
            execveat_path => [322, -100, my $p = '/bin/true', 0, 0, 0]);
        """,
        allow_exec=False,
    )
    found = results(run)
    assert found == {
        "execveat_same": "EBADF", "execveat_other": "EPERM", "dup2": "EBADF", "dup": "EINVAL", "raise": "EPERM",
        "execveat_path": "EPERM",
    }  # fmt: skip


@pytest.mark.parametrize(
    "line", ["#!/usr/bin/perl", "#! /usr/bin/perl -w", "#!/usr/bin/env perl", "#!/usr/bin/env -S perl -w"]
)
def test_one_program_may_be_a_script(bench, line):
    script = f"{line}\nprint qq($0 @ARGV\\n); system '/bin/true'; print $? == -1 ? 'refused' : 'started';\n"
    run = bench.run("./script", "a b", files={"script": script}, allow_exec=False)
    assert "./script a b" in run.output.splitlines()
    assert run.output.splitlines()[-1] == "refused"
    assert run.ended.exit_code == 0


def test_one_program_that_does_not_exist_is_not_found(bench):
    for files in ({}, {"script": "#!/no/such/interpreter\n"}, {"script": "#!/usr/bin/env no-such\n"}):
        assert bench.run("./script", files=files, allow_exec=False).kind == "not_found"


def test_exec_control_is_named_among_the_layers(bench):
    assert "one_program" in bench.sh("true", allow_exec=False).ended.enforced_layers
    assert "one_program" not in bench.sh("true").ended.enforced_layers


def test_a_storm_of_refused_calls_slows_itself_down(bench):
    run = bench.perl("my $n = 0; my $end = time + 2; while (time < $end) { syscall 101, 0, 0, 0, 0; $n++ } print $n")
    assert run.kind == "exited"
    assert 100 < int(run.output) < 2500


def test_a_storm_does_not_hold_up_the_deadline(bench):
    script = "for (1 .. 20) { fork } while (1) { syscall 101, 0, 0, 0, 0 }"
    assert bench.perl(script, timeout_seconds=1.0, limits=Limits(processes=40)).kind == "timeout"


def test_egress_gives_no_interface(bench):
    run = bench.perl(
        TRY + CONNECT + "internet(world => 443, 203, 0, 113, 9); internet(loopback => 22, 127, 0, 0, 1);",
        egress=Egress(("*",)),
    )
    assert results(run) == {"world": "ENETUNREACH", "loopback": "ECONNREFUSED"}
