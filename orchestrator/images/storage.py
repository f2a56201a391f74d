"""Stores the content of images as files in `STORAGES["images"]`: parts of uploads, and verified blobs.

The rows of the database name the files that count. A file that no row names is invisible, and collection deletes it.
So a process may be killed at every step. A process locks the files for which it has not committed a row yet: the
kernel removes the lock with the process.
"""

import fcntl
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Final

from django.core.files.storage import storages

from orchestrator.core.durable_files import make_folder, sync_folder
from orchestrator.core.part_files import PartFileStorage
from orchestrator.images.digests import Digest, DigestMismatch, update_from_file

IMAGES: Final = "images"
BLOBS: Final = "blobs"


class ImageFileStorage(PartFileStorage):
    """Files of images below one folder. A storage of another kind must have these methods, too."""

    def publish(self, part: str, digest: Digest, size: int) -> "PublishedFile":
        """Move a verified part of this size to the blobs. The file is on the disk, and locked until it is closed."""
        name = f"{BLOBS}/{digest.algorithm}/{digest.hex[:2]}/{digest.hex}.{secrets.token_hex(8)}"
        source, target = Path(self.path(part)), Path(self.path(name))
        make_folder(target.parent)
        file = source.open("rb")
        try:
            fcntl.flock(file, fcntl.LOCK_SH)
            os.fsync(file.fileno())
            os.utime(file.fileno())  # its age counts from the upload's end
            source.rename(target)
            sync_folder(target.parent)
        except BaseException:
            file.close()
            raise
        return PublishedFile(name, size, file)

    def has(self, name: str, size: int) -> bool:
        """Return whether a file exists and has this size. It may have been lost, or cut by a copy."""
        try:
            return Path(self.path(name)).stat().st_size == size
        except FileNotFoundError:
            return False


def image_storage() -> ImageFileStorage:
    """Return the configured storage of images."""
    storage = storages[IMAGES]
    if not isinstance(storage, ImageFileStorage):
        raise TypeError('STORAGES["images"] must be a subclass of orchestrator.images.storage.ImageFileStorage.')
    return storage


class UploadPart:
    """Bytes of an upload that are being received. The file is deleted unless a row names it: see `keep`.

    The file is locked until `discard`. Without a byte there is no file.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.size = 0
        self._file: IO[bytes] | None = None
        self._is_kept = False

    def write(self, block: bytes) -> None:
        """Append bytes. In a thread: the disk may be slow."""
        if not block:
            return
        if self._file is None:
            self.name, self._file = image_storage().create_part()
        self._file.write(block)
        self._file.flush()
        self.size += len(block)

    def keep(self) -> None:
        """Leave the file to the row that names it."""
        self._is_kept = True

    def discard(self) -> None:
        """Close and unlock the file, and delete it if no row names it. A second call has no effect."""
        if self._file is None or self.name is None:
            return
        if not self._is_kept:
            image_storage().remove(self.name)
        self._file.close()
        self._file = None


class PublishedFile:
    """The file of a blob whose row is not committed yet. It is locked until `close`."""

    def __init__(self, name: str, size: int, file: IO[bytes]) -> None:
        self.name, self.size, self._file = name, size, file

    def close(self) -> None:
        """Unlock the file."""
        self._file.close()


def publish_parts(parts: Sequence[str], digest: Digest) -> PublishedFile:
    """Verify the content of some parts, and make it a blob.

    The bytes that are hashed are those on the disk, which nothing changes afterwards.

    Args:
        parts: Names of the parts in their order.
        digest: The digest that the content must have.

    Returns:
        The file of the blob. The parts are gone.

    Raises:
        DigestMismatch: The content has another digest. The parts remain.
        FileNotFoundError: A part is missing.
    """
    storage, hasher = image_storage(), digest.hasher()
    if len(parts) == 1:
        with storage.open(parts[0]) as content:
            size = update_from_file(hasher, content)
        _require(hasher.hexdigest(), digest)
        return storage.publish(parts[0], digest, size)
    name, whole = storage.create_part()
    size = 0
    with whole:
        try:
            for part in parts:
                with storage.open(part) as content:
                    size += update_from_file(hasher, content, whole)
            whole.flush()
            _require(hasher.hexdigest(), digest)
            fcntl.flock(whole, fcntl.LOCK_SH)  # `publish` opens the file again
            published = storage.publish(name, digest, size)
        except BaseException:
            storage.remove(name)
            raise
    for part in parts:
        storage.remove(part)
    return published


def publish_bytes(content: bytes, digest: Digest) -> PublishedFile:
    """Store bytes as a blob. The caller has verified the digest."""
    storage = image_storage()
    name, file = storage.create_part()
    with file:
        try:
            file.write(content)
            file.flush()
            fcntl.flock(file, fcntl.LOCK_SH)
            return storage.publish(name, digest, len(content))
        except BaseException:
            storage.remove(name)
            raise


def _require(actual: str, digest: Digest) -> None:
    if actual != digest.hex:
        raise DigestMismatch(f"The content does not have the digest {digest}.")
