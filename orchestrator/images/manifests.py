"""Manifests, tags and referrers of repositories."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.db import transaction
from django.db.models import QuerySet

from orchestrator.images.blobs import insert_blob, unlink_unused
from orchestrator.images.digests import Digest
from orchestrator.images.errors import (
    DENIED,
    INVALID_DIGEST,
    INVALID_MANIFEST,
    UNKNOWN_MANIFEST,
    UNKNOWN_REFERENCE,
    RegistryError,
)
from orchestrator.images.manifest_documents import ManifestDocument, parse_manifest
from orchestrator.images.models import ImageManifest, ImageTag, ManifestBlob, RepositoryBlob
from orchestrator.images.quotas import require_quota
from orchestrator.images.storage import PublishedFile, image_storage, publish_bytes
from runtime_jobs.db_functions import ClockTimestamp
from runtime_jobs.models import Project

TAG: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
MAX_TAGS_PER_PUSH: Final = 100
MAX_ROWS_PER_REPOSITORY: Final = 100_000  # manifests, and tags: small ones hardly count for the quota
REFERRERS_PER_PAGE: Final = 100
REFERRER_BYTES_PER_PAGE: Final = 3 << 20


@dataclass(frozen=True)
class StoredManifest:
    """A manifest as a client may read it.

    Attributes:
        digest: Its digest.
        media_type: Its media type.
        size: Bytes.
        file: Their name in the store.
    """

    digest: str
    media_type: str
    size: int
    file: str

    def read(self) -> bytes:
        """Return the bytes."""
        with image_storage().open(self.file) as file:
            return bytes(file.read())


@dataclass(frozen=True)
class PushedManifest:
    """The outcome of a push.

    Attributes:
        digest: The digest of the manifest.
        subject: The digest of its subject, or None.
        tags: The tags that name it now.
    """

    digest: Digest
    subject: Digest | None
    tags: tuple[str, ...]


def require_tag(text: str) -> str:
    """Return a tag.

    Raises:
        RegistryError: 400 MANIFEST_INVALID; the text is none.
    """
    if not TAG.fullmatch(text):
        text = "A tag has 1 to 128 letters, digits, '.', '_' and '-', and begins with none of '.' and '-'."
        raise RegistryError(400, INVALID_MANIFEST, text)
    return text


def push_manifest(
    project: Project, content: bytes, content_type: str, *, digest: Digest | None, tags: Sequence[str]
) -> PushedManifest:
    """Store a manifest, and let tags name it.

    Args:
        project: The project of the repository.
        content: The bytes of the manifest, which are kept as they are.
        content_type: The media type of the request.
        digest: The digest that the client declared, or None for a push by tag.
        tags: The tags.

    Raises:
        RegistryError: 400, the manifest is not valid, names what the repository does not have, or has another digest;
            403, the quota of the organization is full; 413, it is too large.
    """
    document = parse_manifest(content, content_type)
    actual = Digest.of(content, digest.algorithm if digest else "sha256")
    if digest is not None and actual != digest:
        text = f"The manifest has the digest {actual}."
        raise RegistryError(400, INVALID_DIGEST, text, detail={"digest": str(digest)})
    if len(tags) > MAX_TAGS_PER_PUSH:
        raise RegistryError(400, INVALID_MANIFEST, f"At most {MAX_TAGS_PER_PUSH} tags may be set by one request.")
    names = tuple(dict.fromkeys(require_tag(tag) for tag in tags))
    if not _retag(project, document.media_type, actual, names):
        _require_references(project, document)  # before the file is written; again in the transaction
        blob = publish_bytes(content, actual)  # if another repository has the same content, its file is used
        try:
            _insert(project, document, actual, blob, names)
        except RegistryError:
            image_storage().remove(blob.name)  # certainly no row names it
            raise
        finally:
            blob.close()
    return PushedManifest(actual, document.subject, names)


def _retag(project: Project, media_type: str, digest: Digest, tags: Sequence[str]) -> bool:
    """Let tags name a manifest that the repository has. Return whether it has it and its file."""
    with transaction.atomic():
        rows = ImageManifest.objects.select_for_update(no_key=True, of=("self",)).select_related("blob")
        manifest = rows.filter(project=project, digest=str(digest), media_type=media_type).first()
        if manifest is None or not image_storage().has(manifest.blob.file, manifest.blob.size):
            return False
        _set_tags(project, manifest, tags)
    return True


def _insert(
    project: Project, document: ManifestDocument, digest: Digest, blob: PublishedFile, tags: Sequence[str]
) -> None:
    with transaction.atomic():
        # The quota first: other organizations with the same content wait for the row of the blob.
        require_quota(project, blob.size)
        blob_id = insert_blob(digest, blob)
        links = _require_references(project, document)
        manifest = ImageManifest(
            project=project,
            digest=str(digest),
            blob_id=blob_id,
            media_type=document.media_type,
            artifact_type=document.artifact_type,
            subject="" if document.subject is None else str(document.subject),
            annotations=document.annotations,
            pushed_at=ClockTimestamp(),
        )
        ImageManifest.objects.bulk_create(
            [manifest],
            update_conflicts=True,
            unique_fields=["project", "digest"],
            update_fields=["media_type", "artifact_type", "subject", "annotations", "pushed_at"],
        )
        references = [ManifestBlob(manifest=manifest, repository_blob_id=link) for link in links]
        ManifestBlob.objects.bulk_create(references, ignore_conflicts=True)
        _require_room(ImageManifest.objects.filter(project=project), "manifests")
        _set_tags(project, manifest, tags)


def _require_references(project: Project, document: ManifestDocument) -> list[int]:
    """Return the rows of the repository for the config and the layers. In a transaction they are locked.

    Raises:
        RegistryError: 400 MANIFEST_BLOB_UNKNOWN, or MANIFEST_INVALID for a size that is wrong.
    """
    wanted = {str(entry.digest): entry.size for entry in (document.config, *document.layers) if entry is not None}
    links = RepositoryBlob.objects.filter(project=project, blob__digest__in=list(wanted)).select_related("blob")
    if transaction.get_connection().in_atomic_block:
        links = links.select_for_update(no_key=True, of=("self",)).order_by("pk")
    found = list(links)
    missing = wanted.keys() - {link.blob.digest for link in found}
    if document.manifests:
        digests = set(map(str, document.manifests))
        rows = ImageManifest.objects.filter(project=project, digest__in=digests)
        missing |= digests - set(rows.values_list("digest", flat=True))
    if missing:
        text = "The repository does not have what the manifest names. Push the blobs and manifests first."
        raise RegistryError(400, UNKNOWN_REFERENCE, text, detail={"digests": sorted(missing)[:10]})
    for blob in (link.blob for link in found):
        if blob.size != wanted[blob.digest]:
            text = f"{blob.digest} has {blob.size} bytes, and not {wanted[blob.digest]}."
            raise RegistryError(400, INVALID_MANIFEST, text)
    return [link.pk for link in found]


def _set_tags(project: Project, manifest: ImageManifest, tags: Sequence[str]) -> None:
    rows = [ImageTag(project=project, name=tag, manifest=manifest, updated_at=ClockTimestamp()) for tag in sorted(tags)]
    ImageTag.objects.bulk_create(
        rows, update_conflicts=True, unique_fields=["project", "name"], update_fields=["manifest", "updated_at"]
    )
    if rows:
        _require_room(ImageTag.objects.filter(project=project), "tags")


def _require_room(rows: QuerySet[Any], name: str) -> None:
    """Refuse what was inserted if a repository has too many rows of a kind then.

    Raises:
        RegistryError: 403 DENIED. The transaction must be rolled back.
    """
    if rows[: MAX_ROWS_PER_REPOSITORY + 1].count() > MAX_ROWS_PER_REPOSITORY:
        text = f"A repository may have at most {MAX_ROWS_PER_REPOSITORY} {name}. Delete some."
        raise RegistryError(403, DENIED, text)


def find_manifest(project: Project, reference: Digest | str) -> StoredManifest:
    """Return the manifest that a digest or tag names.

    Raises:
        RegistryError: 404 MANIFEST_UNKNOWN.
    """
    rows = ImageManifest.objects.filter(project=project)
    named = rows.filter(digest=str(reference)) if isinstance(reference, Digest) else rows.filter(tags__name=reference)
    row = named.values_list("digest", "media_type", "blob__size", "blob__file").first()
    if row is None or not image_storage().has(row[3], row[2]):  # a push repairs a file that was lost
        raise unknown_manifest(reference)
    return StoredManifest(*row)


def find_tag(project: Project, tag: str) -> str | None:
    """Return the digest of the manifest that a tag names, or None."""
    return ImageTag.objects.filter(project=project, name=tag).values_list("manifest__digest", flat=True).first()


def delete_manifest(project: Project, reference: Digest | str) -> None:
    """Delete a tag, or a manifest with all its tags and the blobs that only it names in the repository.

    Blobs that were used lately are kept for a push in progress; collection deletes them later.

    Raises:
        RegistryError: 404 MANIFEST_UNKNOWN.
    """
    with transaction.atomic():
        rows = ImageManifest.objects if isinstance(reference, Digest) else ImageTag.objects
        name = {"digest" if isinstance(reference, Digest) else "name": str(reference)}
        row = rows.select_for_update().filter(project=project, **name).first()
        if row is None:
            raise unknown_manifest(reference)
        named = []
        if isinstance(row, ImageManifest):
            named = list(ManifestBlob.objects.filter(manifest=row).values_list("repository_blob", flat=True))
        row.delete()
        unlink_unused(named)


def list_tags(project: Project, *, after: str, limit: int) -> list[str]:
    """Return tags in the order of their bytes.

    Args:
        project: The project of the repository.
        after: The tag that precedes the first one, or an empty text.
        limit: Their number at most.
    """
    rows = ImageTag.objects.filter(project=project, name__gt=after).order_by("name")
    return list(rows.values_list("name", flat=True)[:limit])


@dataclass(frozen=True)
class Referrer:
    """A manifest that names another one as its subject."""

    id: int
    digest: str
    media_type: str
    size: int
    artifact_type: str
    annotations: bytes | None


def list_referrers(
    project: Project, subject: Digest, *, artifact_type: str | None, after: int
) -> tuple[list[Referrer], bool]:
    """Return a page of the manifests with a subject, and whether more follow.

    Args:
        project: The project of the repository.
        subject: The digest of the subject, which need not exist.
        artifact_type: Only those of this type, or None.
        after: The id of the row that precedes the page, or 0.
    """
    rows = ImageManifest.objects.filter(project=project, subject=str(subject), pk__gt=after)
    if artifact_type is not None:
        rows = rows.filter(artifact_type=artifact_type)
    columns = ("pk", "digest", "media_type", "blob__size", "artifact_type", "annotations")
    page: list[Referrer] = []
    size = 0
    for row in rows.order_by("pk").values_list(*columns)[: REFERRERS_PER_PAGE + 1]:
        annotations = None if row[5] is None else bytes(row[5])
        size += len(annotations or b"")
        if len(page) == REFERRERS_PER_PAGE or (page and size > REFERRER_BYTES_PER_PAGE):
            return page, True
        page.append(Referrer(row[0], row[1], row[2], row[3], row[4], annotations))
    return page, False


def unknown_manifest(reference: Digest | str) -> RegistryError:
    """Return the refusal of a manifest that the repository does not have."""
    text = "The repository has no such manifest or tag."
    return RegistryError(404, UNKNOWN_MANIFEST, text, detail={"reference": str(reference)})
