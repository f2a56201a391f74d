"""Measures audit bundles: the memory of an export of a million events, and the speed of the verifier.

The verifier reads the bundle of jobs that were really executed. Beside it the same lines are only parsed and hashed
once, in turns.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from django.db import connection

from benchmarks import tenants
from benchmarks.environment import Cluster
from benchmarks.sizes import Sizes
from orchestrator import services
from orchestrator.evidence.bundle_format import DATA_FILES
from orchestrator.evidence.bundle_writing import BundleScope, write_bundle
from orchestrator.evidence.signing_keys import public_keys
from orchestrator.evidence.verifying import verify_bundle
from tests.factories import WorkerFactory, claimed, submitted_steps
from workers.models import Pool

POOL = "evidence"
FEW, MANY = 10_000, 1_000_000
EVENTS_PER_JOB = 10
EXECUTED = 1_000  # jobs of the bundle that is verified
TURNS = 9
WITHIN = 3_000.0
_LONG_AGO, _FAR_AWAY = datetime(2000, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)
# Their hashes are those of the first event: the export does not compute them again.
_FURTHER_EVENTS = """
INSERT INTO runtime_job_events (event_ulid, job_ulid, seq, event_type, actor_kind, actor_id, payload_json, created_at,
                                org_slug, job_type, correlation_id, fence, prev_hash, hash)
SELECT 'evt' || substr(job_ulid, 4), job_ulid, further.seq, 'job.progress', actor_kind, actor_id,
       jsonb_build_object('message', repeat('x', 300)), created_at, org_slug, job_type, correlation_id, fence,
       hash, hash
  FROM runtime_job_events first, generate_series(2, %s) further(seq)
 WHERE org_slug = %s AND first.seq = 1"""


def measure(_cluster: Cluster, sizes: Sizes, _before: dict[str, Any]) -> dict[str, Any]:
    """Return `export_memory`, the peak with many events ÷ with few, and `verify_vs_hashing`."""
    tenants.settled(POOL, organizations=[], workers=0)
    bundle = _executed_bundle(round(EXECUTED * max(sizes.scale, 0.1)))
    many = max(2 * FEW, round(MANY * sizes.scale))
    few_mb, many_mb = _peak_of_export(FEW), _peak_of_export(many)
    return {
        "export_memory": round(many_mb / few_mb, 2),
        "verify_vs_hashing": _compared(bundle),
        "evidence": {"events": many, "few_mb": round(few_mb), "many_mb": round(many_mb), "bundle_bytes": len(bundle)},
    }


def _executed_bundle(jobs: int) -> bytes:
    project, worker = tenants.project("executed", POOL), WorkerFactory(pool=Pool.objects.get(slug=POOL))
    for _ in range(jobs):
        submitted_steps(project)
        lease = claimed(worker, job_types=("steps",)).lease
        services.complete(lease_ulid=lease.lease_ulid, worker=worker, exit_code=0)
    target = io.BytesIO()
    write_bundle(target, BundleScope("executed", _LONG_AGO, _FAR_AWAY), max_seconds=WITHIN)
    return target.getvalue()


def _peak_of_export(events: int) -> float:
    """Return the highest resident memory of this process while it exports so many events, in MiB."""
    slug = f"events-{events}"
    tenants.fill(slug, POOL, events // EVENTS_PER_JOB)
    with connection.cursor() as cursor:
        cursor.execute(_FURTHER_EVENTS, [EVENTS_PER_JOB, slug])
        cursor.execute("ANALYZE runtime_job_events")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    with Path(os.devnull).open("wb") as target:
        written = write_bundle(target, BundleScope(slug, _LONG_AGO, _FAR_AWAY), max_seconds=WITHIN)
    found = written.lines["history.jsonl"]
    if found != events:
        raise RuntimeError(f"The bundle has {found} of {events} events.")
    status = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in status if line.startswith("VmHWM")).split()[1]) / 1024


def _compared(bundle: bytes) -> float:
    """Return the median ratio of rows verified a second to rows that are only parsed and hashed."""
    with tarfile.open(fileobj=io.BytesIO(bundle), mode="r:gz") as archive:
        files = [archive.extractfile(name) for name in DATA_FILES]
        lines = [line for file in files if file is not None for line in file.read().splitlines(keepends=True)]
    keys = public_keys()

    def read() -> None:
        for line in lines:
            hashlib.sha256(line).digest()
            json.loads(line)

    ratios = []
    for _ in range(TURNS):
        hashed, verified = _seconds(read), _seconds(lambda: verify_bundle(io.BytesIO(bundle), keys))
        ratios.append(hashed / verified)
    return round(median(ratios), 2)


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
