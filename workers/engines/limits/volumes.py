"""Volumes: a file system per slot, in which the kernel enforces the disk and inode limits of a job.

A volume is an ext4 file system without a journal, in a sparse image behind a loop device. The image has no name, the
loop device clears itself, and the mount exists in a mount namespace of the worker process only. So the kernel removes
all of a volume when the last process of the worker ends, also after SIGKILL.

A volume is made once per slot and reused, so that it delays no job. `Volumes.reset` checks that nothing of the job is
left, returns the space to the machine, and replaces a volume that is not clean. The volume of the self-test is closed
with the self-test.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from workers.engines.contract import EngineUnavailable, RunLimits
from workers.engines.limits.disk import DiskUse
from workers.engines.sandbox import command as sandbox_command

BLOCK = 4096
_INODE_BYTES = 256
_BLOCKS_PER_GROUP = 8 * BLOCK
_OWN_BYTES = 4 << 20  # for directories of the engine and metadata of the file system, beyond the job's limit
_OWN_INODES = 64
_ROOT_BLOCKS = 256  # only root may use them: the worker makes its directories even in a volume that a job has filled
_CLEAN_BYTES, _CLEAN_INODES = 1 << 20, 8
_SUM_SECONDS = 0.2  # many monitors need the same sum
_TRIM_BYTES = 64 << 20  # freed space below it stays allocated in the image for the next job

_NEW_MOUNT_NAMESPACE = 0x00020000
_NO_SUID, _NO_DEV, _NO_ACCESS_TIME, _RECURSIVE, _SLAVE = 2, 4, 1 << 10, 1 << 14, 1 << 19
_DETACH = 2
_LOOP_GET_FREE, _LOOP_CONFIGURE, _LOOP_AUTO_CLEAR = 0x4C82, 0x4C0A, 4
# Without it every page is cached twice: 700 MiB with fsync took 5.4 s instead of 2.1. The kernel drops the flag where
# the machine's file system has no direct I/O.
_LOOP_DIRECT = 16
_LOOP_ATTEMPTS = 100  # another process may take the free device between two calls
_TRIM = 0xC0185879
_SHUTDOWN, _SHUTDOWN_WITHOUT_FLUSH = 0x8004587D, 2


class VolumeError(Exception):
    """The kernel refused a part of a volume. `str()` names the part and the error."""


class Volume:
    """A mounted file system of `limits.disk_bytes` and `limits.max_inodes`, at `mount_point`, which it creates.

    Raises VolumeError.
    """

    def __init__(self, mount_point: Path, limits: RunLimits) -> None:
        self.mount_point, self.limits = mount_point, limits
        self._root = -1
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            self._image = _image(mount_point.parent, limits)
            with _errors("mount point"):
                mount_point.mkdir(mode=0o711, exist_ok=True)
            _mount(self._image, mount_point)
            with _errors("mount point"):
                (mount_point / "lost+found").rmdir()
                mount_point.chmod(0o711)
                self._root = os.open(mount_point, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            self.device = os.fstat(self._root).st_dev
            found = os.fstatvfs(self._root)
            self._own_bytes = (found.f_blocks - found.f_bfree) * found.f_frsize
            self._own_inodes = found.f_files - found.f_ffree
            if found.f_bavail * found.f_frsize < limits.disk_bytes:
                raise VolumeError(f"the file system has {found.f_bavail * found.f_frsize} bytes: too few")
            undo.pop_all()

    def use(self) -> DiskUse:
        """Returns what the job uses, by the counters of the file system: every block and inode, with or without a name.

        `is_full`: the kernel refuses the job its next block or inode.
        """
        found = os.fstatvfs(self._root)
        return DiskUse(
            (found.f_blocks - found.f_bfree) * found.f_frsize - self._own_bytes,
            found.f_files - found.f_ffree - self._own_inodes,
            is_full=not found.f_bavail or not found.f_ffree,
        )

    @property
    def unwritten_bytes(self) -> int:
        """Return the bytes that the job has written and the image has not allocated yet."""
        return max(0, self.use().bytes - self.allocated_bytes)

    @property
    def allocated_bytes(self) -> int:
        """Return what the image takes of the machine's disk."""
        return os.fstat(self._image).st_blocks * 512

    def machine(self) -> os.statvfs_result:
        """Returns the numbers of the file system of the image."""
        return os.fstatvfs(self._image)

    def is_clean(self) -> bool:
        """Report whether the volume is writable and empty."""
        use = self.use()
        writable = not os.fstatvfs(self._root).f_flag & os.ST_RDONLY
        is_small = use.bytes <= _CLEAN_BYTES and use.entries <= _CLEAN_INODES  # with deleted files that are still open
        return writable and is_small and not os.listdir(self._root)  # noqa: PTH208 of a descriptor

    def trim(self) -> None:
        """Return the blocks that no file uses to the machine, if they are many."""
        if self.allocated_bytes - self.use().bytes > _TRIM_BYTES:
            with contextlib.suppress(OSError):  # the machine's file system cannot punch holes
                fcntl.ioctl(self._root, _TRIM, struct.pack("=3Q", 0, (1 << 64) - 1, 0))

    def close(self) -> None:
        """Unmount and remove the volume. Unwritten data is dropped, because the image goes, too."""
        if self._root >= 0:
            with contextlib.suppress(OSError):
                fcntl.ioctl(self._root, _SHUTDOWN, struct.pack("=I", _SHUTDOWN_WITHOUT_FLUSH))
            os.close(self._root)
            self._root = -1
        with contextlib.suppress(VolumeError):
            _call("unmount", "umount2", os.fsencode(self.mount_point), _DETACH)
        with contextlib.suppress(OSError):
            self.mount_point.rmdir()
        image, self._image = getattr(self, "_image", -1), -1
        if image >= 0:
            os.close(image)


class Volumes:
    """The volumes of one engine, by slot; those of images have numbers above them.

    A slot runs one job at a time; several slots may call at once.
    """

    def __init__(self) -> None:
        self._volumes: dict[int, Volume] = {}
        self._lock = threading.Lock()
        self._unwritten = (0.0, 0)

    def directory(self, slot: int, folder: Path, limits: RunLimits) -> Path:
        """Returns the root of the slot's volume: a clean one of these limits, mounted in `folder`.

        Raises EngineUnavailable: without its volume a job would run with weaker limits than promised.
        """
        found = self._volumes.get(slot)
        wanted = folder / f"slot-{slot}"
        if found and (found.mount_point, _size(found.limits)) == (wanted, _size(limits)):
            return wanted
        self.close([slot])
        try:
            enter_namespace()
            made = Volume(wanted, limits)
        except VolumeError as error:
            raise EngineUnavailable(f"no volume for slot {slot}: {error}") from error
        with self._lock:
            self._volumes[slot] = made
        return wanted

    def of(self, place: Path) -> Volume | None:
        """Returns the volume that contains `place`."""
        device = place.lstat().st_dev
        return next((volume for volume in self._all() if volume.device == device), None)

    def use(self, slot: int) -> DiskUse:
        """Returns what is used of the volume with this number; nothing if there is none."""
        found = self._volumes.get(slot)
        return found.use() if found else DiskUse()

    def held_bytes(self, slot: int) -> int:
        """Returns what the volume with this number takes, or will take once it is written, of the machine's disk."""
        found = self._volumes.get(slot)
        return max(found.use().bytes, found.allocated_bytes) if found else 0

    def reset(self, slot: int) -> None:
        """Prepare the slot for its next job, after the workspace was removed. Never raises for the machine's state."""
        if not (found := self._volumes.get(slot)):
            return
        if found.is_clean():
            found.trim()
            return
        self.close([slot])
        with contextlib.suppress(EngineUnavailable):  # the next job's `directory` raises it again
            self.directory(slot, found.mount_point.parent, found.limits)

    def close(self, slots: Iterable[int] | None = None) -> None:
        """Unmount and remove the volumes of these slots; None: of all."""
        for slot in list(self._volumes) if slots is None else slots:
            with self._lock:
                found = self._volumes.pop(slot, None)
            if found:
                found.close()
        self._unwritten = 0.0, 0

    def unwritten_bytes(self) -> int:
        """Returns the sum over all volumes, at most 0.2 s old; see `Volume.unwritten_bytes`."""
        measured_at, total = self._unwritten
        if time.monotonic() - measured_at > _SUM_SECONDS:
            total = 0
            for volume in self._all():
                with contextlib.suppress(OSError):  # closed meanwhile
                    total += volume.unwritten_bytes
            self._unwritten = time.monotonic(), total
        return total

    def _all(self) -> list[Volume]:
        with self._lock:
            return list(self._volumes.values())


def find() -> tuple[Volumes | None, str]:
    """Test a small volume.

    Moves the calling thread, and every thread and process that it starts from then on, into a mount namespace of its
    own. So a worker calls it in its main thread, before it starts others.

    Returns:
        The volumes, or None and the reason, for an operator.
    """
    if os.geteuid() != 0:
        return None, "the worker is not root"
    try:
        sandbox_command.tool_path("mkfs.ext4")
        enter_namespace()
        with tempfile.TemporaryDirectory(prefix="runtime-orchestrator-volume-") as folder:
            Volume(Path(folder) / "probe", RunLimits(disk_bytes=8 << 20)).close()
    except (EngineUnavailable, VolumeError, OSError) as error:
        return None, str(error)
    return Volumes(), ""


_entered: set[str] = set()


def enter_namespace() -> None:
    """Enter a mount namespace of this process, once: its mounts reach no other process of the machine.

    Mounts that the machine makes or removes later still arrive. Raises VolumeError.
    """
    if _namespace() in _entered:
        return
    if _entered:
        raise VolumeError("this thread was started before the worker entered its mount namespace")
    _call("mount namespace", "unshare", _NEW_MOUNT_NAMESPACE)
    _call("private mounts", "mount", b"none", b"/", None, ctypes.c_ulong(_RECURSIVE | _SLAVE), None)
    _entered.add(_namespace())


def _namespace() -> str:
    return str(os.getpid()) + str(Path("/proc/thread-self/ns/mnt").readlink())


def _size(limits: RunLimits) -> tuple[int, int]:
    return limits.disk_bytes, limits.max_inodes


def _image(folder: Path, limits: RunLimits) -> int:
    """Returns a descriptor of a sparse file without a name, with an empty file system for these limits in it."""
    with _errors("image"):
        descriptor, name = tempfile.mkstemp(prefix=".volume-", dir=folder)
        Path(name).unlink()
    try:
        inodes = limits.max_inodes + _OWN_INODES
        content = limits.disk_bytes + inodes * _INODE_BYTES + _ROOT_BLOCKS * BLOCK + _OWN_BYTES
        # ext4 itself holds 2 % back, at most 16 MiB; bitmaps and descriptors take three blocks per group.
        content += min(content // 49, 16 << 20)
        groups = content // (_BLOCKS_PER_GROUP * BLOCK) + 1
        size = content + 4 * groups * BLOCK + (1 << 20)
        with _errors("image"):
            os.ftruncate(descriptor, size)
        _make_file_system(descriptor, inodes, 100 * _ROOT_BLOCKS * BLOCK / size)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _make_file_system(image: int, inodes: int, root_percent: float) -> None:
    command = [
        sandbox_command.tool_path("mkfs.ext4"), "-q", "-F",
        "-b", str(BLOCK), "-I", str(_INODE_BYTES), "-N", str(inodes),
        "-m", f"{root_percent:.4f}", "-O", "^has_journal,^resize_inode", "-E", "lazy_itable_init=1,nodiscard",
        f"/proc/self/fd/{image}",
    ]  # fmt: skip
    done = subprocess.run(command, env={}, check=False, capture_output=True, text=True, pass_fds=[image])
    if done.returncode:
        raise VolumeError(f"mkfs.ext4: {done.stderr.strip()[-200:]}")


def _mount(image: int, mount_point: Path) -> None:
    with _loop_device(image) as device:
        # The image is zero already: nothing needs to initialize its inode tables in the background.
        flags = ctypes.c_ulong(_NO_SUID | _NO_DEV | _NO_ACCESS_TIME)
        options = b"noinit_itable,errors=remount-ro"
        _call("mount", "mount", device.encode(), os.fsencode(mount_point), b"ext4", flags, options)


@contextlib.contextmanager
def _loop_device(image: int) -> Iterator[str]:
    """Yield the path of a loop device on the image, which clears itself when its last user is gone."""
    # loop_config: fd, block size, loop_info64 (flags after five 64-bit and three 32-bit fields), eight reserved fields
    config = struct.pack(
        "=II 5Q 4I 176x 8Q", image, BLOCK, *[0] * 5, 0, 0, 0, _LOOP_AUTO_CLEAR | _LOOP_DIRECT, *[0] * 8
    )
    with _errors("loop device"):
        control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    try:
        path, device = _configured(control, config)
    finally:
        os.close(control)
    try:
        yield path
    finally:
        os.close(device)


def _configured(control: int, config: bytes) -> tuple[str, int]:
    """Returns the path of a free loop device and a descriptor of it, after it has become ours."""
    for _ in range(_LOOP_ATTEMPTS):
        with _errors("loop device"):
            path = f"/dev/loop{fcntl.ioctl(control, _LOOP_GET_FREE)}"
            device = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.ioctl(device, _LOOP_CONFIGURE, config)
            except OSError as error:
                os.close(device)
                if error.errno != errno.EBUSY:
                    raise
            else:
                return path, device
    raise VolumeError(f"loop device: other processes took each of {_LOOP_ATTEMPTS} free ones")


@contextlib.contextmanager
def _errors(part: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise VolumeError(f"{part}: {error.strerror}") from error


def _call(part: str, name: str, *arguments: object) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments):
        raise VolumeError(f"{part}: {os.strerror(ctypes.get_errno())}")
