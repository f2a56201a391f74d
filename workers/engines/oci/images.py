"""The unpacked trees of images, kept for later jobs: one tree an image, each on a volume of its own.

The volume limits the bytes and inodes of the image, while its layers arrive and while they are unpacked. It goes as a
whole, at once: the tree that was unused for longest first, when all together pass the limits of the cache, or when the
machine's disk runs low. Like every volume it ends with the worker process, so a worker begins with an empty cache and a
killed one leaves no file.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from workers.engines.contract import EngineUnavailable, RunLimits
from workers.engines.limits.volumes import Volumes
from workers.engines.oci.documents import ImageConfig

_FIRST_NUMBER = 1000  # of the volumes of images: above those of slots
_WAIT_SECONDS = 0.2
_MAX_TREES = 64  # each has a loop device, a mount and descriptors


@dataclass(frozen=True)
class LayerFile:
    """A layer that was pulled: the name of its file, its compression, and the digest of its decompressed bytes."""

    name: str
    compression: str
    diff_id: str


@dataclass(frozen=True)
class PulledImage:
    """An image whose layers are files."""

    config: ImageConfig
    layers: tuple[LayerFile, ...]


@dataclass(frozen=True)
class ImageTree:
    """An unpacked image: its tree, the uid that owns all of it, and the entries that were left out."""

    path: Path
    owner: int
    config: ImageConfig
    left_out: tuple[str, ...] = ()
    left_out_count: int = 0


@dataclass
class _CachedImage:
    tree: ImageTree
    number: int
    users: int = 0


class ImageStopped(Exception):
    """A stop was requested while the image was prepared."""


class ImageCache:
    """The trees of one engine. Several jobs may use one, and one job prepares it while others wait."""

    def __init__(self, max_bytes: int, max_inodes: int) -> None:
        self.max_bytes, self.max_inodes = max_bytes, max_inodes
        self._entries: OrderedDict[str, _CachedImage] = OrderedDict()  # the one that was used last is last
        self._making: set[str] = set()
        self._changed = threading.Condition()
        self._numbers = itertools.count(_FIRST_NUMBER)

    @contextlib.contextmanager
    def held(
        self,
        key: str,
        volumes: Volumes,
        place: tuple[Path, RunLimits],
        make: Callable[[Path], ImageTree],
        is_stopped: Callable[[], bool],
    ) -> Iterator[ImageTree]:
        """Hold a tree while the context is entered.

        Args:
            key: Its name.
            volumes: Where its volume is made.
            place: The directory of the volume, and the limits of the image.
            make: Makes the tree in the empty volume.
            is_stopped: Whether to stop waiting for another job that makes it.

        Raises:
            EngineUnavailable: The volume cannot be made.
            ImageStopped: `is_stopped` returned true.
        """
        entry = self._take(key, is_stopped)
        if entry is None:
            entry = self._make(key, volumes, place, make)
        try:
            yield entry.tree
        finally:
            with self._changed:
                entry.users -= 1
            self._evict(volumes)

    def _take(self, key: str, is_stopped: Callable[[], bool]) -> _CachedImage | None:
        """Return the entry with one more user, or None: the caller must make it."""
        with self._changed:
            while key in self._making:
                if is_stopped():
                    raise ImageStopped
                self._changed.wait(_WAIT_SECONDS)
            entry = self._entries.get(key)
            if entry is None:
                self._making.add(key)
                return None
            self._entries.move_to_end(key)
            entry.users += 1
            return entry

    def _make(
        self, key: str, volumes: Volumes, place: tuple[Path, RunLimits], make: Callable[[Path], ImageTree]
    ) -> _CachedImage:
        number = next(self._numbers)
        try:
            entry = _CachedImage(make(volumes.directory(number, *place)), number, users=1)
            with self._changed:
                self._entries[key] = entry
        except BaseException:
            volumes.close([number])
            raise
        finally:
            with self._changed:
                self._making.discard(key)
                self._changed.notify_all()
        self._evict(volumes)
        return entry

    def _evict(self, volumes: Volumes) -> None:
        while self._is_over(volumes) and self.drop_unused(volumes):
            pass

    def _is_over(self, volumes: Volumes) -> bool:
        with self._changed:
            numbers = [entry.number for entry in self._entries.values()]
            return (
                len(numbers) > _MAX_TREES
                or sum(map(volumes.held_bytes, numbers)) > self.max_bytes
                or sum(volumes.use(number).entries for number in numbers) > self.max_inodes
            )

    def drop_unused(self, volumes: Volumes) -> bool:
        """Close the volume of the tree that was unused for longest. Returns whether there was one."""
        with self._changed:
            unused = next((key for key, entry in self._entries.items() if not entry.users), None)
            if unused is None:
                return False
            number = self._entries.pop(unused).number
        volumes.close([number])
        return True

    def close(self, volumes: Volumes) -> None:
        """Close all volumes: no job runs."""
        with self._changed:
            numbers = [entry.number for entry in self._entries.values()]
            self._entries.clear()
        volumes.close(numbers)


def require_volumes(volumes: Volumes | None) -> Volumes:
    """Return the volumes. Raises EngineUnavailable where the machine has none."""
    if volumes is None:
        raise EngineUnavailable("images need volumes, which this machine does not have")
    return volumes
