"""Deletes what no image needs: abandoned uploads, blobs without a manifest, files without a row.

Only what was not used for a while is deleted, so a push in progress keeps its blobs. A row is deleted before its file:
a process may be killed at every step, and no row is left without its file.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from typing import Any, Final

from django.db import transaction
from django.db.models import Exists, OuterRef, QuerySet

from orchestrator.core.part_files import PARTS
from orchestrator.images.models import BlobUpload, ImageBlob, ImageManifest, ManifestBlob, RepositoryBlob
from orchestrator.images.storage import BLOBS, image_storage
from runtime_jobs.db_functions import ClockTimestamp

DEFAULT_AGE: Final = timedelta(hours=24)
ROWS_PER_TRANSACTION: Final = 500


@dataclass(frozen=True)
class Collected:
    """The numbers of what a collection has deleted.

    Attributes:
        uploads: Abandoned uploads.
        repository_blobs: Blobs of repositories that no manifest names.
        blobs: Contents that no repository has.
        files: Files that no row named.
        bytes: The size of the contents, without the files that no row named.
    """

    uploads: int
    repository_blobs: int
    blobs: int
    files: int
    bytes: int


def collect_images(age: timedelta = DEFAULT_AGE, *, is_stopping: Callable[[], bool] = lambda: False) -> Collected:
    """Delete what was not used for a while and no image needs.

    Args:
        age: Things that were used within this time are kept. A push must not take longer.
        is_stopping: Called between two transactions; True ends the collection.
    """
    uploads = _delete_uploads(age, is_stopping)
    links = _delete_links(age, is_stopping)
    blobs, size = _delete_blobs(age, is_stopping)
    return Collected(uploads, links, blobs, _delete_files(age, is_stopping), size)


def _delete_uploads(age: timedelta, is_stopping: Callable[[], bool]) -> int:
    deleted = 0
    while not is_stopping():
        with transaction.atomic():
            rows = _locked(BlobUpload.objects.filter(updated_at__lt=ClockTimestamp() - age))
            BlobUpload.objects.filter(pk__in=[row.pk for row in rows]).delete()
        if not rows:
            break
        for name in (name for row in rows for name in row.parts):
            image_storage().remove(name)
        deleted += len(rows)
    return deleted


def _delete_links(age: timedelta, is_stopping: Callable[[], bool]) -> int:
    in_use = ManifestBlob.objects.filter(repository_blob=OuterRef("pk"))
    old = RepositoryBlob.objects.filter(~Exists(in_use), used_at__lt=ClockTimestamp() - age)
    deleted = last = 0
    while not is_stopping():
        with transaction.atomic():
            ids = [row.pk for row in _locked(old.filter(pk__gt=last))]  # rows before were read already
            # A statement of its own, after the locks: a manifest that was pushed meanwhile is found.
            deleted += RepositoryBlob.objects.filter(~Exists(in_use), pk__in=ids).delete()[0]
        if not ids:
            break
        last = ids[-1]
    return deleted


def _delete_blobs(age: timedelta, is_stopping: Callable[[], bool]) -> tuple[int, int]:
    links = RepositoryBlob.objects.filter(blob=OuterRef("pk"))
    manifests = ImageManifest.objects.filter(blob=OuterRef("pk"))
    unused = ImageBlob.objects.filter(~Exists(links), ~Exists(manifests))
    deleted = size = last = 0
    while not is_stopping():
        with transaction.atomic():
            ids = [row.pk for row in _locked(unused.filter(used_at__lt=ClockTimestamp() - age, pk__gt=last))]
            rows = list(unused.filter(pk__in=ids))  # after the locks: one that was linked meanwhile is not among them
            ImageBlob.objects.filter(pk__in=[row.pk for row in rows]).delete()
        if not ids:
            break
        for row in rows:
            image_storage().remove(row.file)
            size += row.size
        deleted, last = deleted + len(rows), ids[-1]
    return deleted, size


def _delete_files(age: timedelta, is_stopping: Callable[[], bool]) -> int:
    """Delete files that no row names, except for those that a process has locked."""
    storage, deleted = image_storage(), 0
    for folder in (PARTS, BLOBS):
        old = (name for name, seconds in storage.files(folder) if seconds >= age.total_seconds())
        while not is_stopping() and (names := list(islice(old, ROWS_PER_TRANSACTION))):
            for name in set(names) - _named(names):
                deleted += storage.remove_unless(name, lambda name=name: bool(_named([name])))  # type: ignore[misc]
    return deleted


def _named(names: list[str]) -> set[str]:
    uploads = BlobUpload.objects.filter(parts__overlap=names).values_list("parts", flat=True)
    blobs = ImageBlob.objects.filter(file__in=names).values_list("file", flat=True)
    return ({name for parts in uploads for name in parts} | set(blobs)) & set(names)


def _locked(rows: QuerySet[Any]) -> list[Any]:
    """Lock some rows that no other transaction has locked."""
    return list(rows.select_for_update(skip_locked=True, of=("self",)).order_by("pk")[:ROWS_PER_TRANSACTION])
