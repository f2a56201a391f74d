"""Measures nine tenants with ten jobs each beside one with very many, some of which ran already.

Every job takes a quarter of a second. Under the fair policy the nine end as if they were alone; under strict FIFO they
wait for all earlier jobs. The figures are seconds, and the position of their last job in the order of claims, which no
other load on the machine can change: of ten equal shares it is 100 where nine alone have 90.
"""

from __future__ import annotations

from typing import Any

from benchmarks import servers, tenants
from benchmarks.environment import Cluster
from benchmarks.lifecycles import libraries
from benchmarks.load import LoadPlan, loaded
from benchmarks.sizes import Sizes

NINE = {f"small-{number}": 10 for number in range(9)}
WORKERS = 8
HELD = 0.25  # seconds that a job takes
SEEN_ENOUGH = 3  # times the claims that the nine need alone, then they did not get their share
HEAD_START = 3 * WORKERS  # claims of the many before the nine come
WITHIN = 120.0


def measure(cluster: Cluster, sizes: Sizes, before: dict[str, Any]) -> dict[str, Any]:
    """Return `fairness`, for each scenario and as multiples of the nine alone under the fair policy.

    `place` is the position of the nine's last claim, `seconds` the time until they had all ended (None: they had not
    after ten times the claims).
    """
    layout = before.get("layout", "asgi-1")
    alone = _pool_served(cluster, layout, "alone", policy="fair", crowd=0)
    fair = _pool_served(cluster, layout, "fair", policy="fair", crowd=sizes.crowd)
    fifo = _pool_served(cluster, layout, "fifo", policy="fifo", crowd=sizes.crowd)
    return {
        "fairness": {
            "crowd": sizes.crowd,
            "alone": alone,
            "fair": fair,
            "fifo": fifo,
            "fair_place_vs_alone": _times(fair["place"], alone["place"]),
            "fair_seconds_vs_alone": _times(fair["seconds"], alone["seconds"]),
            "fifo_place_vs_alone": _times(fifo["place"], alone["place"]),
        }
    }


def _times(one: float | None, other: float | None) -> float | None:
    return round(one / other, 2) if one and other else None


def _pool_served(cluster: Cluster, layout: str, pool: str, *, policy: str, crowd: int) -> dict[str, Any]:
    cluster.emptied()
    tenant = tenants.settled(pool, organizations=[], workers=WORKERS, policy=policy)
    tenants.fill("crowd", pool, crowd)
    with servers.serving(cluster, layout, libraries=libraries(cluster, layout)) as server:
        host, port = server.address.host, server.address.port
        if crowd:
            loaded(LoadPlan("drain", host, port, WORKERS, seconds=WITHIN, workers=tenant.workers, jobs=HEAD_START))
        for org, jobs in NINE.items():
            tenants.fill(org, pool, jobs)
        enough = sum(NINE.values()) * SEEN_ENOUGH
        return _summary(
            loaded(
                LoadPlan(
                    "drain", host, port, WORKERS, WITHIN, workers=tenant.workers, jobs=enough, until=NINE, held=HELD
                )
            )
        )


def _summary(result: dict[str, Any]) -> dict[str, Any]:
    ended = sum(result["counts"].get(org, 0) for org in NINE)
    served = ended == sum(NINE.values())
    return {
        "place": max(result["facts"]["place"][org] for org in NINE) if served else None,
        "seconds": max(result["facts"]["at"][org] for org in NINE) if served else None,
        "ended": ended,
        "claims": result["counts"].get("claimed", 0),
        "surprises": result["surprises"],
    }
