"""Rules about programs, signals and the walls of the sandbox. Each returns what to say about its fact, or None."""

from __future__ import annotations

import posixpath

from workers.report.events import AttemptEvent, DeathEvent, ExecEvent, TraceCut
from workers.report.rules.context import RuleContext

_SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh", "ksh", "busybox"})
_INSTALLERS = frozenset(
    {"npm", "npm-cli.js", "npx", "npx-cli.js", "pnpm", "pnpm.cjs", "yarn", "yarn.js", "yarnpkg", "bun"}
    | {"pip", "pip3", "uv", "poetry", "gem", "bundle", "composer"}
)
_HANDLES = ("/proc/self/fd/", "/dev/fd/")
_TO_EVERYONE, _TO_INIT = "-1", "1"


def exec_from_temporary(case: RuleContext[ExecEvent]) -> str | None:
    return _was_attempted(case.fact) if case.ground.is_temporary(case.fact.path) else None


def exec_refused(case: RuleContext[ExecEvent]) -> str | None:
    """EPERM is the sandbox's word: a file that cannot be executed answers EACCES."""
    return case.ground.shown(case.fact.path) if case.fact.errno == "EPERM" else None


def exec_from_memory(case: RuleContext[ExecEvent]) -> str | None:
    return _was_attempted(case.fact) if case.fact.unnamed or case.fact.path.startswith(_HANDLES) else None


def install_script(case: RuleContext[ExecEvent]) -> str | None:
    """Asked before the execve changes the process: what it was until now, by inheritance, is who starts the shell."""
    execution = case.fact
    is_shell = posixpath.basename(execution.path) in _SHELLS
    if execution.errno or not is_shell or not case.program.is_one_of(_INSTALLERS):
        return None
    return " ".join(execution.argv) or execution.path


def sandbox_escape(case: RuleContext[AttemptEvent]) -> str | None:
    attempt = case.fact
    if attempt.call in {"kill", "socket"}:
        return None
    return f"{attempt.call}({', '.join(attempt.words)}) ({attempt.errno or 'granted'})"


def kill_outside(case: RuleContext[AttemptEvent]) -> str | None:
    """Signals to everyone, to the sandbox's own first process, and to what refuses them; 0 only asks who is there."""
    attempt = case.fact
    if attempt.call != "kill" or len(attempt.words) < 2 or attempt.words[1] == "0":
        return None
    if attempt.words[0] in {_TO_EVERYONE, _TO_INIT} or attempt.errno == "EPERM":
        return f"kill({attempt.words[0]}, {attempt.words[1]}) ({attempt.errno or 'granted'})"
    return None


def bad_syscall(case: RuleContext[DeathEvent]) -> str | None:
    if case.fact.signal != "SIGSYS":
        return None
    return f"{case.ground.shown(case.program.path)} (SIGSYS)" if case.program.path else "SIGSYS"


def trace_cut(case: RuleContext[TraceCut]) -> str | None:
    return f"{case.fact.size} bytes"


def _was_attempted(execution: ExecEvent) -> str:
    return f"{execution.path} ({execution.errno})" if execution.errno else execution.path
