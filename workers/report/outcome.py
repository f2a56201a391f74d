"""How a run ended, in the words of `run.v1`: from what the engine says and what the trace shows."""

from __future__ import annotations

from typing import Any

from workers.engines.contract import RunResult
from workers.report.processes import TracedProcess

# What an engine may say beyond the words of the contract; kept beside them as the cause.
_CAUSES = frozenset({"stopped", "out_of_memory", "too_many_processes", "disk_full", "worker_disk_full"})


def outcome_of(result: RunResult, root: TracedProcess | None) -> dict[str, Any]:
    """`{kind, exit_code, signal, cause}`. Kinds: exited, signaled, timeout, exec_failed, trace_incomplete."""
    signal = result.signal or (root.signal if root else None)
    return {
        "kind": _kind(result, root, signal),
        "exit_code": None if root and root.signal else result.exit_code,
        "signal": signal,
        "cause": result.kind if result.kind in _CAUSES else None,
    }


def _kind(result: RunResult, root: TracedProcess | None, signal: str | None) -> str:
    if result.kind == "timeout":  # the watchdog's word stands, however the command took it
        return "timeout"
    if result.kind == "not_found":
        return "exec_failed"
    if _is_blind(result, root):
        return "trace_incomplete"
    return "signaled" if signal else "exited" if result.exit_code is not None else "trace_incomplete"


def _is_blind(result: RunResult, root: TracedProcess | None) -> bool:
    """Whether the trace was cut before the command ended, or is missing where a tracer was promised."""
    if root is None:
        return "ptrace" in result.enforced_layers
    return result.trace_truncated and root.ended_at is None
