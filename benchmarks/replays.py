"""Measures replays: how many of 200 match when the product's worker executes them, and how fast a reader confirms them.

Each job writes an artifact, and prints the date, which is in its log only. The reader has the records of the replays as
an audit bundle has them. Beside it the same lines are only parsed and hashed, in turns.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from django.db import connections

from benchmarks import sandbox, servers, tenants
from benchmarks.environment import Cluster
from benchmarks.sizes import Sizes
from orchestrator.evidence import replays
from orchestrator.evidence.replay_comparison import MATCH, confirm_record
from orchestrator.evidence.replay_models import Replay
from orchestrator.evidence.replay_reads import replay_record
from orchestrator.evidence.replays import ReplayRequest
from runtime_jobs.models import Job
from runtime_jobs.specs import Pattern
from tests.factories import OPERATOR, submitted_steps

REPLAYS = 200
POOL = "replays"
STEPS = ("date", "seq 1000 > numbers.txt")
ARTIFACTS = (Pattern("file", "numbers.txt"),)
WITHIN = 300.0  # seconds for all jobs, and again for all replays with their verdicts
TURNS = 9
LINES = 2_000  # of one turn


def measure(cluster: Cluster, _sizes: Sizes, _before: dict[str, Any]) -> dict[str, Any]:
    """Return `replay_match`, the share of replays that match, and `replay_verify_vs_hashing`."""
    tenants.settled(POOL, organizations=[], workers=0)
    project = tenants.project("acme", POOL)
    jobs = [submitted_steps(project, steps=STEPS, artifacts=ARTIFACTS).job_ulid for _ in range(REPLAYS)]
    file = sandbox.token_file(cluster, POOL)
    connections.close_all()
    with servers.serving(cluster, "asgi-1") as server, servers.scheduler(cluster):
        worker = sandbox.started_worker(cluster, server.address.url, file, POOL)
        try:
            _wait(lambda: not Job.objects.filter(pool=POOL, finished_at=None).exists())
            for job in jobs:
                replays.replay(ReplayRequest(job, "benchmark", OPERATOR, is_sealed=True))
            _wait(lambda: not Replay.objects.filter(verdict=None).exists())
        finally:
            worker.terminate()
            worker.wait(30)
    rows = list(Replay.objects.order_by("pk"))
    lines = [json.dumps(replay_record(row)).encode() for row in rows]
    return {
        "replay_match": sum(row.verdict == MATCH for row in rows) / REPLAYS,
        "replay_verify_vs_hashing": _compared(lines),
    }


def _wait(is_done: Callable[[], bool]) -> None:
    until = time.monotonic() + WITHIN
    while not is_done():
        if time.monotonic() > until:
            raise RuntimeError("The worker did not finish its jobs; see worker.log.")
        time.sleep(0.1)


def _compared(lines: Sequence[bytes]) -> float:
    """Return the median ratio of records confirmed a second to records that are only parsed and hashed."""
    repeated = [lines[number % len(lines)] for number in range(LINES)]
    ratios = []
    for _ in range(TURNS):
        hashed, confirmed = (_seconds(work, repeated) for work in (_read, _confirm))
        ratios.append(hashed / confirmed)
    return round(median(ratios), 2)


def _seconds(work: Callable[[bytes], object], lines: Sequence[bytes]) -> float:
    began = time.perf_counter()
    for line in lines:
        work(line)
    return time.perf_counter() - began


def _read(line: bytes) -> Any:
    hashlib.sha256(line).digest()
    return json.loads(line)


def _confirm(line: bytes) -> None:
    confirm_record(_read(line))
