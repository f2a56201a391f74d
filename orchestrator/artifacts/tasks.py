"""Housekeeping of stored objects: uploads that never came, what has expired, files that no row names."""

import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from django.conf import settings
from django.db.models import Q

from orchestrator.artifacts.addresses import MODELS
from orchestrator.artifacts.operations import abandon_objects, delete_abandoned
from orchestrator.artifacts.pieces import remove_pieces
from orchestrator.artifacts.storage import artifact_storage, file_storage, is_file_storage
from orchestrator.artifacts.uploads import confirm_uploads
from orchestrator.core.counters import count, runs_pruned
from orchestrator.core.part_files import PARTS
from orchestrator.housekeeping.registry import task
from orchestrator.incidents.models import IncidentMode
from runtime_jobs.db_time import database_now
from runtime_jobs.models import CacheEntry, StoredArtifact
from runtime_jobs.models.artifacts import StoredObject

log = logging.getLogger(__name__)

ROWS_PER_ROUND: Final = 1000
ABANDONED_AFTER: Final = timedelta(hours=2)  # a body may arrive for longer than its address is valid
PART_AGE: Final = timedelta(days=1)


@task("confirm_uploads", every=lambda: timedelta(seconds=30), is_standing=True)
def confirm_waiting_uploads(_subject: str) -> None:
    """Make uploads complete that a bucket has received. With a folder there is nothing to do."""
    if is_file_storage():
        return
    for model in MODELS.values():
        is_waiting, last = Q(completed_at=None, is_abandoned=False), 0
        if model is StoredArtifact:
            is_waiting &= Q(received_bytes=0)  # what is sent in pieces is closed by its worker
        waiting = model._default_manager.filter(is_waiting).order_by("pk")  # noqa: SLF001 Django's name
        while rows := list(waiting.filter(pk__gt=last)[:ROWS_PER_ROUND]):
            confirm_uploads(rows)
            last = rows[-1].pk


@task("delete_stored_objects", every=lambda: timedelta(minutes=5), is_standing=True)
def delete_stored_objects(_subject: str) -> None:
    """Delete objects that never came, have expired or were abandoned, each before its row."""
    delete_due_objects()


def delete_due_objects(now: datetime | None = None) -> int:
    """Delete all objects that are due, and return how many.

    An object is deleted before its row. A process that is killed between both leaves the row, and the next round
    deletes it again.

    Args:
        now: The time that decides; by default the time of the database.

    Raises:
        OSError: The storage does not answer.
    """
    time = now or database_now()
    deleted = 0
    for model, has_expired in _expired(time).items():
        _abandon_late_uploads(model, time)
        rows = model._default_manager.filter(has_expired, is_abandoned=False)  # noqa: SLF001 Django's name
        while keys := list(rows.values_list("pk", flat=True)[:ROWS_PER_ROUND]):
            abandon_objects(model, keys, only_incomplete=False)
        deleted += _delete_abandoned(model)
    if deleted:
        count([runs_pruned("blobs")], deleted)
    _delete_parts()
    return deleted


def count_due_objects(now: datetime) -> int:
    """Return the number of objects that `delete_due_objects` would delete.

    Late uploads count, also those that the bucket has received: the bucket is not asked.
    """
    due = ((model._default_manager, has_expired) for model, has_expired in _expired(now).items())  # noqa: SLF001 as above
    return sum(rows.filter(_is_late(now) | has_expired | Q(is_abandoned=True)).count() for rows, has_expired in due)


def _is_late(now: datetime) -> Q:
    return Q(completed_at=None, upload_until__lt=now - ABANDONED_AFTER)


def _expired(now: datetime) -> dict[type[StoredObject], Q]:
    # Artifacts of an organization in incident mode are kept. A cache can be built again.
    kept = Q(organization__slug__in=IncidentMode.objects.filter(until__gt=database_now()).values("org_slug"))
    expired: dict[type[StoredObject], Q] = {StoredArtifact: Q(expires_at__lt=now) & ~kept, CacheEntry: Q(pk__in=())}
    if days := settings.RETENTION_DAYS["caches"]:
        expired[CacheEntry] = Q(last_used_at__lt=now - timedelta(days=days))
    return expired


def _abandon_late_uploads(model: type[StoredObject], now: datetime) -> None:
    """Abandon uploads that never came. Those that the bucket has received become complete instead.

    No process may have asked the bucket for them before: after an outage of housekeeping this is the first one.

    Raises:
        OSError: The bucket does not answer.
    """
    late = model._default_manager.filter(_is_late(now), is_abandoned=False).order_by("pk")  # noqa: SLF001 Django's name
    while rows := list(late[:ROWS_PER_ROUND]):
        confirm_uploads(rows)
        abandon_objects(model, [row.pk for row in rows], only_incomplete=True)


def _delete_abandoned(model: type[StoredObject]) -> int:
    storage, deleted, last = artifact_storage(), 0, 0
    while True:
        rows = model._default_manager.filter(is_abandoned=True, pk__gt=last).order_by("pk")  # noqa: SLF001 as above
        found = list(rows[:ROWS_PER_ROUND])
        if not found:
            return deleted
        for row in found:
            if row.is_in_pieces:
                remove_pieces(storage, row.object_key, row.byte_count)
            storage.remove(row.object_key)
            deleted += delete_abandoned(model, row.pk)
        last = found[-1].pk


def _delete_parts() -> None:
    """Delete parts of bodies that a process left when it died. One that is being received is locked."""
    if not is_file_storage():
        return
    storage = file_storage()
    is_needed: Callable[[], bool] = lambda: False  # noqa: E731 no row names a part
    for name, age in storage.files(PARTS):
        if age > PART_AGE.total_seconds():
            storage.remove_unless(name, is_needed)
