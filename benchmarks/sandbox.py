"""Measures what a sandbox costs for each job: `true` in each engine, and one worker with eight slots.

The engines run in turns with a bare process, which is started by fork and exec and waited for. The worker is the
product's own, with its default engine; its jobs wait already, and it is timed from its first lease to the last result.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from django.db import connections
from django.db.models import Max, Min

from benchmarks import sandbox_overhead, servers, tenants
from benchmarks.environment import Cluster
from benchmarks.sandbox_overhead import Side
from benchmarks.sizes import Sizes
from config.paths import BASE_DIR
from leases.models import Lease
from orchestrator.devtools import seed
from orchestrator.devtools.process_supervisor import child_environment
from runtime_jobs.models import Job
from runtime_jobs.states import JobState
from tests.factories import submitted_steps

ENGINES = ("bubblewrap", "restricted")
FIRST_UIDS = (150_000, 160_000, 170_000)  # ranges that no worker uses by default
SLOTS = 8
POOL = "sandbox"
WITHIN = 120.0  # seconds for all jobs of the worker


def measure(cluster: Cluster, sizes: Sizes, _before: dict[str, Any]) -> dict[str, Any]:
    """Return `sandbox`: milliseconds of a job in each engine and of a bare process, and the worker's `jobs_per_s`."""
    return {"sandbox": overhead(sizes.sandbox_runs) | {"worker": _worker(cluster, sizes.worker_jobs)}}


def overhead(runs: int) -> dict[str, Any]:
    """Return the median milliseconds of `bare` and of each engine, and the ratios of the pairs to `bare`."""
    sides = [Side.started(name, BASE_DIR, name, uid) for name, uid in zip(("bare", *ENGINES), FIRST_UIDS, strict=True)]
    missing: dict[str, str] = {}
    try:
        usable = [side for side in sides if _runs(side, missing)]
        for _ in range(runs):
            for side in usable:
                side.found.append(side.run())
    finally:
        for side in sides:
            side.close()
    return {"engines": compared({side.name: side.found for side in usable}), "missing": missing}


def _runs(side: Side, missing: dict[str, str]) -> bool:
    try:
        for _ in range(sandbox_overhead.WARM_UP):
            side.run()
    except (RuntimeError, OSError) as error:  # this machine cannot run the engine; stderr says why
        missing[side.name] = str(error)
        return False
    return True


def compared(found: dict[str, list[dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Return the medians of each engine in milliseconds, and its ratio to `bare`: the median over the rounds.

    Args:
        found: `seconds` and `processor` (seconds) of each run, by engine.
    """
    result: dict[str, dict[str, float]] = {}
    for name, runs in found.items():
        result[name] = {f"{figure}_ms": round(median(run[figure] for run in runs) * 1000, 2) for figure in runs[0]}
        pairs = zip(runs, found.get("bare", []), strict=False)
        ratios = [run["seconds"] / bare["seconds"] for run, bare in pairs]
        if ratios and name != "bare":
            result[name]["vs_bare"] = round(median(ratios), 2)
    return result


def _worker(cluster: Cluster, jobs: int) -> dict[str, Any]:
    tenants.settled(POOL, organizations=[], workers=0)
    project = tenants.project("acme", POOL)
    for _ in range(jobs):
        submitted_steps(project, steps=("true",))
    file = token_file(cluster, POOL)
    connections.close_all()
    with servers.serving(cluster, "asgi-1") as server, servers.scheduler(cluster):
        process = started_worker(cluster, server.address.url, file, POOL)
        try:
            until = time.monotonic() + WITHIN
            while Job.objects.filter(pool=POOL, finished_at=None).exists():
                if process.poll() is not None or time.monotonic() > until:
                    return {"missing": f"the worker did not finish its jobs; see {cluster.logs / 'worker.log'}"}
                time.sleep(0.05)
        finally:
            process.terminate()
            process.wait(30)
    times = Lease.objects.aggregate(began=Min("leased_at"), ended=Max("completed_at"))
    succeeded = Job.objects.filter(pool=POOL, state=JobState.SUCCEEDED).count()
    seconds = (times["ended"] - times["began"]).total_seconds()
    return {"slots": SLOTS, "jobs": jobs, "succeeded": succeeded, "jobs_per_s": round(succeeded / seconds, 1)}


def token_file(cluster: Cluster, pool: str) -> Path:
    """Register a worker of a pool, and return the file with its token and id."""
    worker, token = seed.ensure_worker(f"{pool}-worker", pool=pool, token=None, capacity=SLOTS)
    file = cluster.state / f"{pool}-worker.token"
    seed.write_secret_file(file, f"{token}\n{worker.worker_id}")
    return file


def started_worker(cluster: Cluster, url: str, token_file: Path, pool: str) -> subprocess.Popen[bytes]:
    """Start the product's worker with eight slots and its default engine."""
    command = [sys.executable, str(BASE_DIR / "manage.py"), "runworker", "--server", url, "--pool", pool]
    command += ["--token-file", str(token_file), "--capacity", str(SLOTS)]
    with (cluster.logs / "worker.log").open("ab") as log:
        return subprocess.Popen(
            ["setpriv", "--pdeathsig", "TERM", "--", *command],
            env=child_environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
