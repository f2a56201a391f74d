"""The self-test at the worker's start: small jobs that attack their sandbox, and must fail to."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from workers.engines.bubblewrap.backend import BubblewrapBackend
from workers.engines.contract import (
    EgressPolicy,
    EngineUnavailable,
    RunLimits,
    RunResult,
    RunSpec,
    SandboxFailed,
    Sink,
    StopSignal,
)
from workers.engines.limits import disk
from workers.engines.sandbox.launcher import PERL, Launcher
from workers.engines.sandbox.pumps import trace_fifo
from workers.engines.sandbox.run_dirs import RunEnvironment

_SELFTEST = Path(__file__).with_name("self_test.pl").read_text("utf-8")
_LIMITS = Path(__file__).with_name("self_test_limits.pl").read_text("utf-8")
_SECONDS = 60.0  # a busy machine needs more than ten, and a worker must not refuse for that
_DEATH_SECONDS = 10.0  # likewise: the reaper and strace need the processor, each in its turn
_DISK_BYTES = 16 << 20
_EPERM = str(errno.EPERM)
_STALE_SECONDS = 60  # the time between making a directory and locking it is far shorter

Run = Callable[[RunSpec, Sink, Sink, StopSignal], RunResult]

_NO = {"EPERM", "EACCES", "EROFS", "EAFNOSUPPORT", "ENOSPC"}
_WANTED: dict[str, tuple[set[str], str]] = {
    "user_namespace": (_NO, "a job can make a user namespace"),
    "vsock": (_NO, "a job can open a socket to the hypervisor"),
    "internet": ({"ENETUNREACH"}, "a job reaches the network"),
    "outside": (_NO | {"ENOENT"}, "a job can read a file of the machine"),
    "core_pattern": (_NO, "a job can set the machine's core_pattern"),
    "system": (_NO, "a job can write into the system"),
    "root": (_NO, "a job can write beside its workspace"),
    "exec": ({"EPERM"}, "a job that may not start programs can"),
    "above_state": (_NO, "a job can read the registers of the process above it"),
    "above_memory": (_NO, "a job can write into the memory of the process above it"),
    "above_write": (_NO, "a job can write into another process"),
    "above_limits": (_NO, "a job can set limits of the process above it"),
}
_FILTERS_OF_INIT = 2  # the tracer's, which every process inherits, and its own


@dataclass(frozen=True)
class EngineUnderTest:
    """The parts of an engine that the checks use."""

    run: Run
    owner: Callable[[int], int | None]
    slot: int
    directory: Callable[[int, Path, RunLimits], Path]
    close_volume: Callable[[int], None]
    has_init: bool  # jobs have a pid 1 of their own
    scopes_signals: bool  # Landlock keeps them from signalling processes outside of the job


_PREFIX = "runtime-orchestrator-check-"


@contextlib.contextmanager
def workspace(owner: int | None) -> Iterator[Path]:
    """Make a temporary workspace that the slot's uid can reach. Removes those of workers that were killed meanwhile."""
    _remove_stale(Path(tempfile.gettempdir()))
    place = Path(tempfile.mkdtemp(prefix=_PREFIX))
    try:
        with _held(place):
            place.chmod(0o711)
            (place / "job").mkdir()
            if owner is not None:
                os.chown(place / "job", owner, owner)
            yield place / "job"
    finally:
        disk.remove_tree(place)


@contextlib.contextmanager
def _held(place: Path) -> Iterator[None]:
    """Lock a directory while this process lives. Raises BlockingIOError when another process has the lock."""
    handle = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


def _remove_stale(folder: Path) -> None:
    for place in folder.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            found = place.lstat()
            if found.st_uid == os.geteuid() and time.time() - found.st_mtime > _STALE_SECONDS:
                with _held(place):
                    disk.remove_tree(place)


def check_isolation(subject: EngineUnderTest) -> list[str]:
    """Attack the isolation of a job. Returns what a job can do and must not; empty if nothing."""
    with workspace(None) as other:
        outside = other.with_name("outside")
        outside.write_text("not for jobs")
        outside.chmod(0o644)
        command = (PERL, "-e", _SELFTEST, str(outside))
        result, output, trace = _run(subject, command, allow_exec=False, egress=EgressPolicy(()))
    results = dict(line.partition(" ")[::2] for line in output.splitlines())
    found = [f"{words} ({name}: {results.get(name)})" for name, words in _failed(results)]
    uid = str(subject.owner(subject.slot) or os.geteuid())
    checks = {
        f"the command did not run to its end: {result.kind}, {output[-300:]!r}": result.exit_code == 0,
        f"the command runs as {results.get('uid')}": results.get("uid") == f"{uid} {uid}",
        f"a job has capabilities: {results.get('capabilities')}": results.get("capabilities") == "none",
        f"a job can read the table of mounts: {results.get('mounts')}": results.get("mounts") == "0",
        "the environment of pid 1 is readable": results.get("environment") == "0",
        f"descriptors leak into the job: {results.get('descriptors')}": results.get("descriptors", "0,1,2") == "0,1,2",
        "calls of another architecture are not killed": results.get("foreign_call") == "31",
        f"the egress proxy does not answer: {results.get('egress')}": results.get("egress") == "405",
        "the tracer saw nothing": b"execveat(" in trace and b"unshare(" in trace,
        "a job can signal the process above it": not subject.scopes_signals or results.get("above_signal") == _EPERM,
    }
    if subject.has_init:
        checks |= {
            "pid 1 of a sandbox is not filtered": int(results.get("above_filters", 0)) >= _FILTERS_OF_INIT,
            "pid 1 of a sandbox is dumpable": results.get("above_owner") not in (uid, None),
        }
    return found + [words for words, holds in checks.items() if not holds]


def _failed(results: dict[str, str]) -> list[tuple[str, str]]:
    def name(number: str) -> str:
        return errno.errorcode.get(int(number), number) if number.isdigit() else number

    return [(key, words) for key, (wanted, words) in _WANTED.items() if name(results.get(key, "nothing")) not in wanted]


def check_limits(subject: EngineUnderTest) -> list[str]:
    """Exceed the limits of processes and memory. Returns the limits that are not enforced."""
    limits = replace(RunLimits(), memory_bytes=64 << 20, processes=16)
    result, output, _ = _run(subject, (PERL, "-e", _LIMITS, "memory", "48", str(512 << 20)), limits=limits)
    checks = {
        "the limit of processes does not hold": "processes refused" in output,
        f"the limit of memory does not hold ({result.kind})": "memory\n" in output and "memory taken" not in output,
    }
    return [words for words, holds in checks.items() if not holds]


def check_disk_limits(subject: EngineUnderTest) -> list[str]:
    """Test whether a job can keep more disk than its limit in files that have no name, or more files than its limit."""
    limits = replace(RunLimits(), disk_bytes=_DISK_BYTES)
    with workspace(None) as place:
        try:
            return [words for what in ("bytes", "files") if (words := _fill_disk(subject, place.parent, limits, what))]
        finally:
            subject.close_volume(subject.slot)  # no job runs in this slot, and its mount point is about to be removed


def _fill_disk(subject: EngineUnderTest, folder: Path, limits: RunLimits, what: str) -> str:
    output = bytearray()
    job = subject.directory(subject.slot, folder, limits) / "disk"
    job.mkdir(mode=0o700)
    if (owner := subject.owner(subject.slot)) is not None:
        os.chown(job, owner, owner)
    argv = (PERL, "-e", _LIMITS, what, str(_DISK_BYTES))
    spec = RunSpec(argv, job, subject.slot, _SECONDS, limits=limits)
    result = subject.run(spec, output.extend, lambda _: None, StopSignal())
    disk.remove_tree(job)
    if result.kind == "disk_full":
        return ""
    return f"the limit of disk {what} does not hold ({result.kind}: {output[-200:]!r})"


def _run(subject: EngineUnderTest, argv: tuple[str, ...], **details: object) -> tuple[RunResult, str, bytes]:
    output, trace = bytearray(), bytearray()
    with workspace(subject.owner(subject.slot)) as place:
        spec = RunSpec(argv=argv, workspace=place, slot=subject.slot, timeout_seconds=_SECONDS)
        result = subject.run(replace(spec, **details), output.extend, trace.extend, StopSignal())  # type: ignore[arg-type]  # fields of RunSpec
    return result, output.decode("utf-8", "replace"), bytes(trace)


# Acts as the worker and is the only holder of the lifeline: the sandbox must die with it. It asks for a signal (prctl)
# at the death of the worker itself, which may be killed in the middle of the check.
_FAKE_PARENT = (
    "my $lifeline = shift; syscall 157, 1, 9, 0, 0, 0; syscall 72, $lifeline + 0, 2, 1; fork or exec @ARGV; "
    "sleep 1 while 1"
)


def check_parent_death(environment: RunEnvironment, backend: BubblewrapBackend) -> list[str]:
    """Kill the parent of a sandbox with SIGKILL. `environment` has been entered. Returns what went wrong."""
    launcher = Launcher(backend.launch_spec())
    fifo, reader, hold = trace_fifo(environment.trace, environment.uid)
    command, passed = backend.command(launcher, fifo)
    passed.append(backend.reaper.hand_over())
    fake_parent = subprocess.Popen(
        [PERL, "-e", _FAKE_PARENT, str(passed[-1]), *command], env={}, cwd="/", pass_fds=[*passed, *launcher.passed],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    launcher.started()
    for descriptor in passed:
        os.close(descriptor)
    try:
        if not launcher.wait_until_ready(fake_parent, lambda: False):
            return ["the sandbox does not start"]
        backend.is_ready()
        fake_parent.kill()
        poll = select.poll()
        poll.register(backend.init or 0, select.POLLIN)
        return [] if poll.poll(_DEATH_SECONDS * 1000) else ["a sandbox survives the death of its worker"]
    finally:
        backend.kill()
        fake_parent.kill()
        fake_parent.wait()
        backend.close(fake_parent)
        launcher.close()
        os.close(reader)
        os.close(hold)


def run_checks(*checks: Callable[[], list[str]]) -> tuple[str, ...]:
    """Run the checks until one finds something. A sandbox that does not start is a finding, too."""
    try:
        for check in checks:
            if found := check():
                return tuple(found)
    except (EngineUnavailable, SandboxFailed, OSError) as error:
        return (f"the sandbox does not start: {error}",)
    return ()
