"""Measures claims per second over HTTP, beside two claims that pgbench sends: a minimal one, and the product's SQL.

All are measured in turns, so that a machine that becomes slower does so for all. Before each turn enough jobs wait for
all claims of it. The minimal claim is one statement on narrow tables (`benchmarks.minimal`); the product's own SQL is
recorded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from statistics import median
from typing import Any

from benchmarks import minimal, pgbench, servers, tenants
from benchmarks.environment import Cluster
from benchmarks.lifecycles import libraries
from benchmarks.load import LoadPlan, loaded
from benchmarks.peers_runner import ratio
from benchmarks.sizes import Sizes
from orchestrator.services import claiming
from runtime_jobs.models import Job
from tests.factories import offer
from workers.models import Worker

WORKERS = 256  # so many that none is full before the end
OF_PGBENCH = 4  # the product's SQL without HTTP takes so many times the jobs
OF_MINIMAL = 16  # and the minimal claim


def measure(cluster: Cluster, sizes: Sizes, before: dict[str, Any]) -> dict[str, Any]:
    """Return the rates of claims, and their ratios to `minimal_claims_per_s` and to `pgbench_claims_per_s`.

    `claims_vs_minimal` and `claims_vs_pgbench` are of one job a call, `bulk_claims_vs_pgbench` is of several.
    """
    layout = before.get("layout", "asgi-1")
    by_pool = {pool: tenants.settled(pool, organizations=[], workers=WORKERS) for pool in ("pgbench", "single", "bulk")}
    rates: dict[str, list[float | None]] = {pool: [] for pool in ("minimal", *by_pool)}
    claim, waiting = _operation(by_pool["pgbench"]), int(sizes.filled * OF_PGBENCH * sizes.claim_seconds)
    minimal.create(cluster)
    for _ in range(sizes.rounds):
        rates["minimal"].append(_minimal(cluster, sizes))
        _fill("single", waiting)
        rates["single"].append(_over_http(cluster, sizes, layout, by_pool["single"], "claims"))
        rates["pgbench"].append(_from_pgbench(cluster, sizes, claim, waiting))
        _fill("bulk", waiting)
        rates["bulk"].append(_over_http(cluster, sizes, layout, by_pool["bulk"], "claims_many"))
    single, bulk, sql, least = (_median(rates[pool]) for pool in ("single", "bulk", "pgbench", "minimal"))
    return {
        "claims_per_s": single,
        "bulk_claims_per_s": bulk,
        "pgbench_claims_per_s": sql,
        "minimal_claims_per_s": least,
        "claims_vs_minimal": ratio(single, least),
        "claims_vs_pgbench": ratio(single, sql),
        "bulk_claims_vs_pgbench": ratio(bulk, sql),
        "claims_layout": layout,
        "claims_waiting": waiting,
    }


def _median(rates: list[float | None]) -> float | None:
    there = [rate for rate in rates if rate is not None]
    return median(there) if there else None


def _fill(pool: str, waiting: int) -> None:
    """Let so many jobs wait, with those that wait already."""
    tenants.fill(pool, pool, waiting - Job.objects.queued().filter(pool=pool).count())


def _minimal(cluster: Cluster, sizes: Sizes) -> float:
    minimal.fill(cluster, int(sizes.filled * OF_MINIMAL * sizes.claim_seconds))
    return round(minimal.claims(cluster, clients=sizes.clients, seconds=sizes.claim_seconds), 1)


def _from_pgbench(cluster: Cluster, sizes: Sizes, claim: Callable[[], object], waiting: int) -> float:
    _fill("pgbench", waiting)
    script = pgbench.recorded(claim, WORKERS)
    found = pgbench.run(cluster, script, name="claim", clients=sizes.clients, seconds=sizes.claim_seconds)
    return round(found.per_second, 1)


def _over_http(cluster: Cluster, sizes: Sizes, layout: str, tenant: tenants.Tenants, flow: str) -> float | None:
    with servers.serving(cluster, layout, libraries=libraries(cluster, layout)) as server:
        result = loaded(
            LoadPlan(
                flow,
                server.address.host,
                server.address.port,
                sizes.clients if flow == "claims" else sizes.bulk_clients,
                seconds=sizes.claim_seconds if flow == "claims" else sizes.claim_seconds / 2,
                warmup=sizes.warmup,
                workers=tenant.workers,
            )
        )
    if result["surprises"] or result["counts"].get("empty", 0) > result["done"] / 10:
        sys.stderr.write(f"{flow}: {result['counts']} {result['surprises']}\n")
    return result["rate"]


def _operation(tenant: tenants.Tenants) -> Callable[[], Any]:
    """Claim as the last worker, which no other caller uses."""
    worker = Worker.objects.select_related("pool").get(worker_id=tenant.workers[-1][0])
    return lambda: claiming.claim(worker=worker, offer=offer(worker, job_types=("steps",)), acknowledge=True)
