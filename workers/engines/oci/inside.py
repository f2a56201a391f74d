"""Opens paths below a root that a hostile image or job has made: links lead where they would with it as `/`."""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from typing import IO

_OPENAT2 = 437
_NO_MAGIC_LINKS, _IN_ROOT, _NO_CROSSING = 0x02, 0x10, 0x01
_ATTEMPTS = 10  # EAGAIN: something was renamed meanwhile
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def open_inside(root: int, path: str, flags: int) -> int:
    """Return a descriptor of what `path` names below the directory `root`. The caller closes it.

    Raises:
        OSError: There is no such file, or it is on another file system.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    how = struct.pack("QQQ", flags | os.O_CLOEXEC, 0, _NO_MAGIC_LINKS | _IN_ROOT | _NO_CROSSING)
    name = os.fsencode(path) or b"/"
    for _ in range(_ATTEMPTS):
        found = libc.syscall(_OPENAT2, root, name, how, len(how))
        if found >= 0:
            return int(found)
        if (error := ctypes.get_errno()) != 11:
            break
    raise OSError(error, os.strerror(error))


def make_directories(root: int, path: str, owner: int) -> None:
    """Make the directories of `path` below `root` that are missing, for this uid. Raises OSError."""
    done = ""
    for part in path.split("/"):
        if part in ("", "."):
            continue
        parent = open_inside(root, done or "/", DIRECTORY)
        try:
            done = f"{done}/{part}"
            try:
                os.close(open_inside(root, done, DIRECTORY))
            except FileNotFoundError:
                os.mkdir(part, 0o755, dir_fd=parent)
                os.chown(part, owner, owner, dir_fd=parent, follow_symlinks=False)
        finally:
            os.close(parent)


def open_file(root: int, path: str) -> IO[bytes] | None:
    """Return the regular file that `path` names below `root`, or None: there is none. A pipe does not block."""
    try:
        descriptor = open_inside(root, path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return None
    return os.fdopen(descriptor, "rb")


def read_small(root: int, path: str, limit: int) -> bytes:
    """Return the beginning of a regular file below `root`; nothing if there is none."""
    file = open_file(root, path)
    if file is None:
        return b""
    with file:
        return file.read(limit)
