"""Measures evidence: the memory of a large audit bundle, and how fast its reader verifies it.

The bundles are those of `export` jobs, which the product's dispatcher executes: one of a tenant with 10,000 events, and
one of a tenant with a million. The verifier reads a bundle as its recipient does; in turns with it, the same lines are
only parsed and hashed once. `benchmarks.replays` adds the figures of replays.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from django.db import connections

from benchmarks import ended_jobs, replays, servers, tenants
from benchmarks.environment import Cluster
from benchmarks.sizes import Sizes
from orchestrator.artifacts.storage import artifact_storage
from orchestrator.evidence.signing_keys import public_keys
from orchestrator.evidence.verifying import VerifiedBundle, verify_bundle
from orchestrator.services.submission import submit
from runtime_jobs.models import Job, Plan, StoredArtifact
from runtime_jobs.specs import JOB_TYPES
from runtime_jobs.specs.exports import AUDIT_BUNDLE
from runtime_jobs.specs.payload import EXPORT, PayloadSpec
from runtime_jobs.states import JobState
from tests.factories import ALICE, TIMINGS, submission

POOL = "evidence"
SMALL, LARGE = 10_000, 1_000_000  # events
SINCE = "2020-01-01T00:00:00Z"
EXPORT_WITHIN = 1_800.0
TURNS = 7


def measure(cluster: Cluster, sizes: Sizes, before: dict[str, Any]) -> dict[str, Any]:
    """Return `export_memory`, `verify_vs_hashing` and the figures of replays; `evidence` has the sizes and times."""
    found = replays.measure(cluster, sizes, before)
    tenants.settled(POOL, organizations=[], workers=0)
    numbers = {"small": SMALL, "large": max(2 * SMALL, int(LARGE * sizes.scale))}
    exports: dict[str, dict[str, Any]] = {}
    for org, number in numbers.items():
        exports[org] = {"events": ended_jobs.ended_jobs(org, POOL, number)}
    Plan.objects.update(max_stored_bytes=None, max_timeout_seconds=round(EXPORT_WITHIN))
    jobs = {org: _exported(cluster, org) for org in numbers}
    for org, (job, peak) in jobs.items():
        exports[org] |= {"peak_mib": round(peak / (1 << 20), 1), "seconds": _seconds_of(job)}
    verified = _verified(_content(jobs["small"][0]))
    return found | {
        "export_memory": round(exports["large"]["peak_mib"] / exports["small"]["peak_mib"], 2),
        "verify_vs_hashing": verified["ratio"],
        "evidence": {"exports": exports, "verified": verified},
    }


def _exported(cluster: Cluster, org: str) -> tuple[Job, int]:
    """Let a new dispatcher write the bundle of a tenant. Returns the job, and the largest memory of the dispatcher."""
    payload = {"format": AUDIT_BUNDLE, "since": SINCE}
    given = submission(tenants.project(org, POOL), PayloadSpec(EXPORT, payload, round(EXPORT_WITHIN)))
    policy = JOB_TYPES[EXPORT].policy(**TIMINGS)
    job = submit(given, policy=policy, default_pool=POOL, actor=ALICE).job
    connections.close_all()
    with servers.dispatcher(cluster) as process:
        until = time.monotonic() + EXPORT_WITHIN
        while not (ended := Job.objects.get(pk=job.pk)).is_final:
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError("The dispatcher did not write the bundle; see dispatcher.log.")
            time.sleep(0.2)
        peak = servers.resident_bytes(process.pid, "VmHWM")
    if ended.state != JobState.SUCCEEDED:
        raise RuntimeError(f"export: {ended.failure_reason}: {ended.failure_message}")
    return ended, peak


def _seconds_of(job: Job) -> float | None:
    if job.started_at is None or job.finished_at is None:
        return None
    return round((job.finished_at - job.started_at).total_seconds(), 1)


def _content(job: Job) -> bytes:
    artifact = StoredArtifact.objects.get(job=job)
    return artifact_storage().read(artifact.object_key, 0, artifact.byte_count)


def _verified(bundle: bytes) -> dict[str, Any]:
    """Return the median ratio of lines verified a second to lines that are only parsed and hashed."""
    keys, lines = public_keys(), lines_of(bundle)

    def verify() -> VerifiedBundle:
        return verify_bundle(io.BytesIO(bundle), keys)

    def parse_and_hash() -> None:
        for line in lines:
            hashlib.sha256(line).digest()
            json.loads(line)

    if sum(verify().lines.values()) != len(lines):
        raise RuntimeError("The verifier and tar find different lines in the bundle.")
    pairs = [(_seconds(parse_and_hash), _seconds(verify)) for _ in range(TURNS)]
    return {
        "lines": len(lines),
        "bytes": sum(map(len, lines)),
        "lines_per_s": round(len(lines) / median(verified for _, verified in pairs)),
        "ratio": round(median(hashed / verified for hashed, verified in pairs), 2),
    }


def lines_of(bundle: bytes) -> list[bytes]:
    """Return the lines of all data files of a bundle."""
    lines: list[bytes] = []
    with tarfile.open(fileobj=io.BytesIO(bundle)) as archive:
        for member in archive:
            file = archive.extractfile(member)
            if member.name.endswith(".jsonl") and file is not None:
                lines += file.read().splitlines(keepends=True)
    return lines


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
