"""Measures whole lifecycles a second over HTTP, every step of them durable.

Single calls in each layout of the server, and batch calls in the best of them. The scheduler process runs, as it does
beside every server.
"""

from __future__ import annotations

import time
from typing import Any

from benchmarks import processors, servers, tenants
from benchmarks.environment import Stage
from benchmarks.load import LoadPlan, begun
from benchmarks.peers import environment
from benchmarks.sizes import Sizes


def measure(stage: Stage, sizes: Sizes, _before: dict[str, Any]) -> dict[str, Any]:
    """`lifecycles_per_s`, `bulk_lifecycles_per_s`, `layout` (the best), `layouts` (rate and milliseconds of each)."""
    crew = tenants.settled("lifecycles", organizations=["acme"], workers=sizes.clients)
    told = {layout: _played(stage, sizes, crew, layout, "lifecycles") for layout in sizes.layouts}
    best = max(told, key=lambda layout: told[layout]["rate"] or 0)
    bulk = _played(stage, sizes, crew, best, "many")
    return {
        "lifecycles_per_s": told[best]["rate"],
        "bulk_lifecycles_per_s": bulk["rate"],
        "layout": best,
        "layouts": told,
        "bulk": bulk,
    }


def _played(stage: Stage, sizes: Sizes, crew: tenants.Tenants, layout: str, flow: str) -> dict[str, Any]:
    """Return the tally, and `processor_ms`: what a lifecycle takes of a core in the server and in PostgreSQL.

    Other work on the machine lowers a rate, and hardly changes that.
    """
    with servers.serving(stage, layout, libraries=libraries(stage, layout)) as server, servers.clock(stage):
        load = begun(_plan(server, sizes, crew, flow))
        time.sleep(sizes.warmup + sizes.seconds / 4)  # all connections are open
        used = processors.Used({"server": server.pids, "PostgreSQL": processors.of_postgres(stage)})
        time.sleep(sizes.seconds / 2)
        busy = used.told()
        told = load.tally()
    each = {name: round(busy[name] / told["rate"] * 1000, 2) for name in used.kinds} if told["rate"] else None
    return told | {"processors": busy, "processor_ms": each}


def _plan(server: servers.Serving, sizes: Sizes, crew: tenants.Tenants, flow: str) -> LoadPlan:
    return LoadPlan(
        flow,
        server.address.host,
        server.address.port,
        sizes.clients if flow == "lifecycles" else sizes.bulk_clients,
        seconds=sizes.seconds,
        warmup=sizes.warmup if flow == "lifecycles" else 0,
        workers=crew.workers,
        token=crew.tokens["acme"],
        bodies=[tenants.body("acme")],
    )


def libraries(stage: Stage, layout: str) -> list[Any]:
    return [] if layout.startswith("asgi") else [environment.tools(stage.state)]
