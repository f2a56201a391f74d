"""The meaning of calls that name files: which path, and which use."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from workers.engines.tracing.strace import TracedCall
from workers.engines.tracing.values import descriptor, fields, text
from workers.report.events import FileEvent
from workers.report.job_paths import absolute
from workers.report.processes import TracedProcess

_MODE = re.compile(rb"0[0-7]{0,6}$")


def argument(call: TracedCall, index: int) -> bytes:
    """Return an argument of the call, or empty bytes."""
    return call.arguments[index] if index < len(call.arguments) else b""


def path_of(call: TracedCall, process: TracedProcess, index: int) -> str | None:
    """Return the path in an argument, seen from the directory in the argument before it, if that is a directory.

    Returns:
        The path. None: strace could not read the name, or the call has none.
    """
    name = text(argument(call, index))
    before = descriptor(argument(call, index - 1)) if index else None
    directory = process.leader.cwd
    if before is not None and before.path is not None and before.path.startswith(b"/"):
        directory = before.path.decode("utf-8", "replace")
        if before.number is None:  # AT_FDCWD: strace shows the working directory
            process.leader.cwd = directory
    return None if name is None else absolute(name, directory)


def named_directory(call: TracedCall) -> str | None:
    """Return the working directory that an openat shows, if nothing else than the line decides where its path is."""
    directory = descriptor(argument(call, 0)) if call.name == "openat" else None
    if directory is None or directory.number is not None or not (directory.path or b"").startswith(b"/"):
        return None
    return (directory.path or b"").decode("utf-8", "replace")


def opened(call: TracedCall, process: TracedProcess) -> Iterator[FileEvent]:
    """Yield the use of open, openat, openat2 and creat."""
    index = 1 if call.name.startswith("openat") else 0
    flags = b"O_WRONLY|O_CREAT|O_TRUNC" if call.name == "creat" else argument(call, index + 1)
    mode = argument(call, 1) if call.name == "creat" else argument(call, index + 2)
    if flags.startswith(b"{"):  # openat2 has a structure
        how = fields(flags)
        flags, mode = how.get(b"flags", b""), how.get(b"mode", b"")
    ops, is_directory = _intent(flags)
    requested = path_of(call, process, index)
    if requested is not None and ops:
        bits = _bits(mode) if "create" in ops else None
        yield FileEvent(_led_to(call, requested), requested, ops, call.errno, bits, is_directory)


@lru_cache(maxsize=256)
def _intent(flags: bytes) -> tuple[frozenset[str], bool]:
    """Return the operations that the flags request, and whether they request a directory. O_PATH reads nothing."""
    words = set(flags.split(b"|"))
    ops = set()
    if b"O_PATH" not in words:
        ops |= {"write"} if words & {b"O_WRONLY", b"O_RDWR", b"O_TRUNC"} else set()
        ops |= {"read"} if b"O_WRONLY" not in words else set()
        ops |= {"create", "write"} if words & {b"O_CREAT", b"O_TMPFILE"} else set()
    return frozenset(ops), b"O_DIRECTORY" in words


def _led_to(call: TracedCall, requested: str) -> str:
    """Return where an open led to, as strace shows it. /proc stays as requested: its numbers are the tracer's."""
    found = call.opened
    if found is None or found.path is None or found.deleted or not found.path.startswith(b"/"):
        return requested
    return requested if requested.startswith("/proc/") else found.path.decode("utf-8", "replace")


def _bits(mode: bytes) -> int | None:
    return int(mode, 8) if _MODE.match(mode) else None


# call → which arguments are paths, what is done to each; then which argument holds permission bits
_CHANGES: dict[str, tuple[tuple[tuple[int, str], ...], int | None]] = {
    "unlink": (((0, "delete"),), None),
    "unlinkat": (((1, "delete"),), None),
    "rmdir": (((0, "delete"),), None),
    "mkdir": (((0, "create"),), 1),
    "mkdirat": (((1, "create"),), 2),
    "mknod": (((0, "create"),), 1),
    "mknodat": (((1, "create"),), 2),
    "rename": (((0, "rename"), (1, "rename")), None),
    "renameat": (((1, "rename"), (3, "rename")), None),
    "renameat2": (((1, "rename"), (3, "rename")), None),
    "link": (((0, "read"), (1, "create")), None),
    "linkat": (((1, "read"), (3, "create")), None),
    "symlink": (((1, "create"),), None),
    "symlinkat": (((2, "create"),), None),
    "truncate": (((0, "write"),), None),
    "chmod": (((0, "metadata"),), 1),
    "fchmodat": (((1, "metadata"),), 2),
    "fchmodat2": (((1, "metadata"),), 2),
    "chown": (((0, "metadata"),), None),
    "lchown": (((0, "metadata"),), None),
    "fchownat": (((1, "metadata"),), None),
}
CHANGES = frozenset(_CHANGES)


def changed(call: TracedCall, process: TracedProcess) -> Iterator[FileEvent]:
    """Yield the uses of all other calls that name a file: see `_CHANGES`."""
    paths, mode_index = _CHANGES[call.name]
    mode = _bits(argument(call, mode_index)) if mode_index is not None else None
    for index, op in paths:
        path = path_of(call, process, index)
        if path is not None:
            yield FileEvent(path, path, frozenset({op}), call.errno, mode, call.name.startswith(("mkdir", "rmdir")))


def moved(call: TracedCall, process: TracedProcess) -> Iterator[FileEvent]:
    """Follow chdir and fchdir: later relative names start there. Yields nothing."""
    if call.ok:
        standing = descriptor(argument(call, 0)) if call.name == "fchdir" else None
        if standing is not None and standing.path is not None:
            process.leader.cwd = standing.path.decode("utf-8", "replace")
        elif (path := path_of(call, process, 0)) is not None:
            process.leader.cwd = path
    yield from ()
