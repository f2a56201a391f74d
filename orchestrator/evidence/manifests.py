"""Reads what the manifest of an ended job consists of."""

import hashlib
from typing import Any, Final

from leases.models import Lease
from orchestrator.ingest.models import Run
from runtime_jobs.models import Artifact, Job, LogChunk, StoredArtifact
from runtime_jobs.specs import JOB_TYPES
from runtime_jobs.specs.manifests import JobProducts, ProducedFile
from runtime_jobs.specs.payload import canonical_payload

MAX_HASHED_LOG_BYTES: Final = 1 << 20  # the digest of a log decides nothing, and the scheduler process computes it
MAX_FILES: Final = 10_000


def manifest_of(job: Job) -> dict[str, Any]:
    """Return the manifest of an attempt that has ended, as it is now.

    Args:
        job: An attempt of a job whose type has manifests.
    """
    manifest = JOB_TYPES[job.job_type].manifest
    if manifest is None:
        raise ValueError(f"Jobs of type {job.job_type} have no manifest.")
    return manifest(job, _products_of(job))


def canonical_manifest(manifest: dict[str, Any]) -> bytes:
    """Return the canonical form of a manifest (RFC 8785): the bytes that are signed."""
    return canonical_payload(manifest)


def _products_of(job: Job) -> JobProducts:
    stored = StoredArtifact.objects.filter(job=job, is_abandoned=False).order_by("name")
    files = stored.values_list("name", "byte_count", "sha256")[:MAX_FILES]
    run = Run.objects.filter(run_id=job.ingest_run_id).values_list("payload", flat=True).first()
    lease = Lease.objects.filter(job=job).order_by("-fence").only("worker_id").first()
    return JobProducts(
        files=tuple(ProducedFile(*row) for row in files),
        references=tuple(Artifact.objects.filter(job=job).order_by("uri").values_list("uri", flat=True)),
        run=run if job.ingest_run_id else None,
        worker_id=lease.worker_id if lease else None,
        log_bytes=job.log_bytes,
        log_sha256=_log_digest(job),
    )


def _log_digest(job: Job) -> str | None:
    """Return the digest of a log, or None for one that is long, or not in the database any more."""
    if job.log_bytes > MAX_HASHED_LOG_BYTES:
        return None
    digest, size = hashlib.sha256(), 0
    chunks = LogChunk.objects.filter(job=job).order_by("step", "seq").values_list("chunk", flat=True)
    for chunk in chunks.iterator():
        digest.update(chunk)
        size += len(chunk)
    return digest.hexdigest() if size == job.log_bytes else None
