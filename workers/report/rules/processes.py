"""Rules about programs, signals and the limits of the sandbox. Each returns the detail of the finding, or None."""

from __future__ import annotations

import posixpath

from workers.report.events import AttemptEvent, DeathEvent, ExecEvent, TraceCutEvent
from workers.report.rules.context import RuleContext

_SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh", "ksh", "busybox"})
_INSTALLERS = frozenset(
    {"npm", "npm-cli.js", "npx", "npx-cli.js", "pnpm", "pnpm.cjs", "yarn", "yarn.js", "yarnpkg", "bun"}
    | {"pip", "pip3", "uv", "poetry", "gem", "bundle", "composer"}
)
_HANDLES = ("/proc/self/fd/", "/dev/fd/")
_TO_EVERYONE, _TO_INIT = "-1", "1"


def exec_from_temporary(context: RuleContext[ExecEvent]) -> str | None:
    """Find programs in temporary directories."""
    return _was_attempted(context.event) if context.paths.is_temporary(context.event.path) else None


def exec_refused(context: RuleContext[ExecEvent]) -> str | None:
    """Find programs that the sandbox refused: it answers EPERM, and EACCES is for a file that is not executable."""
    return context.paths.shown(context.event.path) if context.event.errno == "EPERM" else None


def exec_from_memory(context: RuleContext[ExecEvent]) -> str | None:
    """Find programs without a file."""
    return _was_attempted(context.event) if context.event.unnamed or context.event.path.startswith(_HANDLES) else None


def install_script(context: RuleContext[ExecEvent]) -> str | None:
    """Find shells that package managers start; the process still has its program from before the execve."""
    execution = context.event
    is_shell = posixpath.basename(execution.path) in _SHELLS
    if execution.errno or not is_shell or not context.program.is_one_of(_INSTALLERS):
        return None
    return " ".join(execution.argv) or execution.path


def sandbox_escape(context: RuleContext[AttemptEvent]) -> str | None:
    """Find calls that try to leave the sandbox."""
    attempt = context.event
    if attempt.call in {"kill", "socket"}:
        return None
    return f"{attempt.call}({', '.join(attempt.words)}) ({attempt.errno or 'granted'})"


def kill_outside(context: RuleContext[AttemptEvent]) -> str | None:
    """Find signals to all processes, to pid 1, and to targets that refuse them; signal 0 is only a test."""
    attempt = context.event
    if attempt.call != "kill" or len(attempt.words) < 2 or attempt.words[1] == "0":
        return None
    if attempt.words[0] in {_TO_EVERYONE, _TO_INIT} or attempt.errno == "EPERM":
        return f"kill({attempt.words[0]}, {attempt.words[1]}) ({attempt.errno or 'granted'})"
    return None


def bad_syscall(context: RuleContext[DeathEvent]) -> str | None:
    """Find processes that were killed for a forbidden call."""
    if context.event.signal != "SIGSYS":
        return None
    return f"{context.paths.shown(context.program.path)} (SIGSYS)" if context.program.path else "SIGSYS"


def trace_cut(context: RuleContext[TraceCutEvent]) -> str | None:
    """Find traces that are cut."""
    return f"{context.event.size} bytes"


def _was_attempted(execution: ExecEvent) -> str:
    return f"{execution.path} ({execution.errno})" if execution.errno else execution.path
