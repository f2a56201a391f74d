"""The disk use of a job without a volume: its directories, and deleted files that its processes hold open.

Not visible: deleted files that no process names, because their descriptors are in flight over a socket, or because the
worker may not read the process or the directory. Then `DiskUse.is_blind` is set, and `resource_monitor` decides by the
growth of the file system.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_LEAST = 4096  # an empty file costs an inode
TOO_DEEP = 1 << 62
_DELETED_MAPPING = re.compile(
    r"^0*([0-9a-f]+)-0*([0-9a-f]+) \S+ \S+ ([0-9a-f]+):([0-9a-f]+) (\d+) +(?!/memfd:|/SYSV|/dev/)\S.* \(deleted\)$",
    re.MULTILINE,
)
_IN_FLIGHT = re.compile(r"^scm_fds:\s*0*[1-9]", re.MULTILINE)


@dataclass(frozen=True)
class DiskUse:
    """The use of a disk: bytes and entries or inodes. `is_full`: no more is possible. `is_blind`: a part is unknown."""

    bytes: int = 0
    entries: int = 0
    is_full: bool = False
    is_blind: bool = False

    def __add__(self, other: DiskUse) -> DiskUse:
        return DiskUse(
            self.bytes + other.bytes,
            self.entries + other.entries,
            self.is_full or other.is_full,
            self.is_blind or other.is_blind,
        )


def tree_use(directories: Iterable[Path], max_entries: int, cancelled: Callable[[], bool] = lambda: False) -> DiskUse:
    """Walk through directories. Every name is an entry, also a second name of the same file.

    Args:
        directories: Where to start.
        max_entries: The walk stops at the first entry beyond it, so that a job cannot make the walk longer.
        cancelled: Whether to stop early; the result is then too small.

    Returns:
        The use. A path too deep for the kernel counts as `TOO_DEEP` bytes.
    """
    total = entries = 0
    blind = False
    seen: set[int] = set()
    pending = [str(directory) for directory in directories]
    while pending and not cancelled():
        try:
            with os.scandir(pending.pop()) as found:
                for entry in found:
                    entries += 1
                    if entries > max_entries:
                        return DiskUse(total, entries, is_blind=blind)
                    if entry.inode() not in seen:
                        total += _size(entry, seen)
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                return DiskUse(TOO_DEEP, entries)
            blind |= error.errno in (errno.EACCES, errno.EPERM)  # its owner has closed it; else it was just deleted
    return DiskUse(total, entries, is_blind=blind)


def _size(entry: os.DirEntry[str], seen: set[int]) -> int:
    """Return the size on disk; a file with several names, which are all on one file system, counts once."""
    try:
        found = entry.stat(follow_symlinks=False)
    except OSError as error:
        return TOO_DEEP if error.errno == errno.ENAMETOOLONG else 0
    if found.st_nlink > 1 and not stat.S_ISDIR(found.st_mode):
        seen.add(found.st_ino)
    return max(found.st_blocks * 512, _LEAST)


def deleted_use(pids: Iterable[int], device: int) -> DiskUse:
    """Return the deleted files of `device` that these processes have open or mapped, in any of their threads.

    The result is blind when a process may not be read, when a mapped file may not be measured (that takes
    CAP_CHECKPOINT_RESTORE), or when descriptors are in flight: the kernel shows their number and nothing else.
    """
    sizes: dict[int, int] = {}
    blind = False
    for pid in pids:
        for links_of in (_open_files, _mapped_files):
            try:
                for link, information in links_of(pid, device):
                    if information and _IN_FLIGHT.search(_text(information)):
                        blind = True
                    blind |= not _take(link, device, sizes)
            except (FileNotFoundError, ProcessLookupError):  # it has ended
                pass
            except OSError:
                blind = True
    return DiskUse(sum(sizes.values()), len(sizes), is_blind=blind)


def _take(link: Path, device: int, sizes: dict[int, int]) -> bool:
    """Add the file that the link of a process leads to. Returns whether it could be read."""
    try:
        found = link.stat()
    except (FileNotFoundError, ProcessLookupError):
        return True
    except OSError:
        return False
    if stat.S_ISREG(found.st_mode) and found.st_nlink == 0 and found.st_dev == device:
        sizes[found.st_ino] = found.st_blocks * 512
    return True


def _open_files(pid: int, _device: int) -> Iterator[tuple[Path, Path | None]]:
    """Yield the descriptors of every thread: each thread may have a table of its own."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for link in (task / "fd").iterdir():
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    is_socket = str(link.readlink()).startswith("socket:")
                    yield link, task / "fdinfo" / link.name if is_socket else None


def _mapped_files(pid: int, device: int) -> Iterator[tuple[Path, Path | None]]:
    wanted = (os.major(device), os.minor(device))
    for task in Path(f"/proc/{pid}/task").iterdir():  # the first thread may have ended before the others
        text = _text(task / "maps")
        if not text:
            continue
        done = set()
        for start, end, major, minor, inode in _DELETED_MAPPING.findall(text):
            # A device of major 0, such as that of btrfs, has other numbers here than stat returns.
            if inode not in done and (major == "00" or (int(major, 16), int(minor, 16)) == wanted):
                done.add(inode)
                yield Path(f"/proc/{pid}/map_files/{start}-{end}"), None
        return


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def remove_tree(*directories: Path) -> bool:
    """Remove directories with all that a hostile command may have left there: any depth, any mode.

    `rm` and not shutil: it follows no link, and needs neither recursion nor an open file per level.

    Returns:
        Whether they are gone.
    """
    there = [str(directory) for directory in directories if directory.is_symlink() or directory.exists()]
    if there and _run(["rm", "-rf", "--one-file-system", "--", *there]):
        _run(["chmod", "-R", "u+rwX", "--", *there])
        _run(["rm", "-rf", "--one-file-system", "--", *there])
    return not any(directory.exists() for directory in directories)


def _run(command: Sequence[str]) -> int:
    environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C"}
    return subprocess.run(command, env=environment, check=False, capture_output=True).returncode
