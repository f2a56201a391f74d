"""Verdicts, disk, lines about answered calls, and the row of programs: the parts that need no sandbox."""

import contextlib
import errno
import os
import re
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.workers.engines.conftest import whole_calls
from workers.engines.contract import SandboxFailed, StopSignal, TraceLevel
from workers.engines.limits import disk
from workers.engines.limits.cgroups import CgroupUsage
from workers.engines.sandbox import command, processes
from workers.engines.sandbox.exit_status import Observation, classify_exit
from workers.engines.sandbox.reaper import Reaper
from workers.engines.tracing import strace_format
from workers.engines.tracing.seccomp_notify import BURST, RATE, NotifyHandler, SyscallRequest, SyscallResponse


@pytest.mark.parametrize(
    ("seen", "verdict"),
    [
        (Observation(exit_code=0), ("exited", 0, None)),
        (Observation(exit_code=137), ("exited", 137, None)),
        (Observation(killed_by="SIGSEGV"), ("signaled", None, "SIGSEGV")),
        (Observation(), ("signaled", None, "SIGKILL")),
        (Observation(reason="timeout", exit_code=0), ("timeout", 0, None)),
        (Observation(reason="stopped", killed_by="SIGTERM"), ("stopped", None, "SIGTERM")),
        (Observation(reason="disk_full", killed_by="SIGKILL"), ("disk_full", None, "SIGKILL")),
        (Observation(reason="stopped", failure=errno.ENOENT), ("stopped", None, None)),
        (Observation(failure=errno.ENOENT, exit_code=127), ("not_found", None, None)),
        (Observation(exit_code=0, usage=CgroupUsage(out_of_memory_kills=1)), ("exited", 0, None)),
        (Observation(exit_code=2, usage=CgroupUsage(out_of_memory_kills=1)), ("out_of_memory", 2, None)),
        (
            Observation(killed_by="SIGKILL", usage=CgroupUsage(out_of_memory_kills=1)),
            ("out_of_memory", None, "SIGKILL"),
        ),
        (Observation(exit_code=0, usage=CgroupUsage(refused_forks=5)), ("exited", 0, None)),
        (Observation(exit_code=1, usage=CgroupUsage(refused_forks=5)), ("too_many_processes", 1, None)),
        (
            Observation(exit_code=1, usage=CgroupUsage(refused_forks=5, out_of_memory_kills=1)),
            ("out_of_memory", 1, None),
        ),
        (
            Observation(reason="timeout", killed_by="SIGKILL", usage=CgroupUsage(refused_forks=5)),
            ("timeout", None, "SIGKILL"),
        ),
        (Observation(killed_by="SIGXFSZ"), ("disk_full", None, "SIGXFSZ")),
    ],
)
def test_what_was_seen_becomes_one_verdict(seen, verdict):
    assert classify_exit(seen) == verdict


def test_disk_counts_blocks_once_and_everything_a_little(tmp_path):
    (tmp_path / "big").write_bytes(b"x" * 100_000)
    os.link(tmp_path / "big", tmp_path / "again")
    with (tmp_path / "sparse").open("wb") as sparse:
        sparse.truncate(1 << 30)
    (tmp_path / "link").symlink_to("/usr")
    (tmp_path / "folder").mkdir()
    assert 100_000 + 3 * 4096 <= disk.tree_use([tmp_path], 100).bytes < 100_000 + 5 * 4096


def test_disk_does_not_fail_on_what_goes_away(tmp_path):
    assert disk.tree_use([tmp_path / "gone"], 100) == disk.DiskUse()


def test_erase_removes_any_depth_and_mode_and_follows_no_link(tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("stays")
    doomed = tmp_path / "doomed"
    doomed.mkdir()
    (doomed / "out").symlink_to(kept)
    (doomed / "closed" / "inner").mkdir(parents=True)
    (doomed / "closed" / "inner" / "file").write_text("")
    (doomed / "closed").chmod(0)
    script = "chdir shift; for (1 .. 60) { mkdir 'd' x 100; chdir 'd' x 100 }"
    subprocess.run(["perl", "-e", script, doomed], check=True)
    assert disk.remove_tree(doomed)
    assert (kept / "file").read_text() == "stays"
    assert disk.remove_tree(doomed), "a second call changes nothing"


class Memory(SyscallRequest):
    """A question whose memory is a dictionary."""

    def memory(self, address, size):
        return _PAGES.get(address, b"")[:size]


_PAGES = {
    0x10: b'/bin/"x"\n\x00\xff\x07rest', 0x100: b"/bin/ls\0",
    0x20: (0x100).to_bytes(8, "little") + (0x10).to_bytes(8, "little") + bytes(8),
    0x30: b"\x02\x00\x01\xbb\xcb\x00\x71\x07" + bytes(8),
    0x40: b"\x0a\x00\x00\x35" + bytes(4) + bytes(15) + b"\x01" + bytes(4),
    0x50: b"\x01\x00/run/x\0junk", 0x60: b"\x01\x00\0abstract",
}  # fmt: skip


def test_a_line_about_an_answered_call_has_strace_s_form():
    line = strace_format.format_denied_call(
        Memory(1, 77, "reboot", (0,) * 6), SyscallResponse(error=errno.EPERM)
    ).decode()
    assert re.fullmatch(r"77    \d{10}\.\d{6} reboot\((0x0, ){5}0x0\) = -1 EPERM \(Operation not permitted\)", line)


@pytest.mark.parametrize(
    ("call", "arguments", "response", "text"),
    [
        ("socket", (2, 1 | 0x80000 | 0x800, 6), SyscallResponse(value=5), "socket(AF_INET, SOCK_STREAM|SOCK_CLOEXEC|SOCK_NONBLOCK, 6) = 5"),
        ("socket", (40, 1), SyscallResponse(error=97), "socket(AF_VSOCK, SOCK_STREAM, 0) = -1 EAFNOSUPPORT (Address family not supported by protocol)"),
        ("socket", (99, 9), SyscallResponse(error=97), "socket(0x63 /* AF_??? */, 0x9 /* SOCK_??? */, 0) = -1 EAFNOSUPPORT (Address family not supported by protocol)"),
        ("connect", (3, 0x30, 16), SyscallResponse(error=101), 'connect(3, {sa_family=AF_INET, sin_port=htons(443), sin_addr=inet_addr("203.0.113.7")}, 16) = -1 ENETUNREACH (Network is unreachable)'),
        ("connect", (3, 0x40, 28), SyscallResponse(), 'connect(3, {sa_family=AF_INET6, sin6_port=htons(53), sin6_flowinfo=htonl(0), inet_pton(AF_INET6, "::1", &sin6_addr), sin6_scope_id=0}, 28) = 0'),
        ("connect", (3, 0x50, 110), SyscallResponse(error=13), 'connect(3, {sa_family=AF_UNIX, sun_path="/run/x"}, 110) = -1 EACCES (Permission denied)'),
        ("connect", (3, 0x60, 12), SyscallResponse(error=13), 'connect(3, {sa_family=AF_UNIX, sun_path=@"abstract"}, 12) = -1 EACCES (Permission denied)'),
        ("connect", (3, 0x999, 16), SyscallResponse(error=13), "connect(3, 0x999, 16) = -1 EACCES (Permission denied)"),
        ("mount", (0x100, 0, 0x10, 4096, 0), SyscallResponse(error=1), r'mount("/bin/ls", NULL, "/bin/\"x\"\n", 0x1000, 0x0, 0x0) = -1 EPERM (Operation not permitted)'),
        ("ptrace", (16, 5), SyscallResponse(error=1), "ptrace(0x10, 0x5, 0x0, 0x0, 0x0, 0x0) = -1 EPERM (Operation not permitted)"),
        ("execveat", (-100, 0x100, 0x20, 0, 0x1000), SyscallResponse(error=1), r'execveat(AT_FDCWD, "/bin/ls", ["/bin/ls", "/bin/\"x\"\n"], 0x0, 0x1000) = -1 EPERM (Operation not permitted)'),
    ],
)  # fmt: skip
def test_arguments_are_shown_as_strace_shows_them(call, arguments, response, text):
    request = Memory(1, 2**22, call, (*(value & (1 << 64) - 1 for value in arguments), *[0] * (6 - len(arguments))))
    assert strace_format.format_denied_call(request, response).decode("latin-1").split(" ", 2)[2] == text


def test_the_worker_reads_the_memory_of_another():
    script = (
        "my $text = 'read me' . \"\\0\" x 9000; print unpack('Q', pack 'p', $text), \"\\n\"; $| = 1; print ''; <STDIN>"
    )
    with subprocess.Popen(["perl", "-e", f"$| = 1; {script}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        address = int(other.stdout.readline())
        request = SyscallRequest(1, other.pid, "x", ())
        assert request.text(address) == b"read me"
        assert len(request.memory(address, 8000)) == 8000
        assert request.memory(0, 10) == b""
        assert request.memory(2**64 - 8, 64) == b""
        other.stdin.close()


def test_answers_slow_down_after_a_burst(monkeypatch):
    naps, now = [], [0.0]
    monkeypatch.setattr("workers.engines.tracing.seccomp_notify.time.monotonic", lambda: now[0])
    monkeypatch.setattr("workers.engines.tracing.seccomp_notify.time.sleep", naps.append)
    reader, writer = os.pipe()
    notify_handler = NotifyHandler(reader, {}, lambda *_: None)
    for _ in range(BURST):
        notify_handler._limit_rate()
    assert naps == []
    notify_handler._limit_rate()
    assert naps == [1 / RATE]
    now[0] += 100
    for _ in range(BURST - 2):
        notify_handler._limit_rate()
    assert len(naps) == 1
    for descriptor in (reader, writer, notify_handler._stop_reader, notify_handler._stop_writer):
        os.close(descriptor)


@dataclass
class Outside:
    """A process of the sandbox that is outside of its namespaces, such as the tracer."""

    name: str
    status: dict[str, list[str]]
    limits: dict[str, list[str]]
    groups: str
    parent: str


def outside(pid: int) -> Outside:
    place = Path(f"/proc/{pid}")
    status = {
        row[0]: row[1].split() for row in (line.split(":", 1) for line in (place / "status").read_text().splitlines())
    }
    limits = {line[:26].strip(): line[26:].split()[:2] for line in (place / "limits").read_text().splitlines()[1:]}
    parent = (Path("/proc") / status["PPid"][0] / "comm").read_text().strip()
    return Outside(status["Name"][0], status, limits, (place / "cgroup").read_text(), parent)


@contextlib.contextmanager
def supplementary_group() -> Iterator[None]:
    """Give this process a group that a job must not have."""
    before = os.getgroups()
    os.setgroups([*before, 4242])
    try:
        yield
    finally:
        os.setgroups(before)


@pytest.mark.parametrize("level", [TraceLevel.FULL, TraceLevel.NONE])
def test_the_reaper_gives_up_every_right_before_it_starts_a_program(bench, level):
    """The tracer parses what a hostile program chose: it has the user, the limits and the group of the job."""
    found = []

    def look(_: bytes) -> None:
        (reaper,) = (
            one for one in processes.descendants(os.getpid()) if one.pid not in before and one.parent == os.getpid()
        )
        found.extend(outside(one.pid) for one in processes.descendants(reaper.pid) if one.parent == reaper.pid)

    before = {process.pid for process in processes.descendants(os.getpid())}
    spec = bench.spec("sh", "-c", "echo on; sleep 0.5", trace=level)
    uid = bench.engine.owner(0)
    with supplementary_group() if uid is not None else contextlib.nullcontext():
        bench.engine.run(spec, output=look, trace=len, stop=StopSignal())
    (first,) = found
    assert first.name == (
        "strace" if level is TraceLevel.FULL else "bwrap" if bench.engine.name == "bubblewrap" else "sh"
    )
    if uid is not None:
        assert (first.status["Uid"], first.status["Gid"], first.status["Groups"]) == (
            [str(uid)] * 4,
            [str(uid)] * 4,
            [],
        )
        assert first.status["CapBnd"] == ["0" * 16]
        assert all(f"/uid-{uid}-" in first.groups for _ in bench.engine.hierarchy.parents)
    assert [first.status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")] == [["0" * 16]] * 4
    assert first.status["NoNewPrivs"] == ["1"]
    limits = spec.limits
    assert {name: first.limits[name] for name in ("Max core file size", "Max open files", "Max file size")} == {
        "Max core file size": ["0", "0"], "Max open files": ["1024", "4096"],
        "Max file size": [str(limits.disk_bytes)] * 2,
    }  # fmt: skip
    assert [first.limits[name] for name in ("Max locked memory", "Max msgqueue size", "Max realtime priority")] == [
        ["65536", "65536"], ["0", "0"], ["0", "0"],
    ]  # fmt: skip


def test_a_group_that_cannot_be_joined_is_no_job(bench, monkeypatch):
    start = Reaper.command
    monkeypatch.setattr(
        Reaper, "command", lambda *given, **named: start(*given, **named | {"entrances": [Path("/proc/version")]})
    )
    with pytest.raises(SandboxFailed, match="reaper: /proc/version"):
        bench.run("true")


def test_strace_filters_in_the_kernel():
    assert "--seccomp-bpf" in command.with_strace(Path("/fifo"), TraceLevel.FULL)
    assert command.with_strace(Path("/fifo"), TraceLevel.NONE) == []


def test_versions_are_reported():
    assert re.fullmatch(r"bubblewrap 0\.\S+, strace \S+", command.versions("bwrap", "strace"))


def test_a_name_with_parentheses_does_not_confuse_the_reader_of_processes():
    with subprocess.Popen(
        ["perl", "-e", "$0 = 'a) R 1 (b'; $| = 1; print 'x'; sleep 60"], stdout=subprocess.PIPE
    ) as child:
        child.stdout.read(1)
        process = processes.read(child.pid)
        assert (process.pid, process.parent) == (child.pid, os.getpid())
        assert child.pid in [found.pid for found in processes.descendants(os.getpid())]
        child.kill()


def test_a_signal_does_not_hit_a_later_process_of_the_same_number():
    with subprocess.Popen(["sleep", "60"]) as child:
        process = processes.read(child.pid)
        stranger = processes.HostProcess(process.pid, process.parent, process.born + 1, process.state)
        processes.send(stranger, processes.signal.SIGKILL)
        assert child.poll() is None
        processes.send(process, processes.signal.SIGKILL)
        assert child.wait(5) == -9
    processes.send(process, processes.signal.SIGKILL)


def test_a_private_directory_is_closed_to_others(bench):
    spec = bench.spec("sh", "-c", "sleep 0.3; echo x")
    seen = []

    def look(_):
        private = spec.workspace.with_name(spec.workspace.name + ".private")
        seen.extend((path.name, stat.S_IMODE(path.stat().st_mode), path.stat().st_uid) for path in private.iterdir())

    bench.engine.run(spec, output=look, trace=bytes, stop=StopSignal())
    owner = bench.engine.owner(0)
    owner = os.geteuid() if owner is None else owner
    assert sorted(seen) == [("home", 0o700, owner), ("tmp", 0o700, owner), ("trace", 0o700, owner)]


def test_measuring_ends_when_the_job_has(tmp_path):
    for name in "abc":
        (tmp_path / name).mkdir()
    asked = []
    disk.tree_use([tmp_path], 100, lambda: asked.append(1) or len(asked) > 2)
    assert len(asked) == 3


def test_what_a_test_sees_of_a_trace_are_whole_calls():
    """Under load strace printed an `execveat` of a neighbour in two parts; a test that looked for both found neither."""
    trace = (
        '7 1.1 execveat(3</memfd:hidden>(deleted), "" <unfinished ...>\n'
        "8 1.2 getpid() = 8\n"
        "7 1.3 <... execveat resumed>) = 0\n"
        '8 1.4 unlink("x" <unfinished ...>\n'
    )
    assert whole_calls(trace) == [
        "8 1.2 getpid() = 8",
        '7 1.1 execveat(3</memfd:hidden>(deleted), "") = 0',
        '8 1.4 unlink("x"',
    ]
