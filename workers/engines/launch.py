"""The row of small programs in front of a job: join the cgroups, take the limits, drop the uid, die with the worker, trace.

For whoever reads traces. strace writes one record per line, `PID SECONDS.MICROSECONDS call(arguments) = result`, with
the options of `STRACE_OPTIONS` and the calls of `TRACED_CALLS`:

- PID is the id in the worker's own pid namespace. What fork, vfork and clone *return* is the id inside the sandbox
  (with `bubblewrap` they differ, with `restricted` they are equal). Asking strace to translate costs 2 ms a fork.
  Both grow in the same order, so the n-th smallest id returned belongs to the n-th smallest PID: threads count too, and
  the first PID of the trace is the command itself (inside: 2 with `bubblewrap`).
- `+++ exited with N +++` and `+++ killed by SIGX +++` stand for every process and thread; `--- SIGX {...} ---` for
  every signal but those of `UNREMARKABLE_SIGNALS`. A call cut by another process is `call(... <unfinished ...>` and
  later `<... call resumed>...) = result`.
- The engine drops what comes before the command's first `execve`, and all lines of the sandbox's own two processes.
  So the first line is that `execve` (or `execveat(FD</path>, "", ..., AT_EMPTY_PATH)` when `allow_exec` is false).
- Calls that the sandbox refuses by its own seccomp filter never reach strace, but those that `notices.py` answers: they
  come as lines of the same form, made by the worker.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from workers.engines.base import EngineUnavailable, Limits

TRACED_CALLS = (
    # programs and processes
    "execve", "execveat", "fork", "vfork", "clone", "clone3", "memfd_create",
    # network; the names that are looked up stand in the bytes of sendto, sendmsg and sendmmsg to port 53
    "socket", "connect", "bind", "listen", "accept", "accept4", "sendto", "sendmsg", "sendmmsg",
    # files
    "open", "openat", "openat2", "creat", "truncate", "unlink", "unlinkat", "rmdir", "rename", "renameat", "renameat2",
    "link", "linkat", "symlink", "symlinkat", "mkdir", "mkdirat", "mknod", "mknodat", "chmod", "fchmodat", "fchmodat2",
    "chown", "lchown", "fchownat", "chdir", "fchdir",
    # signals to others
    "kill", "tkill", "tgkill",
)  # fmt: skip

# Never end a process by themselves, and come by the thousand.
UNREMARKABLE_SIGNALS = ("SIGCHLD", "SIGURG", "SIGWINCH", "SIGCONT")

STRACE_OPTIONS = (
    "-f", "--seccomp-bpf",
    "-q",  # not -qq: how each process ended is part of the report, and costs nothing measurable
    "-ttt", "-y", "-s", "1024", "-a", "1",
    "-e", "signal=!" + ",".join(UNREMARKABLE_SIGNALS),
    "-e", "trace=" + ",".join("?" + call for call in TRACED_CALLS),  # "?": older straces do not know all of them
)  # fmt: skip
