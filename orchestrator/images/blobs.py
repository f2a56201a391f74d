"""Blobs of repositories: publish, find, mount, delete."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from django.db import connection, transaction
from django.db.models import Exists, OuterRef

from orchestrator.images.digests import Digest
from orchestrator.images.errors import UNKNOWN_BLOB, UNSUPPORTED, RegistryError
from orchestrator.images.models import ImageBlob, ManifestBlob, RepositoryBlob
from orchestrator.images.quotas import lock_images, require_blob_room, require_quota
from orchestrator.images.storage import PublishedFile, image_storage
from runtime_jobs.db_functions import ClockTimestamp
from runtime_jobs.models import Project

TOUCHED_EVERY: Final = timedelta(minutes=1)
# A client names in its manifest the blobs that it has pushed, mounted or found so long ago, at most.
IN_PUSH: Final = timedelta(minutes=15)
_INSERT: Final = """
INSERT INTO image_blobs AS stored (digest, size, file, used_at) VALUES (%s, %s, %s, clock_timestamp())
ON CONFLICT (digest) DO UPDATE SET used_at = clock_timestamp() RETURNING id, file
"""


@dataclass(frozen=True)
class StoredBlob:
    """A blob as a client may read it.

    Attributes:
        digest: Its digest.
        size: Bytes.
        file: Its name in the store.
    """

    digest: str
    size: int
    file: str


def insert_blob(digest: Digest, blob: PublishedFile) -> int:
    """Make a verified file the blob of its digest, and return the id of the row.

    Another process may have published the same content first. Then its file is used, and this one is deleted after the
    commit. The row is locked until then, so collection cannot delete it before it is linked. If the file of the row was
    lost, as by a restore of an older folder, the row gets this one.

    Args:
        digest: The verified digest.
        blob: The file. The caller closes it after the commit.
    """
    with connection.cursor() as cursor:
        cursor.execute(_INSERT, [str(digest), blob.size, blob.name])
        blob_id, stored_name = cursor.fetchone()
    if stored_name == blob.name:
        return int(blob_id)
    if not image_storage().has(stored_name, blob.size):
        ImageBlob.objects.filter(pk=blob_id).update(file=blob.name)
    else:
        transaction.on_commit(lambda: image_storage().remove(blob.name))
    return int(blob_id)


def link_blob(project: Project, blob_id: int) -> None:
    """Make a blob visible in the repository of a project."""
    row = RepositoryBlob(project=project, blob_id=blob_id, used_at=ClockTimestamp())
    RepositoryBlob.objects.bulk_create(
        [row], update_conflicts=True, unique_fields=["project", "blob"], update_fields=["used_at"]
    )


def find_blob(project: Project, digest: Digest) -> StoredBlob:
    """Return a blob of the repository.

    Raises:
        RegistryError: 404 BLOB_UNKNOWN; the repository does not have it, whatever other repositories have, or its file
            was lost. A client pushes it then, which repairs it.
    """
    links = RepositoryBlob.objects.filter(project=project, blob__digest=str(digest))
    row = links.values_list("blob__digest", "blob__size", "blob__file").first()
    if row is None or not image_storage().has(row[2], row[1]):
        raise unknown_blob(digest)
    return StoredBlob(*row)


def touch_blob(project: Project, digest: Digest) -> None:
    """Record that a client is about to name a blob in a manifest, at most once in a minute. Collection spares it."""
    links = RepositoryBlob.objects.filter(project=project, blob__digest=str(digest))
    links.filter(used_at__lt=ClockTimestamp() - TOUCHED_EVERY).update(used_at=ClockTimestamp())


def mount_blob(project: Project, digest: Digest, sources: Iterable[Project]) -> bool:
    """Make a blob of another repository visible in this one, and return whether that was possible.

    Args:
        project: The project of the repository.
        digest: The blob.
        sources: Projects whose images the caller may pull.

    Raises:
        RegistryError: 403 DENIED; the quota of the organization is full, or the repository has too many blobs.
    """
    links = RepositoryBlob.objects.select_related("blob").filter(project__in=list(sources), blob__digest=str(digest))
    with transaction.atomic():
        link = links.first()
        if link is None or not image_storage().has(link.blob.file, link.blob.size):
            return False
        require_blob_room(project)
        # Before the row of the content is locked: other organizations with the same content wait for that row.
        lock_images(project)
        is_new = not RepositoryBlob.objects.filter(
            project__organization=project.organization_id, blob=link.blob_id
        ).exists()
        require_quota(project, link.blob.size if is_new else 0)
        if links.select_for_update(no_key=True, of=("blob",)).filter(pk=link.pk).first() is None:
            return False  # it was deleted meanwhile
        link_blob(project, link.blob_id)
    return True


def delete_blob(project: Project, digest: Digest) -> None:
    """Delete a blob from the repository. Other repositories keep it.

    Raises:
        RegistryError: 404 BLOB_UNKNOWN, or 405 UNSUPPORTED while a manifest of the repository names it.
    """
    with transaction.atomic():
        links = RepositoryBlob.objects.select_for_update(of=("self",))
        link = links.filter(project=project, blob__digest=str(digest)).first()
        if link is None:
            raise unknown_blob(digest)
        # A statement of its own, after the lock: a manifest that was pushed meanwhile is found.
        if ManifestBlob.objects.filter(repository_blob=link).exists():
            text = "A manifest of this repository names the blob. Delete the manifest first."
            raise RegistryError(405, UNSUPPORTED, text)
        link.delete()


def unlink_unused(ids: Iterable[int]) -> None:
    """Delete blobs of repositories that no manifest names, except for those that a push in progress may name.

    Args:
        ids: Rows of `RepositoryBlob`.
    """
    rows = RepositoryBlob.objects.filter(pk__in=list(ids), used_at__lt=ClockTimestamp() - IN_PUSH)
    # Whoever has locked a row is about to name it.
    locked = [row.pk for row in rows.select_for_update(skip_locked=True).order_by("pk")]
    # A statement of its own, after the locks: a manifest that was pushed meanwhile is found.
    in_use = ManifestBlob.objects.filter(repository_blob=OuterRef("pk"))
    RepositoryBlob.objects.filter(~Exists(in_use), pk__in=locked).delete()


def unknown_blob(digest: Digest) -> RegistryError:
    """Return the refusal of a blob that the repository does not have."""
    return RegistryError(404, UNKNOWN_BLOB, "The repository has no such blob.", detail={"digest": str(digest)})
