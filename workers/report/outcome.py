"""The outcome of a run in the terms of `run.v1`, from the result of the engine and from the trace."""

from __future__ import annotations

from typing import Any

from workers.engines.contract import RunResult
from workers.report.processes import TracedProcess

# Kinds of the engine that `run.v1` does not have; they are reported as the cause.
_CAUSES = frozenset({"stopped", "out_of_memory", "too_many_processes", "disk_full", "worker_disk_full"})


def outcome_of(result: RunResult, root: TracedProcess | None) -> dict[str, Any]:
    """Return `{kind, exit_code, signal, cause}`. Kinds: exited, signaled, timeout, exec_failed, trace_incomplete."""
    signal = result.signal or (root.signal if root else None)
    return {
        "kind": _kind(result, root, signal),
        "exit_code": None if root and root.signal else result.exit_code,
        "signal": signal,
        "cause": result.kind if result.kind in _CAUSES else None,
    }


def _kind(result: RunResult, root: TracedProcess | None, signal: str | None) -> str:
    if result.kind == "timeout":  # the supervisor's decision counts, however the command ended
        return "timeout"
    if result.kind == "not_found":
        return "exec_failed"
    if _is_blind(result, root):
        return "trace_incomplete"
    return "signaled" if signal else "exited" if result.exit_code is not None else "trace_incomplete"


def _is_blind(result: RunResult, root: TracedProcess | None) -> bool:
    """Report whether the trace was cut before the command ended, or is missing where a tracer was promised."""
    if root is None:
        return "ptrace" in result.enforced_layers
    return result.trace_truncated and root.ended_at is None
