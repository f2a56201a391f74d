"""Measures the success metrics of document 004 at half of the rate of lifecycles that one process reaches.

Lifecycles of five calls of ten tenants begin at constant intervals, while each tenant has ten listeners. Two further
tenants may run one and three jobs at a time and always have more of them waiting.

- Scheduling: from the submit, before it is sent, until a worker has the job.
- Lease: a claim, which finds a job unless another worker was faster.
- Fan-out: from the timestamp of an event, which is before its commit, to each listener.
- Exceeded: limited tenants that had too many leases at once, by the times of the leases.
"""

from __future__ import annotations

from typing import Any

from benchmarks import servers, tenants
from benchmarks.environment import Cluster
from benchmarks.event_listeners import EVENTS_PATH, ListenPlan, listening
from benchmarks.histogram import spread
from benchmarks.limits import highest_at_once
from benchmarks.load import LoadPlan, begun, loaded
from benchmarks.sizes import Sizes
from runtime_jobs.models import Job
from tests.factories import limited

LAYOUT = "asgi-1"
TENANTS = tuple(f"metrics-{number}" for number in range(10))
LISTENERS = 10  # of each tenant
LIMITS = {"metrics-one": 1, "metrics-three": 3}
LIMITED_POOL = "metrics-limited"
LIMITED_WORKERS = 8
HELD = 0.25  # seconds; so limited jobs end at 16 a second at most
ALL_ARRIVE_WITHIN = 10.0
ALL_JOBS = 1_000_000


def measure(cluster: Cluster, sizes: Sizes, before: dict[str, Any]) -> dict[str, Any]:
    """Return the 99th percentiles and the limits exceeded as `document_004`, and the figures behind them."""
    tenant = tenants.settled("metrics", organizations=list(TENANTS), workers=sizes.clients)
    limited_tenants = tenants.settled(LIMITED_POOL, organizations=[], workers=LIMITED_WORKERS)
    seconds = sizes.seconds
    for organization, most in LIMITS.items():
        tenants.fill(organization, LIMITED_POOL, round(2 * most * seconds / HELD) + 50)
        limited(organization, max_active=most)
    with servers.serving(cluster, LAYOUT) as server, servers.scheduler(cluster):
        plan = _Plans(server, sizes, tenant)
        full_rate = _known_rate(before) or _rate(loaded(plan.of("lifecycles", sizes.claim_seconds)))
        if left := Job.objects.queued().filter(pool=tenant.pool).count():
            loaded(plan.drain(tenant, seconds, jobs=left))  # else each job would wait behind these
        streams = [(EVENTS_PATH, token) for token in tenant.tokens.values() for _ in range(LISTENERS)]
        with listening(ListenPlan(server.address.host, server.address.port, streams)) as listeners:
            beside = begun(plan.drain(limited_tenants, seconds + sizes.warmup, held=HELD))
            tally = loaded(plan.of("paced", seconds, rate=full_rate / 2))
            drained = beside.tally()
            fan_out = listeners.report(within=ALL_ARRIVE_WITHIN)
    if tally["surprises"] or drained["surprises"] or fan_out["gaps"] or fan_out["ended"]:
        raise RuntimeError(f"{tally['surprises']} {drained['surprises']} {fan_out}")
    highest = highest_at_once(cluster)
    exceeded = sum(highest.get(organization, 0) > most for organization, most in LIMITS.items())
    scheduling, claims = spread(scheduling_seconds(tally["facts"])), spread(tally["facts"]["claims"])
    return {
        "document_004": {
            "scheduling_ms": scheduling["p99"],
            "lease_ms": claims["p99"],
            "fan_out_ms": fan_out["delay_ms"]["p99"],
            "exceeded": exceeded,
        },
        "document_004_load": {
            "lifecycles_per_s": tally["rate"],
            "half_of": full_rate,
            "scheduling": scheduling,
            "lease": claims,
            "fan_out": fan_out,
            "highest": {organization: highest.get(organization, 0) for organization in LIMITS},
            "limited_jobs": drained["done"],
            "calls": tally["calls"],
        },
    }


def scheduling_seconds(facts: dict[str, Any]) -> list[float]:
    """Return for each submitted job the seconds until a worker had it; without those that none had at the end."""
    return [facts["leased"][job] - at for job, at in facts["submitted"].items() if job in facts["leased"]]


def _known_rate(before: dict[str, Any]) -> float | None:
    rate: float | None = (((before.get("layouts") or {}).get(LAYOUT) or {}).get("five") or {}).get("rate")
    return rate


def _rate(tally: dict[str, Any]) -> float:
    if tally["surprises"] or not tally["rate"]:
        raise RuntimeError(f"lifecycles: {tally['counts']} {tally['surprises']}")
    return float(tally["rate"])


class _Plans:
    """The loads on one server."""

    def __init__(self, server: servers.Serving, sizes: Sizes, tenant: tenants.Tenants) -> None:
        self.host, self.port = server.address.host, server.address.port
        self.sizes, self.tenant = sizes, tenant

    def of(self, flow: str, seconds: float, *, rate: float = 0) -> LoadPlan:
        """Return a load of the ten tenants."""
        return LoadPlan(
            flow,
            self.host,
            self.port,
            self.sizes.clients,
            seconds=seconds,
            warmup=self.sizes.warmup,
            workers=self.tenant.workers,
            tokens=list(self.tenant.tokens.values()),
            bodies=[tenants.body(organization) for organization in TENANTS],
            rate=rate,
        )

    def drain(self, workers: tenants.Tenants, seconds: float, *, jobs: int = ALL_JOBS, held: float = 0.0) -> LoadPlan:
        """Return a load that claims and completes waiting jobs, each of which it keeps for a time."""
        return LoadPlan(
            "drain",
            self.host,
            self.port,
            LIMITED_WORKERS,
            seconds=seconds,
            workers=workers.workers,
            jobs=jobs,
            held=held,
        )
