"""The tracer in front of a job, and the programs that a sandbox needs.

The format of the trace. strace writes one record per line, `PID SECONDS.MICROSECONDS call(arguments) = result`, with
the options of `STRACE_OPTIONS` and the calls of `TRACED_CALLS`, or of `NETWORK_CALLS` only:

- PID is the id in the worker's own pid namespace, filled up to five columns with spaces on its right. What fork, vfork
  and clone *return* is the id inside the sandbox (with `bubblewrap` they differ, with `restricted` they are equal).
  A translation by strace costs 2 ms a fork. Both grow in the same order, so the n-th smallest id returned belongs to
  the n-th smallest PID: threads count too, and the first PID of the trace is the command itself (inside: 2).
- `+++ exited with N +++` and `+++ killed by SIGX +++` come for every process and thread; `--- SIGX {...} ---` for
  every signal but those of `UNREMARKABLE_SIGNALS`. A call interrupted by another process is `call(... <unfinished ...>`
  and later `<... call resumed>...) = result`.
- The engine drops what comes before the command's first `execve`, all lines of bwrap outside of the sandbox, and the
  end of the sandbox's pid 1. Any other line of pid 1 is passed on: its filter allows it nothing that is traced.
  So the first line is that `execve` (or `execveat(FD</path>, "", ..., AT_EMPTY_PATH)` when `allow_exec` is false).
- Calls that the seccomp filter refuses never reach strace. Those that `seccomp_notify` answers come as lines of the
  same form, written by the worker.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from pathlib import Path

from workers.engines.contract import EngineUnavailable, TraceLevel
from workers.engines.seccomp import ARCHITECTURE

NETWORK_CALLS = (
    # programs and processes
    "execve", "execveat", "fork", "vfork", "clone", "clone3", "memfd_create",
    "chdir", "fchdir",  # where the names of programs begin
    # network; the names of DNS queries are in the bytes of sendto, sendmsg and sendmmsg to port 53
    "socket", "connect", "bind", "listen", "accept", "accept4", "sendto", "sendmsg", "sendmmsg",
    # signals to others
    "kill", "tkill", "tgkill",
)  # fmt: skip
TRACED_CALLS = (
    *NETWORK_CALLS,
    # files
    "open", "openat", "openat2", "creat", "truncate", "unlink", "unlinkat", "rmdir", "rename", "renameat", "renameat2",
    "link", "linkat", "symlink", "symlinkat", "mkdir", "mkdirat", "mknod", "mknodat", "chmod", "fchmodat", "fchmodat2",
    "chown", "lchown", "fchownat",
)  # fmt: skip

# They do not end a process by default, and are frequent.
UNREMARKABLE_SIGNALS = ("SIGCHLD", "SIGURG", "SIGWINCH", "SIGCONT")

_OPTIONS = (
    "-f", "--seccomp-bpf",
    "-q",  # not -qq: how each process ended is part of the report, and costs nothing measurable
    "-ttt", "-y", "-s", "1024", "-a", "1",
    "-e", "signal=!" + ",".join(UNREMARKABLE_SIGNALS),
)  # fmt: skip


def _strace_options(calls: tuple[str, ...]) -> tuple[str, ...]:
    return (*_OPTIONS, "-e", "trace=" + ",".join("?" + call for call in calls))  # "?": older straces do not know all


STRACE_OPTIONS = _strace_options(TRACED_CALLS)

TOOL_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def tool_path(name: str) -> str:
    """Return the full path of a program that the sandbox needs.

    Raises:
        EngineUnavailable: The program is not installed.
    """
    found = shutil.which(name, path=TOOL_PATH)
    if not found:
        raise EngineUnavailable(f"{name} is not installed")
    return found


def missing_tools(*names: str) -> list[str]:
    """Return what this machine lacks of these programs and of those that every sandbox needs, for an operator."""
    found = []
    for name in (*names, "strace", "setpriv", "prlimit", "perl", "rm"):
        try:
            tool_path(name)
        except EngineUnavailable as error:
            found.append(str(error))
    if os.uname().machine != ARCHITECTURE:
        found.append(f"system calls are filtered on {ARCHITECTURE} only, this is {os.uname().machine}")
    return found


def with_strace(fifo: Path, level: TraceLevel) -> list[str]:
    """Return a command prefix that traces into `fifo`; it is empty without a trace."""
    if level is TraceLevel.NONE:
        return []
    options = STRACE_OPTIONS if level is TraceLevel.FULL else _strace_options(NETWORK_CALLS)
    return [tool_path("strace"), *options, "-o", str(fifo), "--"]


@functools.cache
def versions(*names: str) -> str:
    """Return programs with their versions, such as "bubblewrap 0.8.0, strace 6.1"."""
    found = []
    for name in names:
        output = subprocess.run(
            [tool_path(name), "--version"], env={}, check=False, capture_output=True, text=True
        ).stdout
        words = output.split("\n", 1)[0].split()
        found.append(f"{words[0]} {words[-1]}" if words else name)
    return ", ".join(found)
