"""Measures the processor time of each call over HTTP: of the server's Python, and of PostgreSQL's backends.

One client sends one call after the other to one process of the server (`asgi-1`). Around each call the time of all
threads of that process and of all backends of the database is read. An empty answer of the same server is the measure
of its Python; a lifecycle of four commits on narrow tables (`benchmarks.minimal`), sent by one client of pgbench in
turns with ours, is the measure of its SQL. Statements, round trips and bytes of WAL are counted in a process of its
own (`benchmarks.checkout_process`), where libpq's trace has each message.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from statistics import mean, median
from typing import Any

from benchmarks import checkouts, minimal, processors, servers, tenants
from benchmarks.callers import COMPLETED
from benchmarks.checkouts import Figures
from benchmarks.environment import OURS, Cluster
from benchmarks.peers_runner import ratio
from benchmarks.sizes import Sizes
from benchmarks.wire import Connection
from config.paths import BASE_DIR

LAYOUT = "asgi-1"
EMPTY = "/healthz"  # answered without a token and without the database
COUNTED_ROUNDS = 15
WARM_UP = 10  # lifecycles, until all statements are prepared
BACKENDS = "SELECT pid FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid() AND backend_type = %s"


class CostMeter:
    """Sends calls one after the other. `records`: (operation, milliseconds of Python and of PostgreSQL) in order."""

    def __init__(self, server: servers.Serving, cluster: Cluster, tenant: tenants.Tenants) -> None:
        self.pids, self.cluster, self.tenant = server.pids, cluster, tenant
        self.connection = Connection(server.address.host, server.address.port)
        self.records: list[tuple[str, dict[str, float]]] = []
        self.backends: list[int] = []

    async def lifecycles(self, rounds: int) -> Figures:
        """Return the figures of so many lifecycles of five calls, and of as many empty answers."""
        self.records = []
        self._find_backends()
        worker_id, worker_token = self.tenant.workers[0]
        offer = {"worker_id": worker_id, "job_types": ["steps"], "acknowledge": True}
        for _ in range(rounds):
            await self._call("submit", "/v1/jobs", tenants.body("acme"), self.tenant.tokens["acme"])
            lease = await self._call("claim", "/v1/runtime/leases", offer, worker_token)
            path = f"/v1/runtime/leases/{lease['lease_id']}/"
            await self._call("acknowledge", f"{path}acknowledge", {}, worker_token)
            await self._call("heartbeat", f"{path}heartbeat", {"phase": "executing"}, worker_token)
            await self._call("complete", f"{path}complete", COMPLETED, worker_token)
            await self._call("empty", EMPTY, None, "")
        return checkouts.summarized(self.records, jobs=1, mode="timed")

    def _find_backends(self) -> None:
        with self.cluster.superuser() as superuser:
            self.backends = [row[0] for row in superuser.execute(BACKENDS, [OURS, "client backend"]).fetchall()]

    async def _call(self, name: str, path: str, body: Any, token: str) -> Any:
        python = processors.settled_seconds_of(self.pids)
        postgres = processors.settled_seconds_of(self.backends)
        exchange = self.connection.get(path) if body is None else self.connection.post(path, body, token=token)
        status, answer = await exchange
        if status not in {200, 201}:
            raise RuntimeError(f"{name}: {status} {answer}")
        spent = processors.settled_seconds_of(self.pids) - python
        figures = {"python_ms": spent * 1000}
        figures["postgres_ms"] = (processors.settled_seconds_of(self.backends) - postgres) * 1000
        self.records.append((name, figures))
        return answer


def measure(cluster: Cluster, sizes: Sizes, _before: dict[str, Any]) -> dict[str, Any]:
    """Return the ratios, `statements`, `trips` and `wal_kb`, and all else as `costs`; see `summary`."""
    tenant = tenants.settled("costs", organizations=["acme"], workers=1)
    minimal.create(cluster)
    slices, least = [], []
    with servers.serving(cluster, LAYOUT) as server:
        meter = CostMeter(server, cluster, tenant)
        for _ in range(sizes.cost_slices):
            found, milliseconds = asyncio.run(_slice(meter, cluster, sizes))
            slices.append(found)
            least.append(milliseconds)
    counts, timed = in_process(sizes)
    return summary(slices, least, counts) | {"heartbeat_vs_floor": vs_floor(timed)}


async def _slice(meter: CostMeter, cluster: Cluster, sizes: Sizes) -> tuple[Figures, float]:
    """Return the figures of a slice, and the milliseconds of a minimal lifecycle just after."""
    await meter.lifecycles(WARM_UP)
    found = await meter.lifecycles(sizes.cost_rounds)
    meter.connection.close()
    return found, await asyncio.to_thread(minimal.lifecycle_ms, cluster, seconds=sizes.cost_seconds)


def summary(slices: list[Figures], least: list[float], counts: dict[str, Figures]) -> dict[str, Any]:
    """Return the medians of the slices, and the ratios as medians of the ratios within each slice.

    Args:
        slices: Milliseconds by operation, over HTTP.
        least: Milliseconds of a minimal lifecycle, next to each slice.
        counts: Counts by operation, of each scenario that this checkout supports.
    """
    calls: dict[str, dict[str, float]] = defaultdict(dict)
    for operation, row in slices[0].items():
        for name in row:
            calls[operation][name] = round(median(one[operation][name] for one in slices), 3)
    heartbeat = median(one["heartbeat"]["python_ms"] / one["empty"]["python_ms"] for one in slices)
    postgres = median(
        one["lifecycle"]["postgres_ms"] / minimal_ms for one, minimal_ms in zip(slices, least, strict=True)
    )
    five = counts.get("five", {}).get("lifecycle", {})
    return {
        "heartbeat_vs_empty": round(heartbeat, 2),
        "postgres_vs_minimal": round(postgres, 2),
        "statements": five.get("statements"),
        "trips": five.get("trips"),
        "wal_kb": ratio(five.get("wal_bytes"), 1000),
        "costs": {"calls": calls, "minimal_ms": round(mean(least), 3), "counts": counts},
    }


def vs_floor(timed: Figures) -> float | None:
    """Return the processor time of a heartbeat ÷ that of a call with a token, a thread and no operation."""
    return ratio(timed.get("heartbeat", {}).get("python_ms"), timed.get("floor", {}).get("python_ms"))


def in_process(sizes: Sizes) -> tuple[dict[str, Figures], Figures]:
    """Measure this checkout in a process of its own, which calls the application without a network.

    Returns:
        Statements, round trips and bytes of WAL of each operation, by number of calls of a lifecycle; and the
        processor times of a lifecycle of five calls.
    """
    found: dict[str, Figures] = {}
    timed: Figures = {}
    with checkouts.started(BASE_DIR, name="this") as checkout:
        checkout.read()
        for scenario in ("five", "three", "two"):
            try:
                checkout.slice(scenario, "timed", WARM_UP)
                found[scenario] = checkout.slice(scenario, "counted", COUNTED_ROUNDS)
                timed = timed or checkout.slice(scenario, "timed", sizes.cost_rounds)
            except checkouts.MeasuredCheckoutFailed:  # two calls need `claim_next`
                continue
    return found, timed
