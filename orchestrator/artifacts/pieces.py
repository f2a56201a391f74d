"""Stores the pieces of artifacts, each as an object of its own, and joins them when the artifact is closed.

The pieces may arrive at different processes, and a bucket appends nothing to an object. A piece is named by its offset.
"""

import hashlib
from collections.abc import Iterator
from typing import Any, Final

from orchestrator.artifacts import piece_operations
from orchestrator.artifacts.operations import abandon_objects
from orchestrator.artifacts.storage import ArtifactStorage, artifact_storage
from orchestrator.core.db_scope import release_connections
from runtime_jobs.errors import ArtifactDigestMismatch, ChunkConflict, NotFound, ResourceConflict
from runtime_jobs.models import StoredArtifact
from workers.models import Worker

MAX_PIECE_BYTES: Final = 1 << 20
_OFFSET_DIGITS: Final = 13


def store_piece(*, lease_ulid: str, worker: Worker, artifact_ulid: str, offset: int, piece: bytes) -> StoredArtifact:
    """Append a piece to an announced artifact. The same piece again changes nothing.

    The piece is stored between two transactions: heartbeats of the lease do not wait for a slow bucket. If a worker
    sends two different pieces for one position at the same time, the digest of the whole shows it.

    Args:
        lease_ulid: The lease.
        worker: The worker that holds it.
        artifact_ulid: The artifact.
        offset: The position of the first byte.
        piece: The bytes, at least one.

    Raises:
        LifecycleError: Any error of `services.find_artifact_for_piece` and `services.add_artifact_piece`.
        ChunkConflict: Another piece is stored at this position.
        OSError: The storage cannot be written.
    """
    named: dict[str, Any] = {"lease_ulid": lease_ulid, "worker": worker, "artifact_ulid": artifact_ulid}
    row = piece_operations.find_artifact_for_piece(**named, offset=offset, size_bytes=len(piece))
    release_connections()
    storage, key = artifact_storage(), _piece_key(row.object_key, offset)
    if offset < row.received_bytes:
        if not _has_content(storage, key, piece):
            raise ChunkConflict(f"Another piece is stored at the offset {offset}.")
        return row
    storage.put(key, [piece])
    try:
        return piece_operations.add_artifact_piece(**named, offset=offset, size_bytes=len(piece))
    except (NotFound, ResourceConflict):
        storage.remove(key)  # the artifact was closed or abandoned meanwhile: nothing would find the piece again
        raise


def close_artifact(*, lease_ulid: str, worker: Worker, artifact_ulid: str, sha256: str) -> StoredArtifact:
    """Join the pieces of an artifact and make it complete. A repetition changes nothing.

    The object is stored before the row is complete, outside of a transaction: gigabytes take longer than one may last.
    The digest is that of the bytes that were stored. If it is another one, all bytes are deleted.

    Args:
        lease_ulid: The lease.
        worker: The worker that holds it.
        artifact_ulid: The artifact.
        sha256: The digest of the whole, as hexadecimal digits.

    Raises:
        LifecycleError: Any error of `services.find_received_artifact` and `services.complete_lease_artifact`.
        ArtifactDigestMismatch: The digest is not that of the received bytes.
        OSError: The storage cannot be written.
    """
    named: dict[str, Any] = {"lease_ulid": lease_ulid, "worker": worker, "artifact_ulid": artifact_ulid}
    row = piece_operations.find_received_artifact(**named)
    if row.completed_at is not None:
        return piece_operations.complete_lease_artifact(**named, sha256=sha256)
    release_connections()
    storage, digest = artifact_storage(), hashlib.sha256()
    storage.put(row.object_key, _hashed(_pieces(storage, row), digest))
    if digest.hexdigest() != sha256:
        if abandon_objects(StoredArtifact, [row.pk], only_incomplete=True):
            storage.remove(row.object_key)
            remove_pieces(storage, row.object_key, row.byte_count)
        raise ArtifactDigestMismatch(
            f"sha256: the received bytes have the digest {digest.hexdigest()}. They were deleted: announce the "
            "artifact again."
        )
    completed = piece_operations.complete_lease_artifact(**named, sha256=sha256)
    remove_pieces(storage, row.object_key, row.byte_count)
    return completed


def remove_pieces(storage: ArtifactStorage, object_key: str, byte_count: int) -> None:
    """Delete the pieces of an artifact. Some of them may be missing.

    Args:
        storage: The storage.
        object_key: The key of the artifact.
        byte_count: Its size.
    """
    keys, offset = [], 0
    while offset < byte_count and (size := storage.size_of(_piece_key(object_key, offset))):
        keys.append(_piece_key(object_key, offset))
        offset += size
    for key in reversed(keys):  # a process that is killed leaves the first ones, from which the others are found
        storage.remove(key)


def _has_content(storage: ArtifactStorage, key: str, piece: bytes) -> bool:
    try:
        return storage.read(key, 0, MAX_PIECE_BYTES + 1) == piece
    except FileNotFoundError:
        return False


def _pieces(storage: ArtifactStorage, row: StoredArtifact) -> Iterator[bytes]:
    offset = 0
    while offset < row.byte_count:
        piece = storage.read(_piece_key(row.object_key, offset), 0, MAX_PIECE_BYTES)
        yield piece
        offset += len(piece)


def _hashed(blocks: Iterator[bytes], digest: "hashlib._Hash") -> Iterator[bytes]:
    for block in blocks:
        digest.update(block)
        yield block


def _piece_key(object_key: str, offset: int) -> str:
    return f"{object_key}.pieces/{offset:0{_OFFSET_DIGITS}d}"
