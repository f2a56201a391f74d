"""Artifacts that the worker of a lease sends in pieces, and closes by the SHA-256 of the whole.

Each message counts only under the valid lease. An announcement is in `artifacts`, the storage of pieces in
`orchestrator.artifacts.pieces`.
"""

from datetime import datetime

from django.db.models import Count, Sum

from leases.fencing import LockedLease, lock_lease, require_valid_lease
from orchestrator.artifacts.operations import UPLOAD_TIME, begin_artifact, validate_path
from orchestrator.core.unit_of_work import UnitOfWork, operation
from runtime_jobs.errors import (
    ArtifactQuotaExceeded,
    ChunkGap,
    InvalidArtifactName,
    NotFound,
    ResourceConflict,
    UploadMismatch,
)
from runtime_jobs.models import Job, Plan, StoredArtifact
from workers.models import Worker


@operation
def begin_lease_artifact(
    uow: UnitOfWork, *, lease_ulid: str, worker: Worker, name: str, size_bytes: int, now: datetime | None = None
) -> StoredArtifact:
    """Announce an artifact of the job of a lease.

    Args:
        name: A relative path.
        size_bytes: The size of the object.

    Raises:
        InvalidArtifactName: The name is no relative path, or has a special part.
        StaleLease: The lease is not valid.
        ResourceConflict: The job has an artifact of this name.
        ArtifactQuotaExceeded: The job would have more artifacts, or more bytes of them, than the plan allows.
        StorageQuotaExceeded: The organization would have more bytes than its plan allows.
    """
    if problem := validate_path(name):
        raise InvalidArtifactName(problem)
    locked = lock_lease(lease_ulid=lease_ulid, worker=worker, now=now)
    require_valid_lease(locked)
    _require_quota(locked.job, size_bytes)
    # Jobs with steps need no mark. Their calls lock the lease alone, and a job is never locked after its lease.
    Job.objects.filter(pk=locked.job.pk, has_artifacts=False).update(has_artifacts=True)
    return begin_artifact(uow, job=locked.job, name=name, size_bytes=size_bytes, now=locked.now)


@operation
def find_artifact_for_piece(
    _: UnitOfWork,
    *,
    lease_ulid: str,
    worker: Worker,
    artifact_ulid: str,
    offset: int,
    size_bytes: int,
    now: datetime | None = None,
) -> StoredArtifact:
    """Return an announced artifact to which a piece may be appended, or which has received one at this position.

    Args:
        offset: The position of the first byte of the piece.
        size_bytes: The number of bytes of the piece, at least 1.

    Raises:
        StaleLease: The lease is not valid.
        NotFound: The job of the lease has no such artifact, or its time is up.
        ResourceConflict: The artifact is complete.
        UploadMismatch: The artifact would have more bytes than were announced.
        ChunkGap: An earlier piece is missing.
    """
    _locked, row = _lock_open_artifact(lease_ulid, worker, artifact_ulid, now)
    if offset + size_bytes > row.byte_count:
        end = offset + size_bytes
        raise UploadMismatch(f"The piece ends at byte {end}, and {row.byte_count} bytes were announced.")
    if offset > row.received_bytes:
        raise _gap(row)
    return row


@operation
def add_artifact_piece(
    _: UnitOfWork,
    *,
    lease_ulid: str,
    worker: Worker,
    artifact_ulid: str,
    offset: int,
    size_bytes: int,
    now: datetime | None = None,
) -> StoredArtifact:
    """Count a piece that is stored. A piece that another request has counted meanwhile changes nothing.

    Args:
        offset: The position of the first byte of the piece, as `find_artifact_for_piece` has permitted it.
        size_bytes: The number of bytes of the piece.

    Raises:
        StaleLease: The lease is not valid.
        NotFound: The job of the lease has no such artifact, or its time is up.
        ResourceConflict: The artifact is complete.
    """
    locked, row = _lock_open_artifact(lease_ulid, worker, artifact_ulid, now)
    if offset == row.received_bytes:
        row.received_bytes += size_bytes
        row.upload_until = locked.now + UPLOAD_TIME
        row.save(update_fields=["received_bytes", "upload_until"])
    return row


@operation
def find_received_artifact(
    _: UnitOfWork, *, lease_ulid: str, worker: Worker, artifact_ulid: str, now: datetime | None = None
) -> StoredArtifact:
    """Return an artifact whose pieces have all been received.

    Raises:
        StaleLease: The lease is not valid.
        NotFound: The job of the lease has no such artifact, or its time is up.
        ChunkGap: A piece is missing.
    """
    _locked, row = _lock_artifact(lease_ulid, worker, artifact_ulid, now)
    if row.completed_at is None and row.received_bytes < row.byte_count:
        raise _gap(row)
    return row


@operation
def complete_lease_artifact(
    _: UnitOfWork,
    *,
    lease_ulid: str,
    worker: Worker,
    artifact_ulid: str,
    sha256: str,
    now: datetime | None = None,
) -> StoredArtifact:
    """Make an artifact complete whose object is stored. A repetition changes nothing.

    Args:
        sha256: The digest of the stored object, as hexadecimal digits.

    Raises:
        StaleLease: The lease is not valid.
        NotFound: The job of the lease has no such artifact, or its time is up.
        ResourceConflict: The artifact is complete and has another content.
    """
    locked, row = _lock_artifact(lease_ulid, worker, artifact_ulid, now)
    if row.completed_at is not None:
        if row.sha256 != sha256:
            raise ResourceConflict("The artifact is complete, with another content.")
        return row
    row.sha256, row.completed_at = sha256, locked.now
    row.save(update_fields=["sha256", "completed_at"])
    return row


def _lock_artifact(
    lease_ulid: str, worker: Worker, artifact_ulid: str, now: datetime | None
) -> tuple[LockedLease, StoredArtifact]:
    locked = lock_lease(lease_ulid=lease_ulid, worker=worker, now=now)
    require_valid_lease(locked)
    rows = StoredArtifact.objects.select_for_update()
    row = rows.filter(artifact_ulid=artifact_ulid, job_id=locked.job.job_ulid, is_abandoned=False).first()
    if row is None:
        raise NotFound("The job of the lease has no such artifact, or its time is up. Announce another one.")
    return locked, row


def _lock_open_artifact(
    lease_ulid: str, worker: Worker, artifact_ulid: str, now: datetime | None
) -> tuple[LockedLease, StoredArtifact]:
    locked, row = _lock_artifact(lease_ulid, worker, artifact_ulid, now)
    if row.completed_at is not None:
        raise ResourceConflict("The artifact is complete. It takes no further pieces.")
    return locked, row


def _gap(row: StoredArtifact) -> ChunkGap:
    expected = row.received_bytes
    return ChunkGap(
        f"{expected} of {row.byte_count} bytes were received. Send the piece with the offset {expected} first.",
        expected_offset=expected,
    )


def _require_quota(job: Job, size_bytes: int) -> None:
    """Check the limits of one job. Its row is locked, so no other announcement of the job is counted meanwhile.

    Raises:
        ArtifactQuotaExceeded: The job would have more artifacts, or more bytes of them, than the plan allows.
    """
    plan = Plan.objects.get(organizations__slug=job.org_slug)
    rows = StoredArtifact.objects.filter(job_id=job.job_ulid, is_abandoned=False)
    found = rows.aggregate(number=Count("pk"), size=Sum("byte_count", default=0))
    if plan.max_job_artifacts is not None and found["number"] >= plan.max_job_artifacts:
        message = f"The job has {found['number']} artifacts, and the plan allows {plan.max_job_artifacts}."
        raise ArtifactQuotaExceeded(message, limit=plan.max_job_artifacts)
    limit = plan.max_job_artifact_bytes
    if limit is not None and found["size"] + size_bytes > limit:
        message = f"The artifacts of the job have {found['size']} bytes, and the plan allows {limit}."
        raise ArtifactQuotaExceeded(message, limit=limit)
