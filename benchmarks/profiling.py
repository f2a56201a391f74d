"""Profiles claims, lifecycles, and lifecycles by batch calls.

Which processes use the processor, what the server's Python does (py-spy: who holds the interpreter's lock), and the
time of PostgreSQL's functions by its own count. These are shares, not speeds: the profiler costs something too.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import processors, servers, tenants
from benchmarks.environment import OURS, Cluster
from benchmarks.lifecycles import libraries
from benchmarks.load import LoadPlan, begun
from benchmarks.peers import environment
from benchmarks.sizes import Sizes

FLOWS = ("claims", "lifecycles", "many")
SHOWN = 40
# The first that is found from the inside of a stack out says whose time it is.
OWNERS = {
    "psycopg": ("psycopg", "psycopg_pool"),
    "Django's ORM": ("django/db",),
    "REST framework": ("rest_framework",),
    "Django's handling of requests": ("django/", "asgiref", "whitenoise", "csp/"),
    "the product": ("orchestrator/", "leases/", "runtime_jobs/", "workers/"),
    "the server": ("uvicorn", "granian", "asyncio"),
}
MILESTONES = (
    *("(orchestrator/", "(leases/", "(runtime_jobs/", "(workers/"),
    *("SQLCompiler.as_sql (", "APIView.dispatch (", "SyncToAsync.__call__ (", "AsyncToSync.__call__ ("),
)
FUNCTIONS = """SELECT funcname, calls, round(total_time::numeric, 1)::float
                 FROM pg_stat_user_functions WHERE calls > 0 ORDER BY 3 DESC"""


def measure(cluster: Cluster, sizes: Sizes, before: dict[str, Any]) -> dict[str, Any]:
    """Return `profiles` by flow.

    Processors used by each kind of process, shares of the server's Python by owner and by function, milliseconds by SQL
    function.
    """
    with cluster.superuser() as connection:
        connection.execute(f"ALTER DATABASE {OURS} SET track_functions = 'all'")
    try:
        return {"profiles": {flow: _seen(cluster, sizes, before.get("layout", "asgi-1"), flow) for flow in FLOWS}}
    finally:
        with cluster.superuser() as connection:
            connection.execute(f"ALTER DATABASE {OURS} RESET track_functions")


def _seen(cluster: Cluster, sizes: Sizes, layout: str, flow: str) -> dict[str, Any]:
    program = environment.tools(cluster.state) / "bin" / "py-spy"
    raw = cluster.logs / f"profile-{flow}.txt"
    plan = _plan(sizes, flow)
    with cluster.superuser() as connection:
        connection.execute("SELECT pg_stat_reset()")
    with servers.serving(cluster, layout, libraries=libraries(cluster, layout)) as server, servers.scheduler(cluster):
        load = begun(replace(plan, host=server.address.host, port=server.address.port))
        time.sleep(1)
        kinds = {"server": server.pids, "clients": [load.process.pid], "PostgreSQL": processors.of_postgres(cluster)}
        used = processors.Used(kinds)
        time.sleep(sizes.seconds / 3)
        busy = used.shares()
        _record(program, server.pids[0], sizes.seconds / 2, raw)
        result = load.tally()
    seen = {"layout": layout, "per_s": result["rate"], "processors": busy, "functions": _functions(cluster)}
    return seen | _read(raw)


def _plan(sizes: Sizes, flow: str) -> LoadPlan:
    """By workers and tenants of its own. For claims enough waits; else the clients submit."""
    only_claims = flow == "claims"
    tenant = tenants.settled(
        f"profile-{flow}", organizations=[] if only_claims else [flow], workers=128 if only_claims else sizes.clients
    )
    if only_claims:
        tenants.fill(flow, tenant.pool, int(sizes.filled * (sizes.seconds + 2)))
    return LoadPlan(
        flow,
        "",
        0,
        sizes.bulk_clients if flow == "many" else sizes.clients,
        seconds=sizes.seconds + 1,
        workers=tenant.workers,
        token=tenant.tokens.get(flow, ""),
        bodies=[tenants.body(flow)],
    )


def _record(program: Path, pid: int, seconds: float, raw: Path) -> None:
    options = ["--duration", str(max(2, round(seconds))), "--rate", "100", "--format", "raw", "--output", str(raw)]
    command = [str(program), "record", *options, "--nonblocking", "--gil", "--pid", str(pid)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds + 60, env=os.environ)
    if result.returncode:
        sys.stderr.write(f"py-spy: {result.stderr.strip()[-300:]}\n")


def _read(raw: Path) -> dict[str, Any]:
    """Return shares of samples by owner and by function.

    `owners`: whose the innermost frame is. `within`: in which of our functions, and in which milestones of the
    libraries, the time was spent, with all that they call; so these overlap.
    """
    owners: Counter[str] = Counter()
    within: Counter[str] = Counter()
    for row in raw.read_text().splitlines():
        stack, _, number = row.rpartition(" ")
        frames = [frame.rpartition(":")[0] for frame in stack.split(";")]
        owners[_owner(frames)] += int(number)
        within.update({frame: int(number) for frame in frames if any(mark in frame for mark in MILESTONES)})
    samples = sum(owners.values()) or 1
    return {
        "samples": samples,
        "owners": {name: round(number / samples, 3) for name, number in owners.most_common()},
        "within": {f"{name})": round(number / samples, 3) for name, number in within.most_common(SHOWN)},
    }


def _owner(frames: list[str]) -> str:
    for frame in reversed(frames):
        for name, places in OWNERS.items():
            if any(place in frame for place in places):
                return name
    return "the rest"


def _functions(cluster: Cluster) -> dict[str, dict[str, float]]:
    with cluster.superuser() as connection:
        rows = connection.execute(FUNCTIONS).fetchall()
    return {
        name: {"calls": calls, "total_ms": total, "each_ms": round(total / calls, 3)} for name, calls, total in rows
    }
