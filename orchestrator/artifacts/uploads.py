"""Makes uploads complete: those that passed through the server, and those that a bucket has received."""

import logging
from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

from orchestrator.artifacts.addresses import MODELS, ObjectAddress
from orchestrator.artifacts.operations import complete_upload
from orchestrator.artifacts.storage import ObjectPart, artifact_storage, is_file_storage
from orchestrator.core.db_scope import release_connections
from runtime_jobs.errors import LifecycleError
from runtime_jobs.models.artifacts import StoredObject

log = logging.getLogger(__name__)

MAX_CONFIRMED: Final = 20  # of one request: each one asks the bucket
StoredT = TypeVar("StoredT", bound=StoredObject)


def store_upload(address: ObjectAddress, part: ObjectPart) -> StoredObject:
    """Store a body that the server has received. The row is complete when this returns.

    Args:
        address: The address to which the body was sent.
        part: The body. The caller discards it.

    Raises:
        NotFound: The upload is not expected any more.
        UploadMismatch: The body has another size than was announced.
        ResourceConflict: The object was uploaded before, with another content.
        OSError: The storage cannot be written.
    """
    return complete_upload(
        MODELS[address.kind],
        address.row_id,
        size_bytes=part.size,
        sha256=part.sha256,
        publish=lambda: part.publish(address.object_key),
    )


def confirm_uploads(rows: Sequence[StoredT]) -> list[StoredT]:
    """Ask the bucket for objects that were announced and are not complete. Return the rows that are complete now.

    A bucket reports no upload to the server, so the server asks when a client lists the objects, and periodically.
    An object of another size than announced stays incomplete. So does one that is sent in pieces: its digest was not
    compared yet. With a folder there is nothing to ask.

    Args:
        rows: Rows that are not complete.

    Raises:
        OSError: The bucket does not answer.
    """
    rows = [row for row in rows if not row.is_in_pieces]
    if is_file_storage() or not rows:
        return []
    release_connections()
    storage = artifact_storage()
    sizes = {row.pk: storage.size_of(row.object_key) for row in rows}
    return [done for row in rows if sizes[row.pk] == row.byte_count and (done := _confirm(row)) is not None]


def _confirm(row: StoredT) -> StoredT | None:
    try:
        return complete_upload(type(row), row.pk, size_bytes=row.byte_count, sha256=None, publish=lambda: None)
    except LifecycleError:  # it was abandoned meanwhile
        return None


def with_confirmed(rows: Iterable[StoredT]) -> list[StoredT]:
    """Return the complete ones of some rows, after the bucket was asked for the others.

    A bucket that does not answer hides what is not known to be complete, and nothing else.
    """
    found = list(rows)
    waiting = [row for row in found if row.completed_at is None][:MAX_CONFIRMED]
    try:
        confirmed = {row.pk: row for row in confirm_uploads(waiting)}
    except OSError:
        log.exception("the bucket of artifacts does not answer")
        confirmed = {}
    return [confirmed.get(row.pk, row) for row in found if row.completed_at is not None or row.pk in confirmed]
