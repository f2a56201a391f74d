"""The self-test of images at the worker's start: a tiny image is unpacked, mounted and run."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import struct
import tarfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from workers.engines.contract import ImageRoot, RunLimits, RunResult, RunSpec, Sink, StopSignal, TraceLevel
from workers.engines.oci.documents import ImageConfig, ImageInvalid
from workers.engines.oci.images import ImageTree, LayerFile, PulledImage
from workers.engines.oci.mounts import IdMaps, MountFailed, Overlay
from workers.engines.sandbox import self_test

_PROGRAM, _EXIT_CODE = "check", 42
_LIMITS = RunLimits(disk_bytes=16 << 20)
_SECONDS = 60.0  # a busy machine needs more than ten


class ImageEngine(Protocol):
    """The parts of an engine that the check uses."""

    id_maps: IdMaps | None

    def owner(self, slot: int) -> int | None: ...

    def directory(self, slot: int, folder: Path, limits: RunLimits) -> Path: ...

    def image(
        self,
        name: str,
        slot: int,
        folder: Path,
        limits: RunLimits,
        *,
        pull: Callable[[Path], PulledImage],
        stop: StopSignal,
    ) -> AbstractContextManager[ImageTree]: ...

    def root(self, tree: ImageTree, slot: int, folder: Path, directory: str) -> AbstractContextManager[ImageRoot]: ...

    def run_checked(self, spec: RunSpec, output: Sink) -> RunResult: ...

    def forget(self, slot: int) -> None: ...


def check_images(engine: ImageEngine, slot: int) -> list[str]:
    """Run a program in an image. Returns what went wrong. Where mounts map no ids, `engine.id_maps` becomes None."""
    output = bytearray()
    owner = engine.owner(slot)
    assert owner is not None  # noqa: S101  # only a worker that is root has volumes
    with self_test.workspace(owner) as place:
        try:
            with engine.image("check", slot, place.parent, _LIMITS, pull=_pull, stop=StopSignal()) as tree:
                if engine.id_maps and not _maps_owners(engine.id_maps, tree, place.with_name("mapped")):
                    engine.id_maps = None
                workspace = engine.directory(slot, place.parent, _LIMITS) / "check"
                workspace.mkdir(mode=0o700)
                os.chown(workspace, owner, owner)
                with engine.root(tree, slot, workspace.with_name("check.image"), "/made/here") as root:
                    spec = RunSpec((f"/{_PROGRAM}",), workspace, slot, _SECONDS, working_directory="/made/here")
                    spec = RunSpec(**vars(spec) | {"limits": _LIMITS, "root": root, "trace": TraceLevel.NONE})
                    result = engine.run_checked(spec, output.extend)
        except ImageInvalid as error:
            return [f"images: {error}"]
        finally:
            engine.forget(slot)
    if result.exit_code == _EXIT_CODE:
        return []
    return [f"a program does not run in an image: {result.kind}, {bytes(output[-300:])!r}"]


def _maps_owners(id_maps: IdMaps, tree: ImageTree, folder: Path) -> bool:
    try:
        overlay = Overlay(tree.path, folder, tree.owner + 1, id_maps.descriptor(tree.owner, tree.owner + 1))
    except MountFailed:
        return False
    try:
        return (overlay.path / _PROGRAM).stat().st_uid == tree.owner + 1
    finally:
        overlay.close()


def _pull(folder: Path) -> PulledImage:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as layer:
        entry, program = tarfile.TarInfo(_PROGRAM), _program()
        entry.size, entry.mode = len(program), 0o755
        layer.addfile(entry, io.BytesIO(program))
    content = archive.getvalue()
    (folder / "layer").write_bytes(gzip.compress(content))
    diff_id = f"sha256:{hashlib.sha256(content).hexdigest()}"
    return PulledImage(ImageConfig(user="7:8", diff_ids=(diff_id,)), (LayerFile("layer", "gzip", diff_id),))


def _program() -> bytes:
    """Return a program for Linux on x86-64 that exits with `_EXIT_CODE`. An image has no other that it needs."""
    code = b"\xb8\x3c\0\0\0" + b"\xbf" + struct.pack("<I", _EXIT_CODE) + b"\x0f\x05"  # mov eax, 60; mov edi, N; syscall
    base, headers = 0x400000, 64 + 56
    size = headers + len(code)
    header = b"\x7fELF\x02\x01\x01" + bytes(9)
    header += struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, base + headers, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    return header + struct.pack("<IIQQQQQQ", 1, 5, 0, base, base, size, size, 0x1000) + code
