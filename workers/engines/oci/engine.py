"""The engine that runs commands in container images, and any other command as `bubblewrap` does.

A run in an image has the same sandbox: namespaces, launcher, tracer, filters, control group, volume, egress proxy. The
root of the command is an overlay of the image's unpacked tree, which stays as it is. What the job changes is on the
volume of its slot, so its limits count. The command sees one user: all files of the image belong to it.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import zstandard

from workers.engines.bubblewrap.backend import HOSTS, RESOLVER, WORKSPACE, BubblewrapBackend
from workers.engines.bubblewrap.engine import BubblewrapEngine
from workers.engines.contract import (
    SPARE,
    EngineCapabilities,
    EngineUnavailable,
    ImageRoot,
    MountPoints,
    RunLimits,
    RunResult,
    RunSpec,
    Sink,
    StopSignal,
    TraceLevel,
)
from workers.engines.limits import disk
from workers.engines.oci import checks, inside
from workers.engines.oci.backend import ImageBackend, UnpackBackend
from workers.engines.oci.documents import ImageInvalid
from workers.engines.oci.images import ImageCache, ImageStopped, ImageTree, PulledImage, require_volumes
from workers.engines.oci.mounts import IdMaps, MountFailed, Overlay, shown
from workers.engines.oci.users import find_user
from workers.engines.sandbox.run import SandboxRun
from workers.engines.sandbox.run_dirs import RunEnvironment

_UNPACKER = Path(__file__).with_name("unpack.py").read_text("utf-8")
_UNPACK_SECONDS = 600.0
_REPORT_BYTES = 64 << 10  # the end of its output, which holds the report with all names
_BLOBS, _LIBRARY = "/blobs", "/library"  # names inside
_MOUNT_POINTS = ("proc", "dev", WORKSPACE.strip("/"))

Pull = Callable[[Path], PulledImage]


class OciEngine(BubblewrapEngine):
    """Runs commands in images, and without one as its base does."""

    name = "oci"
    offered = BubblewrapEngine.offered | {"images"}

    def __init__(self, *, cache_bytes: int = 16 << 30, cache_inodes: int = 4 << 20, **options: Any) -> None:
        """Configure the engine.

        Args:
            cache_bytes: The limit of all unpacked images together; images in use stay.
            cache_inodes: The same in inodes.
            options: Those of every engine.
        """
        super().__init__(**options)
        self.cache = ImageCache(cache_bytes, cache_inodes)
        self.id_maps: IdMaps | None = IdMaps()  # None: this kernel has no idmapped mounts

    def check_further(self, slot: int) -> list[str]:
        if found := super().check_further(slot):
            return found
        if self.volumes is None:
            return ["images need volumes, and this machine has none"]
        return checks.check_images(self, slot)

    def check(self) -> EngineCapabilities:
        found = super().check()
        if self.id_maps is not None or found.missing:
            return found
        alone = "images: without idmapped mounts (Linux 5.19) each slot unpacks an image for itself"
        return EngineCapabilities(found.offered, (*found.soft, alone), found.missing)

    def clean(self, slots: Sequence[int]) -> None:
        super().clean(slots)
        if self.volumes:
            self.cache.close(self.volumes)
        if self.id_maps:
            self.id_maps.close()

    def shortage(self, folder: Path) -> str | None:
        while found := super().shortage(folder):
            if not self.volumes or not self.cache.drop_unused(self.volumes):
                return found
        return None

    def mount_points(self, spec: RunSpec) -> MountPoints:
        points = super().mount_points(spec)
        return MountPoints(points.workspace, spec.root.home, points.temporary) if spec.root else points

    def backend(self, environment: RunEnvironment) -> BubblewrapBackend:
        if environment.spec.root is None:
            return super().backend(environment)
        return ImageBackend(environment, **self.backend_options(environment.spec))

    @contextlib.contextmanager
    def image(
        self, name: str, slot: int, folder: Path, limits: RunLimits, *, pull: Pull, stop: StopSignal
    ) -> Iterator[ImageTree]:
        """Hold the unpacked tree of an image, which is pulled and unpacked unless the cache has it.

        Args:
            name: Its name in the cache. It has a digest, and whatever else decides who may use the image.
            slot: The slot of the job. No command runs in it.
            folder: The worker's directory for jobs.
            limits: The limits of the job: the image has the same of bytes and inodes.
            pull: Pulls the image into an empty directory.
            stop: Ends the preparation early.

        Raises:
            EngineUnavailable: This machine cannot unpack it.
            ImageInvalid: The image is refused.
            ImageStopped: A stop was requested.
        """
        key = name if self.id_maps is not None else f"{name} {slot}"

        def make(place: Path) -> ImageTree:
            blobs = place / _BLOBS.strip("/")
            blobs.mkdir(mode=0o711)
            try:
                return self._unpack(pull(blobs), place, slot, limits, stop)
            finally:
                disk.remove_tree(blobs)
                if volume := volumes.of(place):
                    volume.trim()

        volumes = require_volumes(self.volumes)
        with self.cache.held(key, volumes, (folder, limits), make, stop.requested.is_set) as tree:
            yield tree

    @contextlib.contextmanager
    def root(self, tree: ImageTree, slot: int, folder: Path, directory: str) -> Iterator[ImageRoot]:
        """Mount the root of a job, with the working directory, while the context is entered.

        Args:
            tree: The image.
            slot: The slot of the job.
            folder: A directory to be made, in that of the slot.
            directory: The working directory inside; it is made if it is missing.

        Raises:
            EngineUnavailable: This machine cannot mount it.
            ImageInvalid: The image has no such user, or the directory cannot be made.
        """
        uid = self.owner(slot)
        assert uid is not None  # noqa: S101  # volumes need root, and so each slot has a uid
        try:
            mapped = None if tree.owner == uid or self.id_maps is None else self.id_maps.descriptor(tree.owner, uid)
            overlay = Overlay(tree.path, folder, uid, mapped)
        except MountFailed as error:
            raise EngineUnavailable(f"no root of an image in slot {slot}: {error}") from error
        try:
            descriptor = os.open(overlay.path, inside.DIRECTORY)
            try:
                user = find_user(descriptor, tree.config.user)
                _prepare(descriptor, uid)
                _make_directory(descriptor, directory, uid)
            finally:
                os.close(descriptor)
            yield ImageRoot(overlay.path, user.uid, user.gid, user.home)
        finally:
            overlay.close()

    def run_checked(self, spec: RunSpec, output: Sink) -> RunResult:
        """Run a command in the slot of the self-test, which is reserved already."""
        return self._run(spec, output, lambda _: None, StopSignal())

    def forget(self, slot: int) -> None:
        """Close the volumes of the self-test."""
        if self.volumes:
            self.cache.close(self.volumes)
            self.volumes.close([slot])

    def _unpack(self, image: PulledImage, place: Path, slot: int, limits: RunLimits, stop: StopSignal) -> ImageTree:
        uid = self.owner(slot)
        assert uid is not None  # noqa: S101  # volumes need root, and so each slot has a uid
        tree = place / "tree"
        tree.mkdir(mode=0o700)
        os.chown(tree, uid, uid)
        spec = RunSpec(_command(image), tree, slot, _UNPACK_SECONDS, trace=TraceLevel.NONE, limits=limits)
        output = bytearray()

        def keep_end(data: bytes) -> None:
            output.extend(data)
            del output[:-_REPORT_BYTES]

        readable = {f"{_LIBRARY}/zstandard": Path(zstandard.__file__).parent, _BLOBS: place / _BLOBS.strip("/")}
        if not sys.base_prefix.startswith("/usr"):
            readable[sys.base_prefix] = Path(sys.base_prefix)
        is_checked = slot in SPARE  # then it is reserved already
        reserved = contextlib.nullcontext() if is_checked else self.slots.running(slot)
        try:
            with reserved, shown(place, readable) as places, self.run_environment(spec) as environment:
                backend = UnpackBackend(environment, readable=places, **self.backend_options(spec))
                result = SandboxRun(environment, backend, keep_end, lambda _: None).run(stop)
        except MountFailed as error:
            raise EngineUnavailable(f"images cannot be unpacked: {error}") from error
        report = _report(result, bytes(output), limits)
        tree.chmod(0o755)  # it becomes the root of the command
        return ImageTree(tree, uid, image.config, *report)


def _command(image: PulledImage) -> tuple[str, ...]:
    layers = [vars(layer) for layer in image.layers]
    order = {"blobs": _BLOBS, "tree": WORKSPACE, "library": _LIBRARY, "layers": layers}
    return (os.path.realpath(sys.executable), "-I", "-S", "-c", _UNPACKER, json.dumps(order))


def _report(result: RunResult, output: bytes, limits: RunLimits) -> tuple[tuple[str, ...], int]:
    """Return the first entries that were left out, and the number of all.

    Raises ImageInvalid, ImageStopped, EngineUnavailable.
    """
    size = f"{limits.disk_bytes:,} bytes and {limits.max_inodes:,} files"
    if result.kind == "stopped":
        raise ImageStopped
    if result.kind == "disk_full":
        raise ImageInvalid(f"The image is too large: unpacked it has more than {size}.")
    if result.kind == "worker_disk_full":
        raise EngineUnavailable("the disk of this worker is full")
    if result.kind in ("out_of_memory", "timeout"):
        raise ImageInvalid(f"The image cannot be unpacked within its limits ({result.kind}).")
    try:
        report = json.loads(output.rstrip().rpartition(b"\n")[2])
        refused, named, left_out = report["refused"], tuple(report["named"]), report["left_out"]
        if not isinstance(refused, str | None) or {*map(type, named)} - {str} or type(left_out) is not int:
            raise TypeError  # noqa: TRY301
    except (ValueError, KeyError, TypeError):
        if b"No space left" in output or b"File too large" in output:
            raise ImageInvalid(f"The image is too large: unpacked it has more than {size}.") from None
        last = output.decode("utf-8", "replace").strip()[-300:]
        raise EngineUnavailable(f"the unpacker of images failed ({result.kind}): {last!a}") from None
    if refused:
        raise ImageInvalid(refused)
    return named, left_out


def _prepare(root: int, uid: int) -> None:
    """Make the mount points, and the files with which names are resolved. A link to a mount point is replaced."""
    for name in _MOUNT_POINTS:
        _require_directory(root, name, uid)
    with contextlib.suppress(FileExistsError):
        os.mkdir("etc", 0o755, dir_fd=root)
        os.chown("etc", uid, uid, dir_fd=root)
    try:
        etc = os.open("etc", inside.DIRECTORY | os.O_NOFOLLOW, dir_fd=root)
    except OSError:  # the image has something else there
        return
    try:
        for name, text in (("hosts", HOSTS), ("resolv.conf", RESOLVER)):
            with contextlib.suppress(FileNotFoundError, IsADirectoryError):
                os.unlink(name, dir_fd=etc)
            with contextlib.suppress(FileExistsError):  # a directory
                file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=etc)
                os.fchown(file, uid, uid)
                with os.fdopen(file, "w") as opened:
                    opened.write(text)
    finally:
        os.close(etc)


def _require_directory(root: int, name: str, uid: int) -> None:
    """Make a directory below the root unless it is there; whatever else has its name is removed."""
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISDIR(os.stat(name, dir_fd=root, follow_symlinks=False).st_mode):
            return
        os.unlink(name, dir_fd=root)
    os.mkdir(name, 0o755, dir_fd=root)
    os.chown(name, uid, uid, dir_fd=root)


def _make_directory(root: int, directory: str, uid: int) -> None:
    try:
        inside.make_directories(root, directory, uid)
    except OSError as error:
        shown = ascii(directory)[:200]
        raise ImageInvalid(f"The working directory {shown} cannot be made in the image: {error.strerror}.") from None
