"""Measures whole lifecycles a second over HTTP, every step of them durable.

Lifecycles of five, three and two calls in each layout of the server, and batch calls in the best layout. The scheduler
process runs, as it does beside every server.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from benchmarks import processors, servers, tenants
from benchmarks.callers import Unexpected, WorkerCaller
from benchmarks.environment import Cluster
from benchmarks.histogram import Tally
from benchmarks.load import LoadPlan, begun
from benchmarks.peers import environment
from benchmarks.sizes import Sizes

FLOWS = {"five": "lifecycles", "three": "three_calls", "two": "two_calls"}
UNKNOWN_LEASE = "rtl_00000000000000000000000000"


def measure(cluster: Cluster, sizes: Sizes, _before: dict[str, Any]) -> dict[str, Any]:
    """Return `lifecycles_per_s` by number of calls in the best layout for five, which is `layout`, and `layouts`.

    `layouts` has the rates and the milliseconds of a core of each layout, `bulk_lifecycles_per_s` those of batch calls.
    """
    tenant = tenants.settled("lifecycles", organizations=["acme"], workers=sizes.clients)
    layouts = {layout: _layout(cluster, sizes, tenant, layout) for layout in sizes.layouts}
    best = max(layouts, key=lambda layout: layouts[layout]["five"]["rate"] or 0)
    with servers.serving(cluster, best, libraries=libraries(cluster, best)) as server, servers.scheduler(cluster):
        bulk = load(cluster, sizes, tenant, server, "many")
    return {
        "lifecycles_per_s": {calls: flow["rate"] for calls, flow in layouts[best].items()},
        "bulk_lifecycles_per_s": bulk["rate"],
        "layout": best,
        "layouts": layouts,
        "bulk": bulk,
    }


def _layout(cluster: Cluster, sizes: Sizes, tenant: tenants.Tenants, layout: str) -> dict[str, Any]:
    """Return the result of each flow; `rate` is None for one that this server does not support."""
    found: dict[str, Any] = {}
    with servers.serving(cluster, layout, libraries=libraries(cluster, layout)) as server, servers.scheduler(cluster):
        for calls, flow in FLOWS.items():
            if calls == "two" and not knows_claim_next(server, tenant.workers[0]):
                found[calls] = {"rate": None, "missing": "this server does not know `claim_next`"}
            else:
                found[calls] = load(cluster, sizes, tenant, server, flow)
    return found


def knows_claim_next(server: servers.Serving, worker: tuple[str, str]) -> bool:
    """Return whether `complete` accepts `claim_next`: the lease is unknown, so any answer but 400 means that."""
    tally = Tally.of(warmup=0, seconds=60)
    caller = WorkerCaller(worker, server.address.host, server.address.port, tally)

    async def probe() -> bool:
        try:
            await caller.complete_and_claim(UNKNOWN_LEASE)
        except Unexpected:
            return not any(surprise.startswith("complete 400") for surprise in tally.surprises)
        finally:
            caller.connection.close()
        return True

    return asyncio.run(probe())


def load(cluster: Cluster, sizes: Sizes, tenant: tenants.Tenants, server: servers.Serving, flow: str) -> dict[str, Any]:
    """Return the tally, and `processor_ms`: the time that a lifecycle takes of a core in the server and in PostgreSQL.

    Other work on the machine lowers a rate, and hardly changes that.
    """
    running = begun(_plan(server, sizes, tenant, flow))
    time.sleep(sizes.warmup + sizes.seconds / 4)  # all connections are open
    used = processors.Used({"server": server.pids, "PostgreSQL": processors.of_postgres(cluster)})
    time.sleep(sizes.seconds / 2)
    busy = used.shares()
    tally = running.tally()
    each = {name: round(busy[name] / tally["rate"] * 1000, 2) for name in used.kinds} if tally["rate"] else None
    return tally | {"processors": busy, "processor_ms": each}


def _plan(server: servers.Serving, sizes: Sizes, tenant: tenants.Tenants, flow: str) -> LoadPlan:
    return LoadPlan(
        flow,
        server.address.host,
        server.address.port,
        sizes.bulk_clients if flow == "many" else sizes.clients,
        seconds=sizes.seconds,
        warmup=0 if flow == "many" else sizes.warmup,
        workers=tenant.workers,
        token=tenant.tokens["acme"],
        bodies=[tenants.body("acme")],
    )


def libraries(cluster: Cluster, layout: str) -> list[Any]:
    """Return the folders of packages that a layout needs beside our own environment."""
    return [] if layout.startswith("asgi") else [environment.tools(cluster.state)]
