"""Checks that limits hold under sixty-four workers.

The tenants may run 1 or 7 jobs at once, more than there are slots. A sampler counts meanwhile. Afterwards the leases of
all jobs are compared for overlap, which no sampler could miss, and so are the claims that found nothing.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from benchmarks import servers, tenants
from benchmarks.environment import Cluster
from benchmarks.idle_claims import Held, unused
from benchmarks.lifecycles import libraries
from benchmarks.load import LoadPlan, loaded
from benchmarks.sizes import Sizes
from leases.states import OPEN
from tests.factories import limited

LIMITS = {f"one-{number}": 1 for number in range(8)} | {f"seven-{number}": 7 for number in range(6)}
POOL = "limits"
EVERY = 0.02

ACTIVE = """SELECT j.org_slug, count(*) FROM runtime_worker_leases l JOIN runtime_jobs j USING (job_ulid)
             WHERE l.state = ANY (%s) GROUP BY 1"""
# How many leases of a tenant lived at once: one more at each beginning, one less at each end.
AT_ONCE = """SELECT org_slug, max(at_once) FROM (
    SELECT org_slug, sum(change) OVER (PARTITION BY org_slug ORDER BY at, change) AS at_once FROM (
        SELECT j.org_slug, l.leased_at AS at, 1 AS change
          FROM runtime_worker_leases l JOIN runtime_jobs j USING (job_ulid)
         UNION ALL
        SELECT j.org_slug, l.completed_at, -1 FROM runtime_worker_leases l JOIN runtime_jobs j USING (job_ulid)
         WHERE l.completed_at IS NOT NULL) times) counted GROUP BY 1"""
LEASES = """SELECT j.org_slug, l.job_ulid,
                   extract(epoch FROM l.leased_at)::float, extract(epoch FROM l.completed_at)::float
              FROM runtime_worker_leases l JOIN runtime_jobs j USING (job_ulid) ORDER BY l.id"""


@dataclass
class Sampler:
    """`exceeded`: looks in which a tenant had more than it may."""

    cluster: Cluster
    looks: int = 0
    exceeded: int = 0
    over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        with self.cluster.superuser() as connection:
            while not self.over.wait(EVERY):
                active = connection.execute(ACTIVE, [list(OPEN)]).fetchall()
                self.looks += 1
                self.exceeded += sum(1 for org, number in active if number > LIMITS[org])


def measure(cluster: Cluster, sizes: Sizes, before: dict[str, Any]) -> dict[str, Any]:
    """`limits_exceeded`: in the sampler's looks and in the leases laid over each other. `limits`: what else was."""
    shares = sizes.limit_claims // sum(LIMITS.values())
    tenant = tenants.settled(POOL, organizations=[], workers=sizes.limit_clients)
    for org, most in LIMITS.items():
        tenants.fill(org, POOL, shares * most)
        limited(org, max_active=most)
    result, sampler = _drained(cluster, sizes, before.get("layout", "asgi-1"), tenant, shares * sum(LIMITS.values()))
    highest = highest_at_once(cluster)
    return {
        "limits_exceeded": sampler.exceeded + sum(1 for org, most in highest.items() if most > LIMITS[org]),
        "limits": {
            "claims": result["done"],
            "left": shares * sum(LIMITS.values()) - result["done"],
            "rate": result["rate"],
            "looks": sampler.looks,
            "highest": highest,
            "room": unused(LIMITS, _leases(cluster, result["facts"]), result["facts"]),
            "calls": result["calls"],
            "surprises": result["surprises"],
        },
    }


def _drained(
    cluster: Cluster, sizes: Sizes, layout: str, tenant: tenants.Tenants, jobs: int
) -> tuple[dict[str, Any], Sampler]:
    with (
        servers.serving(cluster, layout, libraries=libraries(cluster, layout)) as server,
        servers.scheduler(cluster),
        _sampled(cluster) as sampler,
    ):
        plan = LoadPlan(
            "drain",
            server.address.host,
            server.address.port,
            sizes.limit_clients,
            seconds=sizes.limit_seconds,
            workers=tenant.workers,
            jobs=jobs,
        )
        return loaded(plan), sampler


@contextmanager
def _sampled(cluster: Cluster) -> Iterator[Sampler]:
    sampler = Sampler(cluster)
    thread = threading.Thread(target=sampler.run)
    thread.start()
    try:
        yield sampler
    finally:
        sampler.over.set()
        thread.join()


def highest_at_once(cluster: Cluster) -> dict[str, int]:
    """Return how many leases of each tenant lived at once, by the times of all leases."""
    with cluster.superuser() as connection:
        return {org: int(most) for org, most in connection.execute(AT_ONCE).fetchall()}


def _leases(cluster: Cluster, facts: dict[str, Any]) -> dict[str, list[Held]]:
    """Return the leases of each tenant; a lease ends when its holder received the response, if it did."""
    asked, ends = facts["asked"], facts["ends"]
    found: dict[str, list[Held]] = {}
    with cluster.superuser() as connection:
        for org, job, leased_at, completed_at in connection.execute(LEASES).fetchall():
            held = Held(asked.get(job, leased_at), leased_at, ends.get(job, completed_at or math.inf))
            found.setdefault(org, []).append(held)
    return found
