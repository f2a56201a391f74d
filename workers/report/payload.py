"""The body of `POST /v1/ingest/run`: the frame of the four lists, their caps, and the limit of its size."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from workers.engines.contract import RunResult, RunSpec
from workers.report.payload_items import MAX_ATTEMPTS, MAX_FILES, MAX_FINDINGS, MAX_PROCESSES, Item
from workers.report.processes import TracedProcess

MAX_BYTES = 1_000_000  # of the body as sent; ingest takes 1 MiB
CAPS = {
    "processes": MAX_PROCESSES,
    "files": MAX_FILES,
    "network_attempts": MAX_ATTEMPTS,
    "suspicious_activity": MAX_FINDINGS,
}

_OPTIONAL = ("git_ref", "pull_request_number", "working_directory", "trigger_actor", "retry_of_job_id")

# Kinds of the engine that `run.v1` does not have; they are reported as the cause.
_CAUSES = frozenset({"stopped", "out_of_memory", "too_many_processes", "disk_full", "worker_disk_full"})


def encoded(payload: Item) -> bytes:
    """Return canonical JSON: sorted keys, no blanks, UTF-8. The digest is of these bytes, and they are sent."""
    return json.dumps(payload, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def sealed(payload: Item) -> Item:
    """Return the payload with `payload_sha256`: the digest of the canonical form without it."""
    return {**payload, "payload_sha256": hashlib.sha256(encoded(payload)).hexdigest()}


def fitted(payload: Item, lists: Mapping[str, tuple[list[Item], int]]) -> Item:
    """Return the payload with its four lists, shortened evenly until it is under `MAX_BYTES`.

    Args:
        payload: The frame.
        lists: For each name the items and their true total.
    """
    share = 1.0
    while True:
        capped = {name: _capped(items, total, int(CAPS[name] * share)) for name, (items, total) in lists.items()}
        whole = sealed({**payload, **capped})
        if len(encoded(whole)) <= MAX_BYTES or share < 0.01:
            return whole
        share *= 0.7


def _capped(items: Sequence[Item], total: int, cap: int) -> Item:
    kept = list(items[:cap])
    total = max(total, len(items))
    return {"items": kept, "total": total, "truncated": len(kept) < total}


def identified(metadata: Mapping[str, Any], result: RunResult, spec: RunSpec, *, started: str, finished: str) -> Item:
    """Return the `metadata` of a run: the identity of the job, and its sandbox."""
    sandbox = {
        "tool_version": result.tool_version,
        "allow_network": spec.egress is not None,
        "allow_exec": spec.allow_exec,
        "timeout_seconds": spec.timeout_seconds,
        "trace_only": False,
        "enforced_layers": list(result.enforced_layers),
    }
    times = {"started_at": started, "finished_at": finished}
    return {**dict.fromkeys(_OPTIONAL), **metadata, "sandbox": sandbox, **times}


def resources(result: RunResult, spec: RunSpec) -> Item:
    """Return peaks and limits (a peak of null was not measured), and the size of the output."""
    peaks, limits = result.resources, spec.limits
    return {
        "peaks": {
            "memory_bytes": peaks.memory_bytes,
            "processes": peaks.processes,
            "disk_bytes": peaks.disk_bytes,
            "cpu_seconds": peaks.cpu_seconds,
        },
        "limits": {
            "memory_bytes": limits.memory_bytes,
            "processes": limits.processes,
            "disk_bytes": limits.disk_bytes,
            "cpu_percent": limits.cpu_percent,
            "output_bytes": limits.output_bytes,
            "trace_bytes": limits.trace_bytes,
            "timeout_seconds": spec.timeout_seconds,
        },
        "output": {"bytes": result.output_bytes, "truncated": result.output_bytes > limits.output_bytes},
    }


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
        return "tracer_outside" in result.enforced_layers
    return result.trace_truncated and root.ended_at is None
