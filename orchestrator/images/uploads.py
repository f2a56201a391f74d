"""Uploads of blobs: begin, append, complete, cancel.

A part is a file that was received before. Each operation is a short transaction that adds its name to the row of the
upload, under the lock of the row. So two writers of one upload cannot mix their bytes: one of them fails.
"""

import contextlib
from datetime import timedelta
from functools import partial
from typing import Final
from uuid import UUID

from django.conf import settings
from django.db import Error, transaction
from django.db.models import Q

from orchestrator.core.compute_slots import compute_slots
from orchestrator.core.db_scope import release_connections
from orchestrator.images.blobs import insert_blob, link_blob
from orchestrator.images.digests import Digest, DigestMismatch
from orchestrator.images.errors import (
    INVALID_DIGEST,
    INVALID_UPLOAD,
    UNKNOWN_UPLOAD,
    RegistryError,
)
from orchestrator.images.models import BlobUpload
from orchestrator.images.quotas import (
    has_upload_slot,
    lock_images,
    require_blob_room,
    require_quota,
    require_upload_slot,
)
from orchestrator.images.storage import UploadPart, image_storage, publish_parts
from runtime_jobs.db_functions import ClockTimestamp
from runtime_jobs.models import Project

MAX_PARTS: Final = 4096
# An upload that is being verified for longer was left by a process that died.
VERIFICATION_LIMIT: Final = timedelta(minutes=15)


def begin_upload(project: Project) -> BlobUpload:
    """Begin an upload to the repository of a project.

    Raises:
        RegistryError: 429, too many uploads are open; 403 DENIED, the quota of the organization is full, or the
            repository has too many blobs.
    """
    with transaction.atomic():
        require_blob_room(project)
        lock_images(project)
        _end_abandoned(project)
        require_upload_slot(project)
        require_quota(project, 1)
        return BlobUpload.objects.create(project=project)


def find_upload(project: Project, uuid: UUID) -> BlobUpload:
    """Return an upload to the repository that accepts parts.

    Raises:
        RegistryError: 404 BLOB_UPLOAD_UNKNOWN.
    """
    found = BlobUpload.objects.filter(project=project, uuid=uuid, is_completing=False).first()
    if found is None:
        raise unknown_upload()
    return found


def append_part(project: Project, uuid: UUID, part: UploadPart, *, start: int | None = None) -> BlobUpload:
    """Append a part to an upload.

    Args:
        project: The project of the repository.
        uuid: The upload.
        part: The part, completely received.
        start: The position of its first byte in the blob; None appends it wherever the upload ends.

    Raises:
        RegistryError: 404, there is no such upload; 416, it has another size than `start`; 403, the quota is full;
            400, it has too many parts.
    """
    with transaction.atomic():
        upload = _locked(project, uuid)
        _append(project, upload, part, start)
        upload.save(update_fields=["parts", "size", "updated_at"])
        part.keep()  # before the commit: if its outcome is unknown, the row may name the part
    part.discard()
    return upload


def complete_upload(
    project: Project, uuid: UUID, part: UploadPart, digest: Digest, *, start: int | None = None
) -> None:
    """Append the last part, verify the digest, and make the content a blob of the repository.

    Args:
        project: The project of the repository.
        uuid: The upload.
        part: The last part; it may be empty.
        digest: The digest of the whole content.
        start: The position of the first byte of `part`, or None.

    Raises:
        RegistryError: As `append_part`; 400 DIGEST_INVALID, the content has another digest. The upload has ended then.
    """
    with transaction.atomic():
        upload = _locked(project, uuid)
        _append(project, upload, part, start)
        upload.is_completing = True
        upload.save(update_fields=["parts", "size", "is_completing", "updated_at"])
        part.keep()
    part.discard()  # unlocks the file
    _publish(project, upload, digest)


def store_blob(project: Project, part: UploadPart, digest: Digest) -> None:
    """Store a blob that was received with one request.

    Raises:
        RegistryError: As `complete_upload`.
    """
    upload = begin_upload(project)
    try:
        complete_upload(project, upload.uuid, part, digest)
    except BaseException:
        _try_to_end(upload)  # no client knows its UUID
        raise


def cancel_upload(project: Project, uuid: UUID) -> None:
    """End an upload, and delete its parts. One that a process left as completing when it died is ended, too.

    Raises:
        RegistryError: 404 BLOB_UPLOAD_UNKNOWN.
    """
    with transaction.atomic():
        rows = BlobUpload.objects.select_for_update().filter(project=project, uuid=uuid)
        upload = rows.filter(Q(is_completing=False) | _left_by_a_process()).first()
        if upload is None:
            raise unknown_upload()
        BlobUpload.objects.filter(pk=upload.pk).delete()
    _remove(upload)


def _locked(project: Project, uuid: UUID) -> BlobUpload:
    rows = BlobUpload.objects.select_for_update().filter(project=project, uuid=uuid)
    found = rows.first()
    if found is None or found.is_completing:
        raise unknown_upload()
    return found


def _append(project: Project, upload: BlobUpload, part: UploadPart, start: int | None) -> None:
    if start is not None and start != upload.size:
        raise RegistryError(
            416,
            INVALID_UPLOAD,
            f"The part begins at byte {start}, and the upload has {upload.size} bytes. Send what follows them.",
            headers=position_headers(upload),
        )
    upload.updated_at = ClockTimestamp()
    if part.name is None:
        return
    if len(upload.parts) >= MAX_PARTS:
        text = f"An upload has at most {MAX_PARTS} parts. Send larger ones."
        raise RegistryError(400, INVALID_UPLOAD, text)
    require_quota(project, part.size)
    upload.parts.append(part.name)
    upload.size += part.size


def position_headers(upload: BlobUpload) -> dict[str, str]:
    """Return the headers with which a client continues an upload."""
    return {"Range": f"0-{max(upload.size - 1, 0)}", "Docker-Upload-UUID": str(upload.uuid)}


def _publish(project: Project, upload: BlobUpload, digest: Digest) -> None:
    """Verify the content without a transaction: a gigabyte takes seconds."""
    release_connections()
    try:
        with compute_slots.released():
            blob = publish_parts(upload.parts, digest)
    except DigestMismatch as error:
        _end(upload)
        raise RegistryError(400, INVALID_DIGEST, f"{error} Upload it again.", detail={"digest": str(digest)}) from None
    except FileNotFoundError:
        _end(upload)
        raise RegistryError(400, INVALID_UPLOAD, "A part of the upload is missing. Upload the blob again.") from None
    except BaseException:
        _end(upload)
        raise
    # If the outcome of this transaction is unknown, the row may exist. So the file stays, and collection decides.
    try:
        with transaction.atomic():
            link_blob(project, insert_blob(digest, blob))
            BlobUpload.objects.filter(pk=upload.pk).delete()
    except BaseException:
        _try_to_end(upload)
        raise
    finally:
        blob.close()


def _left_by_a_process() -> Q:
    return Q(is_completing=True, updated_at__lt=ClockTimestamp() - VERIFICATION_LIMIT)


def _end_abandoned(project: Project) -> None:
    """End the uploads of the organization that a dead process has left, and without a free slot, those without client.

    While slots are free, a client may pause between two parts for as long as collection permits.
    """
    abandoned = _left_by_a_process()
    if not has_upload_slot(project):
        # A request that is being received does not touch the row before its end.
        longest = timedelta(seconds=settings.IMAGE_UPLOAD_SECONDS)
        abandoned |= Q(updated_at__lt=ClockTimestamp() - longest)
    rows = BlobUpload.objects.filter(abandoned, project__organization=project.organization_id)
    # Whoever has locked a row is using it, and may wait for the lock of the organization.
    found = list(rows.select_for_update(skip_locked=True, of=("self",)))
    BlobUpload.objects.filter(pk__in=[upload.pk for upload in found]).delete()
    for upload in found:
        transaction.on_commit(partial(_remove, upload))


def _try_to_end(upload: BlobUpload) -> None:
    """End an upload after a failure. If the database is not available, the upload ends when it is abandoned."""
    with contextlib.suppress(Error):
        _end(upload)


def _end(upload: BlobUpload) -> None:
    BlobUpload.objects.filter(pk=upload.pk).delete()
    _remove(upload)


def _remove(upload: BlobUpload) -> None:
    for name in upload.parts:
        image_storage().remove(name)


def unknown_upload() -> RegistryError:
    """Return the refusal of an upload that does not exist, has ended, or is another repository's."""
    text = "The repository has no such upload, or it has ended. Begin a new one."
    return RegistryError(404, UNKNOWN_UPLOAD, text)
