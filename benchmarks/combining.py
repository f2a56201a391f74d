"""Measures lifecycles by the number of clients: concurrent calls of one route share their cost.

One `serve` process, the default layout. All clients submit with one token, so that 256 of them also show how many calls
of one tenant may wait.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks import lifecycles, servers, tenants
from benchmarks.environment import Cluster
from benchmarks.sizes import Sizes

CLIENTS = (1, 16, 64, 256)
LAYOUT = "asgi-1"


def measure(cluster: Cluster, sizes: Sizes, _before: dict[str, Any]) -> dict[str, Any]:
    """Return `combining`: the tally of each flow by the number of clients.

    `one_token` is the rate of five calls with 256 clients divided by that with 64.
    """
    tenant = tenants.settled("combining", organizations=["acme"], workers=max(CLIENTS))
    found: dict[str, dict[int, Any]] = {calls: {} for calls in lifecycles.FLOWS}
    with servers.serving(cluster, LAYOUT) as server, servers.scheduler(cluster):
        for clients in CLIENTS:
            for calls, flow in lifecycles.FLOWS.items():
                found[calls][clients] = lifecycles.load(cluster, replace(sizes, clients=clients), tenant, server, flow)
    rates = {clients: tally["rate"] for clients, tally in found["five"].items()}
    return {"combining": found, "one_token": round(rates[256] / rates[64], 2) if rates[64] else None}
