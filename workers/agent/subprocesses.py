"""Runs a program whose process group dies with the worker, at its deadline, and on request.

The kernel's parent-death signal reaches one process only, so it goes to a small shell that then kills its group.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

TAIL_BYTES = 8192
TICK_SECONDS = 0.2
GONE_SECONDS = 5.0
# $1 is the worker's pid. If it died before the parent-death signal was set, the signal would never come.
SHELL = 'trap "kill -KILL 0" TERM; [ "$PPID" = "$1" ] || exit 1; shift; "$@" & wait $!'


@dataclass(frozen=True)
class CommandLimits:
    """The limits of the program, per process."""

    file_bytes: int
    memory_bytes: int
    cpu_seconds: int


@dataclass(frozen=True)
class CompletedCommand:
    """The end of a program. `kill_reason` is None if it ended by itself; `tail` is the end of its output."""

    code: int
    tail: str
    kill_reason: str | None = None


def run_bound(
    command: Sequence[str],
    *,
    folder: Path,
    environment: Mapping[str, str],
    owner: int | None,
    limits: CommandLimits,
    watch: Callable[[], str | None],
) -> CompletedCommand:
    """Run a program until it ends or has to end.

    Call it from a thread that outlives it: the parent-death signal counts the thread, not the process.

    Args:
        command: The program and its arguments.
        folder: Its working directory.
        environment: Its variables.
        owner: The uid and gid that it runs as; None: ours.
        limits: Its limits.
        watch: Returns why the program must end, or None.
    """
    process = subprocess.Popen(
        [*_dropped(owner), *_limited(limits), "/bin/sh", "-c", SHELL, "tether", str(os.getpid()), *command],
        cwd=folder,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    with process:
        tail, kill_reason = _follow(process, watch)
        # Still unreaped, so no other group can have this number yet.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
    _wait_group_gone(process.pid)
    return CompletedCommand(code, tail.decode(errors="replace"), kill_reason)


def _follow(process: subprocess.Popen[bytes], watch: Callable[[], str | None]) -> tuple[bytes, str | None]:
    assert process.stdout is not None  # noqa: S101 - a pipe was asked for
    output, tail = process.stdout.fileno(), b""
    handle = os.pidfd_open(process.pid)
    poll = select.poll()  # select() takes no descriptor above 1023
    poll.register(output, select.POLLIN)
    poll.register(handle, select.POLLIN)
    try:
        while True:
            ready = dict(poll.poll(TICK_SECONDS * 1000))
            if ready.get(output, 0) & select.POLLIN:
                tail = (tail + os.read(output, 1 << 16))[-TAIL_BYTES:]
            if handle in ready:
                return _drained(output, tail), None
            if output in ready and not ready[output] & select.POLLIN:
                poll.unregister(output)  # all writers have closed it: poll would return at once from now on
            if kill_reason := watch():
                return tail, kill_reason
    finally:
        os.close(handle)


def _wait_group_gone(group: int) -> None:
    """Return when no process of the group is left: a process ends some time after SIGKILL."""
    until = time.monotonic() + GONE_SECONDS
    while time.monotonic() < until:
        try:
            os.killpg(group, 0)
        except (ProcessLookupError, PermissionError):  # gone, or a later group with the same number
            return
        time.sleep(TICK_SECONDS / 20)


def _drained(output: int, tail: bytes) -> bytes:
    """Read what is available; another process may still have the other end open."""
    poll = select.poll()
    poll.register(output, select.POLLIN)
    while poll.poll(0):
        piece = os.read(output, 1 << 16)
        if not piece:
            break
        tail = (tail + piece)[-TAIL_BYTES:]
    return tail


def _dropped(owner: int | None) -> list[str]:
    drop = [_program("setpriv"), "--no-new-privs", "--inh-caps=-all", "--pdeathsig", "TERM"]
    if owner is not None and os.geteuid() == 0:
        drop += [f"--reuid={owner}", f"--regid={owner}", "--clear-groups", "--bounding-set=-all"]
    return [*drop, "--"]


def _limited(limits: CommandLimits) -> list[str]:
    return [
        _program("prlimit"),
        f"--fsize={limits.file_bytes}",
        f"--as={limits.memory_bytes}",
        f"--cpu={limits.cpu_seconds}",
        "--core=0",
        "--nofile=1024",
        "--",
    ]


def _program(name: str) -> str:
    return shutil.which(name) or f"/usr/bin/{name}"


def deadline_watch(deadline: float, *further: Callable[[], str | None]) -> Callable[[], str | None]:
    """Return a watch with the result `time` after `deadline` (monotonic), or the first result of `further` ones."""

    def watch() -> str | None:
        if time.monotonic() >= deadline:
            return "time"
        return next((reason for reason in (watch() for watch in further) if reason), None)

    return watch
