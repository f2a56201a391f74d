"""Paths as the job sees them: made absolute, and classified by whether the job may write there."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass

from workers.engines.contract import MountPoints


@dataclass(frozen=True, slots=True)
class JobPaths:
    """Classifies paths by the job's mount points. All paths are absolute and normal (`absolute`)."""

    mount_points: MountPoints

    def shown(self, path: str) -> str:
        """Return a short form for people, the same on every worker: `./` for the checkout, `~/` for the home."""
        for place, short in ((self.mount_points.workspace, "./"), (self.mount_points.home, "~/")):
            if _lies_in(path, place):
                return short + path[len(place) + 1 :]
        return path

    def is_checkout(self, path: str) -> bool:
        return _lies_in(path, self.mount_points.workspace)

    def is_home(self, path: str) -> bool:
        return _lies_in(path, self.mount_points.home)

    def is_temporary(self, path: str) -> bool:
        """Report whether the path is in a temporary directory, but not in the checkout or the home."""
        is_kept = self.is_checkout(path) or self.is_home(path)
        return not is_kept and any(_lies_in(path, place) for place in self.mount_points.temporary)

    def is_own(self, path: str) -> bool:
        """Report whether the job may write there: its checkout, its home, its temporary directories."""
        return self.is_checkout(path) or self.is_home(path) or self.is_temporary(path)


def absolute(path: bytes, directory: str) -> str:
    """Return `path` seen from `directory`, without `.`, `..` and double slashes. Invalid UTF-8 is replaced."""
    joined = posixpath.join(directory, path.decode("utf-8", "replace"))
    return "/" + posixpath.normpath(joined).lstrip("/")


def _lies_in(path: str, place: str) -> bool:
    return path.startswith(place) and (len(path) == len(place) or path[len(place)] == "/")
