"""Measures claims a second over HTTP, beside the same SQL from pgbench: the cost of the program before the database.

Both are measured in turns, so that a machine that becomes slower does so for both.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from statistics import median
from typing import Any

from benchmarks import pgbench, servers, tenants
from benchmarks.environment import Stage
from benchmarks.lifecycles import libraries
from benchmarks.load import LoadPlan, loaded
from benchmarks.peers_runner import ratio
from benchmarks.sizes import Sizes
from orchestrator import services
from tests.factories import offer
from workers.models import Worker

WORKERS = 256  # so many that none is full before the end
OF_SQL = 3  # pgbench wants so many times the jobs


def measure(stage: Stage, sizes: Sizes, before: dict[str, Any]) -> dict[str, Any]:
    """Return the three rates and their ratios.

    `claims_vs_pgbench` is of one job a call, `bulk_claims_vs_pgbench` of several, against the same rate of pgbench.
    """
    layout = before.get("layout", "asgi-1")
    crews = {pool: tenants.settled(pool, organizations=[], workers=WORKERS) for pool in ("pgbench", "single", "bulk")}
    rates: dict[str, list[float | None]] = {pool: [] for pool in crews}
    claim = _verb(crews["pgbench"])
    for _ in range(sizes.rounds):
        rates["pgbench"].append(_from_pgbench(stage, sizes, claim))
        rates["single"].append(_over_http(stage, sizes, layout, crews["single"], "claims"))
        rates["bulk"].append(_over_http(stage, sizes, layout, crews["bulk"], "claims_many"))
    single, bulk, sql = (_median(rates[pool]) for pool in ("single", "bulk", "pgbench"))
    return {
        "claims_per_s": single,
        "bulk_claims_per_s": bulk,
        "pgbench_claims_per_s": sql,
        "claims_vs_pgbench": ratio(single, sql),
        "bulk_claims_vs_pgbench": ratio(bulk, sql),
        "claims_layout": layout,
    }


def _median(rates: list[float | None]) -> float | None:
    there = [rate for rate in rates if rate is not None]
    return median(there) if there else None


def _from_pgbench(stage: Stage, sizes: Sizes, claim: Callable[[], object]) -> float:
    tenants.fill("pgbench", "pgbench", int(sizes.filled * OF_SQL * sizes.claim_seconds))
    script = pgbench.recorded(claim, WORKERS)
    return round(pgbench.claims(stage, script, clients=sizes.clients, seconds=sizes.claim_seconds), 1)


def _over_http(stage: Stage, sizes: Sizes, layout: str, crew: tenants.Tenants, flow: str) -> float | None:
    tenants.fill(crew.pool, crew.pool, int(sizes.filled * (sizes.warmup + sizes.claim_seconds)))
    with servers.serving(stage, layout, libraries=libraries(stage, layout)) as server:
        told = loaded(
            LoadPlan(
                flow,
                server.address.host,
                server.address.port,
                sizes.clients if flow == "claims" else sizes.bulk_clients,
                seconds=sizes.claim_seconds if flow == "claims" else sizes.claim_seconds / 2,
                warmup=sizes.warmup,
                workers=crew.workers,
            )
        )
    if told["surprises"] or told["counts"].get("empty", 0) > told["done"] / 10:
        sys.stderr.write(f"{flow}: {told['counts']} {told['surprises']}\n")
    return told["rate"]


def _verb(crew: tenants.Tenants) -> Callable[[], Any]:
    """Claim as the last worker, which no other caller uses."""
    worker = Worker.objects.select_related("pool").get(worker_id=crew.workers[-1][0])
    return lambda: services.claim(worker=worker, offer=offer(worker, job_types=("steps",)), acknowledge=True)
