"""The free space that the file system of a worker's directory keeps, in bytes and inodes.

One rule for all: no job is claimed without room above the reserve, the largest job is stopped below it, and every job
below half of it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from workers.engines.contract import SPARE

_TO_CLAIM, _TO_RUN, _TO_RUN_LARGEST = 1.25, 0.5, 1.0  # shares of the reserve that must be free


@dataclass(frozen=True)
class FreeSpace:
    """The free space of a file system. `inodes` is None where it has no number of them."""

    bytes: int
    inodes: int | None = None

    @classmethod
    def of(cls, found: os.statvfs_result, unwritten_bytes: int = 0) -> FreeSpace:
        """Return the free space.

        Args:
            found: The numbers of the file system.
            unwritten_bytes: Blocks that jobs have written in their volumes and the images have not allocated yet.
        """
        free = found.f_bavail * found.f_frsize - unwritten_bytes
        return cls(free, found.f_favail if found.f_files else None)


@dataclass(frozen=True)
class Reserve:
    """The free space to keep. 0: none."""

    bytes: int = 1 << 30
    inodes: int = 10_000

    def of(self, slot: int) -> Reserve:
        """Return no reserve for a self-test: it writes to the machine's temporary directory, which may be small."""
        return Reserve(0, 0) if slot in SPARE else self

    def must_stop(self, free: FreeSpace, *, is_largest: bool) -> bool:
        """Report whether a running job must be stopped, which is the worker's fault and not the job's."""
        return self._share(free) < (_TO_RUN_LARGEST if is_largest else _TO_RUN)

    def shortage(self, free: FreeSpace) -> str | None:
        """Return why no further job may start, for an operator, or None."""
        if self._share(free) >= _TO_CLAIM:
            return None
        least = int(self.bytes * _TO_CLAIM)
        if free.bytes < least:
            return f"Its work directory has {free.bytes:,} bytes free. A job needs {least:,}."
        return f"Its work directory has {free.inodes:,} inodes free. A job needs {int(self.inodes * _TO_CLAIM):,}."

    def _share(self, free: FreeSpace) -> float:
        share = free.bytes / max(self.bytes, 1)
        return share if free.inodes is None else min(share, free.inodes / max(self.inodes, 1))
