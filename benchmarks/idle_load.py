"""Measures waiting claims: the time from a submit to its lease with few of them, and the cost of thousands."""

from __future__ import annotations

from typing import Any

from benchmarks import waiting
from benchmarks.environment import Cluster
from benchmarks.sizes import Sizes

FEW = 16


def measure(cluster: Cluster, sizes: Sizes, _before: dict[str, Any]) -> dict[str, Any]:
    """Return `latency_ms` (p50, p99, max) on an idle system, `submit_ms` of it the submit alone, and `idle_polls`.

    `idle_polls`: what so many long polls cost, and the latency among them.
    """
    few = waiting.measure(database_url=cluster.url(), waiters=FEW, jobs=sizes.latencies, idle_seconds=1)
    cluster.emptied()
    many = waiting.measure(database_url=cluster.url(), waiters=sizes.polls, jobs=sizes.latencies // 4)
    return {"latency_ms": few["latency_ms"], "submit_ms": few["submit_ms"], "idle_polls": many}
