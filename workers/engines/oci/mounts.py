"""Mounts the root of a job: an overlay of an image's tree, which stays as it is, and a directory for what changes.

The tree belongs to the uid of the slot that unpacked it. For another slot it is mounted with its owner mapped to that
slot's uid, so one tree serves all slots. All mounts are in the worker's own mount namespace: they end with the worker.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

from workers.engines.limits import disk
from workers.engines.limits.volumes import VolumeError, enter_namespace
from workers.engines.sandbox.launcher import PERL

_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_CLONE, _CLOEXEC = 1, os.O_CLOEXEC
_EMPTY_PATH, _FROM_EMPTY_PATH = 0x1000, 0x4
_READ_ONLY, _NO_SUID, _NO_DEVICES, _ID_MAPPED = 1, 2, 4, 0x00100000
_DETACH, _BIND = 2, 1 << 12
# A user namespace exists as long as a process or a descriptor of it.
_NAMESPACE = 'syscall(272, 0x10000000) == 0 or die "unshare: $!\n"; syswrite STDOUT, "."; sysread STDIN, my $end, 1'


class MountFailed(Exception):
    """The kernel refused a mount. `str()` names the part and the error."""


class IdMaps:
    """The user namespaces that map the owner of trees to the uids of slots. Each is made once."""

    def __init__(self) -> None:
        self._descriptors: dict[tuple[int, int], int] = {}
        self._lock = threading.Lock()

    def descriptor(self, owner: int, uid: int) -> int:
        """Return the descriptor of a namespace in which `owner` is `uid`. Raises MountFailed."""
        with self._lock:
            if (owner, uid) not in self._descriptors:
                self._descriptors[owner, uid] = _namespace(owner, uid)
            return self._descriptors[owner, uid]

    def close(self) -> None:
        with self._lock:
            while self._descriptors:
                os.close(self._descriptors.popitem()[1])


def _namespace(owner: int, uid: int) -> int:
    command = [PERL, "-e", _NAMESPACE]
    with subprocess.Popen(
        command, env={}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None  # noqa: S101  # it is a pipe
        if process.stdout.read(1) != b".":
            assert process.stderr is not None  # noqa: S101  # likewise
            raise MountFailed(f"user namespace: {process.stderr.read(200).decode('utf-8', 'replace').strip()}")
        try:
            for name in ("uid_map", "gid_map"):
                Path(f"/proc/{process.pid}/{name}").write_text(f"{owner} {uid} 1\n")
            return os.open(f"/proc/{process.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise MountFailed(f"user namespace: {error.strerror}") from error


class Overlay:
    """A mounted overlay at `folder/root`, with its changes in `folder/upper`. `close` unmounts and removes all.

    Raises MountFailed.
    """

    def __init__(self, tree: Path, folder: Path, uid: int, mapped: int | None) -> None:
        """Mount it.

        Args:
            tree: The lower directory.
            folder: Does not exist yet, in a directory that only the worker changes.
            uid: The uid of the job.
            mapped: The namespace that maps the owner of the tree, or None if that is `uid`.
        """
        self.folder, self.path = folder, folder / "root"
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            try:
                enter_namespace()
                folder.mkdir(mode=0o711)
                for name in ("upper", "work", "lower", "root"):
                    (folder / name).mkdir(mode=0o755)
                os.chown(folder / "upper", uid, uid)
            except (OSError, VolumeError) as error:
                raise MountFailed(f"directories: {error}") from error
            lower = tree if mapped is None else self._mapped(tree, mapped)
            self._mount(lower)
            if mapped is not None:  # the overlay has a copy of that mount
                _call("unmount", "umount2", os.fsencode(folder / "lower"), _DETACH)
            undo.pop_all()

    def _mapped(self, tree: Path, mapped: int) -> Path:
        source = _system_call("open_tree", _OPEN_TREE, -100, os.fsencode(tree), _CLONE | _CLOEXEC)
        try:
            attributes = (ctypes.c_uint64 * 4)(_ID_MAPPED | _READ_ONLY | _NO_SUID | _NO_DEVICES, 0, 0, mapped)
            _system_call("idmapped mount", _MOUNT_SETATTR, source, b"", _EMPTY_PATH, ctypes.byref(attributes), 32)
            target = os.fsencode(self.folder / "lower")
            _system_call("move_mount", _MOVE_MOUNT, source, b"", -100, target, _FROM_EMPTY_PATH)
        finally:
            os.close(source)
        return self.folder / "lower"

    def _mount(self, lower: Path) -> None:
        # By descriptors: a path may have a comma or a colon.
        found = [os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC) for path in self._layers(lower)]
        try:
            names = zip(("lowerdir", "upperdir", "workdir"), found, strict=True)
            options = ",".join(f"{name}=/proc/self/fd/{descriptor}" for name, descriptor in names).encode()
            flags = ctypes.c_ulong(_NO_SUID | _NO_DEVICES)
            _call("overlay", "mount", b"image", os.fsencode(self.path), b"overlay", flags, options)
        finally:
            for descriptor in found:
                os.close(descriptor)

    def _layers(self, lower: Path) -> tuple[Path, Path, Path]:
        return lower, self.folder / "upper", self.folder / "work"

    def close(self) -> None:
        for name in ("root", "lower"):
            with contextlib.suppress(MountFailed):
                _call("unmount", "umount2", os.fsencode(self.folder / name), _DETACH)
        disk.remove_tree(self.folder)


@contextlib.contextmanager
def shown(folder: Path, directories: dict[str, Path]) -> Iterator[dict[str, Path]]:
    """Show directories of the machine in `folder`, where every uid reaches them. Yields their places by name.

    Raises MountFailed.
    """
    places: dict[str, Path] = {}
    try:
        for number, (name, source) in enumerate(directories.items()):
            place = folder / f"shown-{number}"
            place.mkdir()
            places[name] = place
            _call("bind", "mount", os.fsencode(source), os.fsencode(place), None, ctypes.c_ulong(_BIND), None)
        yield places
    finally:
        for place in places.values():
            with contextlib.suppress(MountFailed):
                _call("unmount", "umount2", os.fsencode(place), _DETACH)
            place.rmdir()


def _call(part: str, name: str, *arguments: object) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments):
        raise MountFailed(f"{part}: {os.strerror(ctypes.get_errno())}")


def _system_call(part: str, number: int, *arguments: object) -> int:
    result = ctypes.CDLL(None, use_errno=True).syscall(number, *arguments)
    if result < 0:
        raise MountFailed(f"{part}: {os.strerror(ctypes.get_errno())}")
    return int(result)
