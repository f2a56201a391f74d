"""Kills all processes of the server twice while clients work.

The clients repeat their requests until answered. Nothing that was acknowledged may be lost, and the audit has to be
empty afterwards.
"""

from __future__ import annotations

import time
from typing import Any

from benchmarks import servers, tenants
from benchmarks.environment import Stage
from benchmarks.load import LoadPlan, begun, loaded
from benchmarks.sizes import Sizes
from runtime_jobs.models import Job
from runtime_jobs.states import JobState

KILLS = 2
CLIENTS = 8


def measure(stage: Stage, sizes: Sizes, _before: dict[str, Any]) -> dict[str, Any]:
    """`killed`: how often, what was submitted, what of it is lost (0), what has succeeded in the end."""
    crew = tenants.settled("killed", organizations=["acme"], workers=CLIENTS)
    seconds = max(6.0, sizes.seconds)
    with servers.serving(stage, "asgi-2") as server:
        plan = _plan(server, crew, "insisting", seconds)
        load = begun(plan)
        for _ in range(KILLS):
            time.sleep(seconds / (KILLS + 1))
            server.kill()
            server.start()
        told = load.tally()
        left = Job.objects.queued().count()
        if left:
            loaded(_plan(server, crew, "drain", 60, jobs=left))
    return {"killed": _told(told)}


def _plan(server: servers.Serving, crew: tenants.Tenants, flow: str, seconds: float, jobs: int = 0) -> LoadPlan:
    return LoadPlan(
        flow,
        server.address.host,
        server.address.port,
        CLIENTS,
        seconds=seconds,
        workers=crew.workers,
        token=crew.tokens["acme"],
        bodies=[tenants.body("acme")],
        jobs=jobs,
    )


def _told(told: dict[str, Any]) -> dict[str, Any]:
    submitted = told["facts"].get("submitted", [])
    ended = Job.objects.filter(job_ulid__in=submitted, state=JobState.SUCCEEDED).count()
    return {
        "kills": KILLS,
        "submitted": len(submitted),
        "lost": len(submitted) - Job.objects.filter(job_ulid__in=submitted).count(),
        "succeeded": ended,
        "unanswered_requests": told["counts"].get("unanswered", 0),
        "surprises": told["surprises"],
    }
