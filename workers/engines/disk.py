"""How much disk a job uses: its directories as they are, and files it has deleted but still holds open."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import subprocess
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

_LEAST = 4096  # an empty file costs an inode; a million of them are a full disk too
TOO_DEEP = 1 << 62


def used(directories: Iterable[Path], give_up: Callable[[], bool] = lambda: False) -> int:
    """Bytes; fewer if it gave up. A path too deep to be looked at counts as `TOO_DEEP`: nothing may hide that way."""
    total = 0
    seen: set[tuple[int, int]] = set()
    ends = [str(directory) for directory in directories]
    while ends and not give_up():
        try:
            with os.scandir(ends.pop()) as entries:
                for entry in entries:
                    total += _size(entry, seen)
                    if entry.is_dir(follow_symlinks=False):
                        ends.append(entry.path)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                return TOO_DEEP
            # Anything else: it was just deleted, or its owner closed it to himself.
    return total


def _size(entry: os.DirEntry[str], seen: set[tuple[int, int]]) -> int:
    try:
        found = entry.stat(follow_symlinks=False)
    except OSError as error:
        return TOO_DEEP if error.errno == errno.ENAMETOOLONG else 0
    key = (found.st_dev, found.st_ino)
    if found.st_nlink > 1 and not stat.S_ISDIR(found.st_mode):
        if key in seen:
            return 0
        seen.add(key)
    return max(found.st_blocks * 512, _LEAST)


def held_deleted(pids: Iterable[int], device: int) -> int:
    """Bytes of files on `device` without a name that these processes still hold open."""
    sizes: dict[tuple[int, int], int] = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    found = entry.stat()
                    if stat.S_ISREG(found.st_mode) and found.st_nlink == 0 and found.st_dev == device:
                        sizes[found.st_dev, found.st_ino] = found.st_blocks * 512
    return sum(sizes.values())


def erase(*directories: Path) -> bool:
    """Remove them with all that a hostile command may have left there: any depth, any mode. True: they are gone.

    `rm` and not shutil: it follows no link, needs no recursion and no open file per level.
    """
    there = [str(directory) for directory in directories if directory.is_symlink() or directory.exists()]
    if there and _run(["rm", "-rf", "--one-file-system", "--", *there]):
        _run(["chmod", "-R", "u+rwX", "--", *there])
        _run(["rm", "-rf", "--one-file-system", "--", *there])
    return not any(directory.exists() for directory in directories)


def _run(command: Sequence[str]) -> int:
    environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C"}
    return subprocess.run(command, env=environment, check=False, capture_output=True).returncode
