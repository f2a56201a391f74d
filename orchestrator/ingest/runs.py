"""Stores runs: one for each lease of a job. The first upload counts; a run is never overwritten."""

import hashlib
import json
import secrets
from dataclasses import dataclass
from typing import Any

from django.db.models import Q, QuerySet

from leases.errors import StaleLease
from leases.fencing import LockedLease, newest_holding, require_valid_lease
from orchestrator.ingest.models import Run
from runtime_jobs.errors import Invalid, LifecycleError, NotFound
from runtime_jobs.models import Job
from workers.models import Worker


class RunConflict(LifecycleError):
    """The lease has another run. The error does not name that run."""

    code = "run_conflict"


@dataclass(frozen=True)
class StoredRun:
    """The result of an upload. `created` is false for a repeat; `matches`: the repeat has the same bytes."""

    run: Run
    created: bool
    matches: bool


def digest_of(payload: dict[str, Any]) -> str:
    """Return the SHA-256 of the canonical JSON (sorted keys, no blanks, UTF-8) without `payload_sha256`."""
    rest = {key: value for key, value in payload.items() if key != "payload_sha256"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def store(payload: dict[str, Any], *, worker: Worker, fence: int | None = None) -> StoredRun:
    """Store the run of a job under the live lease that this worker has on it.

    A worker without a live lease stores nothing: else it could plant the result of whoever executes the job after it.
    A repeat returns the stored run, also at the same time, and also after the lease has ended if it has the same bytes.

    Args:
        payload: A valid `run.v1`.
        worker: The caller.
        fence: The lease that the caller means. None means its newest lease on the job.

    Raises:
        NotFound: The worker never had a lease of this job, or none with this fence.
        StaleLease: The lease is not live, and no run with these bytes was stored under it.
        RunConflict: The lease has a run already, and this payload is about another command.
        Invalid: The payload is not about this job, or its digest is wrong.
    """
    metadata, digest = payload["metadata"], digest_of(payload)
    holding = newest_holding(job_ulid=metadata["job_id"], worker=worker, fence=fence)
    if holding is None:
        raise NotFound("This worker has no lease of this job, or none with this fence.")
    differences = _differences(metadata, holding.job)
    if differences and _of_lease(holding).exists():
        raise RunConflict("The lease already has another run. A run is never overwritten.")
    if differences:
        raise Invalid({f"metadata.{name}": ["Must equal the value of the job."] for name in differences})
    if payload.get("payload_sha256", digest) != digest:
        raise Invalid({"payload_sha256": ["Must be the SHA-256 of the canonical JSON of this payload."]})
    try:
        require_valid_lease(holding)
    except StaleLease:
        stored = _of_lease(holding).filter(payload_sha256=digest).first()
        if stored is None:
            raise
        return StoredRun(stored, created=False, matches=True)
    return _insert_or_fetch(payload, digest, holding)


def _of_lease(holding: LockedLease) -> QuerySet[Run]:
    """Select the run of this lease. A run without a fence counts if its worker uploaded it during the lease."""
    job, lease = holding.job, holding.lease
    unrecorded = Q(fence=None, received_at__gte=lease.leased_at)
    return Run.objects.filter(Q(fence=lease.fence) | unrecorded, job_id=job.job_ulid, worker_id=lease.worker_id)


def _differences(metadata: dict[str, Any], job: Job) -> list[str]:
    """Return the identity fields in which the payload differs from the job."""
    identity = {
        "org_slug": job.org_slug,
        "project_slug": job.project_slug,
        "repo_url": job.repo_url,
        "git_commit": job.git_commit,
        "command": job.command_json,
        "trigger_kind": job.trigger_kind,
    }
    return [name for name, value in identity.items() if metadata[name] != value]


def _insert_or_fetch(payload: dict[str, Any], digest: str, holding: LockedLease) -> StoredRun:
    """Let one statement decide among uploads at the same time: the unique key on job and fence.

    The lease is not locked. If it ends between the check and this insert, the run stays under its own fence, where the
    completion of another lease does not accept it.
    """
    job, lease, now = holding.job, holding.lease, holding.now
    if earlier := _of_lease(holding).filter(fence=None).first():
        return StoredRun(earlier, created=False, matches=earlier.payload_sha256 == digest)
    row = Run(
        run_id=f"run_{now:%Y%m%d%H%M%S}_{secrets.token_hex(6)}",
        job_id=job.job_ulid,
        fence=lease.fence,
        org_slug=job.org_slug,
        project_slug=job.project_slug,
        worker_id=lease.worker_id,
        payload=payload,
        payload_sha256=digest,
        received_at=now,
    )
    Run.objects.bulk_create([row], ignore_conflicts=True)
    stored = Run.objects.get(job_id=job.job_ulid, fence=lease.fence)
    return StoredRun(stored, created=stored.run_id == row.run_id, matches=stored.payload_sha256 == digest)
