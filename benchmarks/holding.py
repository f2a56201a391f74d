"""Do limits hold? Sixty-four workers claim from tenants that may run 1 or 7 jobs at once, more than there are places,
while a sampler counts. Afterwards the leases of all jobs are laid over each other: what no sampler could miss."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from benchmarks import servers, tenants
from benchmarks.lifecycles import libraries
from benchmarks.load import Plan, loaded
from benchmarks.sizes import Sizes
from benchmarks.stage import Stage
from benchmarks.tally import spread
from leases.states import OPEN

LIMITS = {f"one-{number}": 1 for number in range(8)} | {f"seven-{number}": 7 for number in range(6)}
POOL = "limits"
EVERY = 0.02

ACTIVE = """SELECT j.org_slug, count(*) FROM runtime_worker_leases l JOIN runtime_jobs j USING (job_ulid)
             WHERE l.state = ANY (%s) GROUP BY 1"""
WAITING = """SELECT q.org_slug FROM lane_queues q JOIN lanes l ON l.queue_id = q.id
              WHERE EXISTS (SELECT FROM runtime_jobs j
                             WHERE j.lane_id = l.id AND j.state = 'queued' AND j.id >= l.scan_from)"""
# How many leases of a tenant lived at once: one more at each beginning, one less at each end.
AT_ONCE = """SELECT org_slug, max(at_once) FROM (
    SELECT org_slug, sum(change) OVER (PARTITION BY org_slug ORDER BY at, change) AS at_once FROM (
        SELECT j.org_slug, l.leased_at AS at, 1 AS change
          FROM runtime_worker_leases l JOIN runtime_jobs j USING (job_ulid)
         UNION ALL
        SELECT j.org_slug, l.completed_at, -1 FROM runtime_worker_leases l JOIN runtime_jobs j USING (job_ulid)
         WHERE l.completed_at IS NOT NULL) moments) counted GROUP BY 1"""


@dataclass
class Sampler:
    """`exceeded`: looks in which a tenant had more than it may. `waits`: how long each tenant that had room and jobs
    went without a claim, in seconds."""

    stage: Stage
    looks: int = 0
    exceeded: int = 0
    waits: list[float] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        since: dict[str, tuple[float, int]] = {}
        with self.stage.superuser() as connection:
            while not self.over.wait(EVERY):
                active = dict(connection.execute(ACTIVE, [list(OPEN)]).fetchall())
                waiting = {row[0] for row in connection.execute(WAITING).fetchall()}
                self.looks += 1
                self.exceeded += sum(1 for org, number in active.items() if number > LIMITS[org])
                self._time({org: active.get(org, 0) for org in waiting if active.get(org, 0) < LIMITS[org]}, since)

    def _time(self, servable: dict[str, int], since: dict[str, tuple[float, int]]) -> None:
        """A wait ends when the tenant is at its limit, has nothing left, or runs more than before."""
        now = time.monotonic()
        for org in [org for org, (_, had) in since.items() if org not in servable or servable[org] != had]:
            self.waits.append(now - since.pop(org)[0])
        for org, had in servable.items():
            since.setdefault(org, (now, had))


def measure(stage: Stage, sizes: Sizes, before: dict[str, Any]) -> dict[str, Any]:
    """`limits_exceeded`: in the sampler's looks and in the leases laid over each other. `limits`: what else was."""
    shares = sizes.limit_claims // sum(LIMITS.values())
    crew = tenants.settled(POOL, organizations=[], workers=sizes.limit_clients)
    for org, most in LIMITS.items():
        tenants.fill(org, POOL, shares * most)
        tenants.limited(org, most)
    told, sampler = _drained(stage, sizes, before.get("layout", "asgi-1"), crew, shares * sum(LIMITS.values()))
    highest = _highest(stage)
    return {
        "limits_exceeded": sampler.exceeded + sum(1 for org, most in highest.items() if most > LIMITS[org]),
        "limits": {
            "claims": told["done"],
            "left": shares * sum(LIMITS.values()) - told["done"],
            "rate": told["rate"],
            "looks": sampler.looks,
            "highest": highest,
            "empty_answers": told["counts"].get("empty", 0),
            "room_unused": spread(sampler.waits) if sampler.waits else None,
            "calls": told["calls"],
            "surprises": told["surprises"],
        },
    }


def _drained(
    stage: Stage, sizes: Sizes, layout: str, crew: tenants.Tenants, jobs: int
) -> tuple[dict[str, Any], Sampler]:
    with (
        servers.serving(stage, layout, libraries=libraries(stage, layout)) as server,
        servers.clock(stage),
        _sampled(stage) as sampler,
    ):
        plan = Plan(
            "drain",
            server.address.host,
            server.address.port,
            sizes.limit_clients,
            seconds=sizes.limit_seconds,
            workers=crew.workers,
            jobs=jobs,
        )
        return loaded(plan), sampler


@contextmanager
def _sampled(stage: Stage) -> Iterator[Sampler]:
    sampler = Sampler(stage)
    thread = threading.Thread(target=sampler.run)
    thread.start()
    try:
        yield sampler
    finally:
        sampler.over.set()
        thread.join()


def _highest(stage: Stage) -> dict[str, int]:
    with stage.superuser() as connection:
        return {org: int(most) for org, most in connection.execute(AT_ONCE).fetchall()}
