"""On what it was measured: without that no figure means anything."""

from __future__ import annotations

import os
import platform
import re
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.environment import Cluster

COMMITS = 300
SHOWN = ("fsync", "full_page_writes", "synchronous_commit", "shared_buffers", "max_wal_size")


def described(cluster: Cluster) -> dict[str, Any]:
    """Processor, memory, versions, PostgreSQL's settings, and what a commit takes on this disk."""
    memory = re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())
    with cluster.superuser() as connection:
        settings = {name: connection.execute(f"SHOW {name}").fetchone()[0] for name in SHOWN}  # type: ignore[index]
        version = connection.info.server_version
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(int(memory[1]) / (1 << 20), 1) if memory else None,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "postgresql": f"{version // 10000}.{version % 10000}",
        "settings": settings,
        "commit_ms": _commit(cluster),
        "load_before": round(os.getloadavg()[0], 1),
    }


def _processor() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else platform.machine()


def _commit(cluster: Cluster) -> float:
    """Median milliseconds of a transaction that writes one row, from one client."""
    took = []
    with cluster.superuser() as connection:
        connection.execute("DROP TABLE IF EXISTS commits")
        connection.execute("CREATE TABLE commits (n integer)")
        for number in range(COMMITS):
            began = time.perf_counter()
            connection.execute("INSERT INTO commits VALUES (%s)", [number])
            took.append(time.perf_counter() - began)
        connection.execute("DROP TABLE commits")
    return round(median(took) * 1000, 3)
