"""Stores objects in `STORAGES["artifacts"]`: files below one folder, or objects in a bucket of S3.

The rows of the database name the objects that count. An object appears whole or not at all, in both storages.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Final, Protocol, cast

from django.core.files.storage import storages

from orchestrator.core.durable_files import make_folder, sync_folder
from orchestrator.core.part_files import PartFileStorage

ARTIFACTS: Final = "artifacts"
OCTETS: Final = "application/octet-stream"
TEXT: Final = "text/plain; charset=utf-8"


class ArtifactStorage(Protocol):
    """The operations of both storages. Keys are relative paths that the server has made."""

    def put(self, key: str, blocks: Iterable[bytes], *, content_type: str = OCTETS) -> int:
        """Store an object, and return its size. An object of this key is replaced at once, when the new one is whole.

        Args:
            key: The key.
            blocks: The content. One block at a time is in memory.
            content_type: The media type, for stores that keep one.
        """

    def read(self, key: str, start: int, length: int) -> bytes:
        """Return part of an object; less at its end.

        Raises:
            FileNotFoundError: There is no such object.
        """

    def size_of(self, key: str) -> int | None:
        """Return the size of an object in bytes, or None: there is no such object."""

    def remove(self, key: str) -> None:
        """Delete an object. It may be missing."""

    def objects(self, prefix: str) -> Iterator[tuple[str, float]]:
        """Yield the key of each object below a prefix that ends with a slash, and its age in seconds."""

    def upload_address(self, key: str, *, seconds: int) -> str | None:
        """Return a URL to which a client may PUT an object directly; None: through the server."""

    def download_address(self, key: str, *, file_name: str, seconds: int) -> str | None:
        """Return a URL from which a client may GET an object directly; None: through the server."""


class ArtifactFileStorage(PartFileStorage):
    """Files below one folder. The clients send and receive them through the server."""

    def put(self, key: str, blocks: Iterable[bytes], *, content_type: str = OCTETS) -> int:  # noqa: ARG002 kept by S3 only
        part = ObjectPart(self)
        try:
            for block in blocks:
                part.write(block)
            part.publish(key)
        finally:
            part.discard()
        return part.size

    def publish(self, part: str, key: str) -> None:
        """Move a complete part to its key. It is on the disk when this returns."""
        source, target = Path(self.path(part)), Path(self.path(key))
        make_folder(target.parent)
        with source.open("rb") as file:
            os.fsync(file.fileno())
        source.replace(target)
        sync_folder(target.parent)

    def read(self, key: str, start: int, length: int) -> bytes:
        with Path(self.path(key)).open("rb") as file:
            file.seek(start)
            return file.read(length)

    def size_of(self, key: str) -> int | None:
        try:
            return Path(self.path(key)).stat().st_size
        except FileNotFoundError:
            return None

    def objects(self, prefix: str) -> Iterator[tuple[str, float]]:
        return self.files(prefix)

    def upload_address(self, key: str, *, seconds: int) -> str | None:  # noqa: ARG002 the server receives the bodies
        return None

    def download_address(self, key: str, *, file_name: str, seconds: int) -> str | None:  # noqa: ARG002 as above
        return None


class ObjectPart:
    """Bytes of an object that are being received, counted and hashed. The file is deleted unless it was published."""

    def __init__(self, storage: ArtifactFileStorage | None = None) -> None:
        self.size = 0
        self._storage = storage or file_storage()
        self._hash = hashlib.sha256()
        self._name: str | None = None
        self._published: str | None = None
        self._file: IO[bytes] | None = None

    @property
    def sha256(self) -> str:
        """The SHA-256 of the bytes until now, in hexadecimal digits."""
        return self._hash.hexdigest()

    def write(self, block: bytes) -> None:
        """Append bytes. In a thread: the disk may be slow.

        Raises:
            OSError: The disk is full or cannot be written.
        """
        self._opened().write(block)
        self._hash.update(block)
        self.size += len(block)

    def publish(self, key: str) -> None:
        """Move the file to its key. An empty object is a file, too. A repetition has no effect."""
        if self._published == key:
            return  # the operation is repeated after a deadlock
        self._opened().flush()
        assert self._name is not None  # noqa: S101 it was opened
        self._storage.publish(self._name, key)
        self._name, self._published = None, key

    def discard(self) -> None:
        """Close and unlock the file, and delete it unless it was published. A second call has no effect."""
        if self._name is not None:
            self._storage.remove(self._name)
            self._name = None
        if self._file is not None:
            self._file.close()
            self._file = None

    def _opened(self) -> IO[bytes]:
        if self._file is None:
            self._name, self._file = self._storage.create_part()
        return self._file


class BlockReader:
    """Reads an iterable of blocks as a file, for clients of S3. It holds one block."""

    def __init__(self, blocks: Iterable[bytes]) -> None:
        self.size = 0
        self._blocks = iter(blocks)
        self._rest = b""

    def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes; fewer only at the end."""
        found, count = [], 0
        while size < 0 or count < size:
            while not self._rest:  # a block may be empty
                following = next(self._blocks, None)
                if following is None:
                    break
                self._rest = following
            if not self._rest:
                break
            piece = self._rest if size < 0 else self._rest[: size - count]
            self._rest = self._rest[len(piece) :]
            found.append(piece)
            count += len(piece)
        self.size += count
        return b"".join(found)


def artifact_storage() -> ArtifactStorage:
    """Return the configured storage of artifacts, caches and finalized logs."""
    return cast("ArtifactStorage", storages[ARTIFACTS])


def file_storage() -> ArtifactFileStorage:
    """Return the configured storage if it is a folder.

    Raises:
        TypeError: It is a bucket, which receives the bodies itself.
    """
    storage: Any = storages[ARTIFACTS]
    if not isinstance(storage, ArtifactFileStorage):
        raise TypeError("Objects are stored in a bucket. Their bodies are not sent through the server.")
    return storage


def is_file_storage() -> bool:
    """Return whether the clients send and receive objects through the server."""
    return isinstance(storages[ARTIFACTS], ArtifactFileStorage)


def age_of(modified_at: datetime) -> float:
    """Return the age in seconds of an object that was modified at a time."""
    return (datetime.now(UTC) - modified_at).total_seconds()
