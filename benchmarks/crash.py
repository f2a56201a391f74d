"""Kills all processes of the server twice while clients work.

The clients repeat their requests until answered. Nothing that was acknowledged may be lost, and the audit has to be
empty afterwards.
"""

from __future__ import annotations

import time
from typing import Any

from benchmarks import servers, tenants
from benchmarks.environment import Cluster
from benchmarks.load import LoadPlan, begun, loaded
from benchmarks.sizes import Sizes
from runtime_jobs.models import Job
from runtime_jobs.states import JobState

KILLS = 2
CLIENTS = 8


def measure(cluster: Cluster, sizes: Sizes, _before: dict[str, Any]) -> dict[str, Any]:
    """`killed`: how often, what was submitted, what of it is lost (0), what has succeeded in the end."""
    tenant = tenants.settled("killed", organizations=["acme"], workers=CLIENTS)
    seconds = max(6.0, sizes.seconds)
    with servers.serving(cluster, "asgi-2") as server:
        plan = _plan(server, tenant, "insisting", seconds)
        load = begun(plan)
        for _ in range(KILLS):
            time.sleep(seconds / (KILLS + 1))
            server.kill()
            server.start()
        result = load.tally()
        left = Job.objects.queued().count()
        if left:
            loaded(_plan(server, tenant, "drain", 60, jobs=left))
    return {"killed": _summary(result)}


def _plan(server: servers.Serving, tenant: tenants.Tenants, flow: str, seconds: float, jobs: int = 0) -> LoadPlan:
    return LoadPlan(
        flow,
        server.address.host,
        server.address.port,
        CLIENTS,
        seconds=seconds,
        workers=tenant.workers,
        token=tenant.tokens["acme"],
        bodies=[tenants.body("acme")],
        jobs=jobs,
    )


def _summary(result: dict[str, Any]) -> dict[str, Any]:
    submitted = result["facts"].get("submitted", [])
    ended = Job.objects.filter(job_ulid__in=submitted, state=JobState.SUCCEEDED).count()
    return {
        "kills": KILLS,
        "submitted": len(submitted),
        "lost": len(submitted) - Job.objects.filter(job_ulid__in=submitted).count(),
        "succeeded": ended,
        "unanswered_requests": result["counts"].get("unanswered", 0),
        "surprises": result["surprises"],
    }
