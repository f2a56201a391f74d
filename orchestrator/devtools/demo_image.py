"""Builds the image of the seed data: one static program of 200 bytes that prints a benchmark's result."""

import gzip
import io
import json
import struct
import tarfile
from typing import Any, Final

from orchestrator.images.digests import Digest
from orchestrator.images.manifest_documents import OCI_MANIFEST
from orchestrator.images.manifests import find_tag, push_manifest
from orchestrator.images.storage import UploadPart
from orchestrator.images.uploads import store_blob
from runtime_jobs.models import Project

TAG: Final = "latest"
PROGRAM: Final = "bench"
RESULT: Final = b'{"demo": {"latency": {"value": 12.5}}}\n'  # Bencher Metric Format
_LOAD_ADDRESS: Final = 0x400000
_ELF_HEADER_BYTES, _PROGRAM_HEADER_BYTES = 64, 56
_X86_64: Final = 62


def seed_image(project: Project) -> str:
    """Push the image to the repository of a project unless its tag exists. Return the reference to it.

    The reference names no registry, which means this server: the seed does not know the server's port.
    """
    if find_tag(project, TAG) is None:
        layer = _layer()
        config = _config(layer)
        for content in (layer, config):
            _store(project, content)
        push_manifest(project, _manifest(config, layer), OCI_MANIFEST, digest=None, tags=[TAG])
    return f"{project.public_slug}:{TAG}"


def static_program() -> bytes:
    """Return an executable for Linux on x86-64 that writes `RESULT` to its standard output and exits with 0."""
    write = b"\xb8\x01\x00\x00\x00" + b"\xbf\x01\x00\x00\x00"  # mov eax, 1 (write); mov edi, 1
    count = b"\xba" + struct.pack("<I", len(RESULT)) + b"\x0f\x05"  # mov edx, size; syscall
    leave = b"\xb8\x3c\x00\x00\x00" + b"\x31\xff" + b"\x0f\x05"  # mov eax, 60 (exit); xor edi, edi; syscall
    address = b"\x48\x8d\x35" + struct.pack("<i", len(count) + len(leave))  # lea rsi, [rip + distance of RESULT]
    code = write + address + count + leave + RESULT
    begin = _ELF_HEADER_BYTES + _PROGRAM_HEADER_BYTES
    size = begin + len(code)
    identification = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    header = identification + struct.pack(
        "<HHIQQQIHHHHHH",
        2, _X86_64, 1, _LOAD_ADDRESS + begin, _ELF_HEADER_BYTES,
        0, 0, _ELF_HEADER_BYTES, _PROGRAM_HEADER_BYTES, 1, 0, 0, 0,
    )  # fmt: skip
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, _LOAD_ADDRESS, _LOAD_ADDRESS, size, size, 0x1000)
    return header + segment + code


def _layer() -> bytes:
    """Return a compressed layer with the program, always the same bytes."""
    return gzip.compress(_archive(), mtime=0)


def _archive() -> bytes:
    buffer, program = io.BytesIO(), static_program()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        entry = tarfile.TarInfo(PROGRAM)
        entry.size, entry.mode = len(program), 0o755
        archive.addfile(entry, io.BytesIO(program))
    return buffer.getvalue()


def _config(layer: bytes) -> bytes:
    document = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": [f"/{PROGRAM}"]},
        "rootfs": {"type": "layers", "diff_ids": [str(Digest.of(gzip.decompress(layer)))]},
    }
    return json.dumps(document).encode()


def _manifest(config: bytes, layer: bytes) -> bytes:
    document = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": _descriptor(config, "application/vnd.oci.image.config.v1+json"),
        "layers": [_descriptor(layer, "application/vnd.oci.image.layer.v1.tar+gzip")],
    }
    return json.dumps(document).encode()


def _descriptor(content: bytes, media_type: str) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": str(Digest.of(content)), "size": len(content)}


def _store(project: Project, content: bytes) -> None:
    part = UploadPart()
    try:
        part.write(content)
        store_blob(project, part, Digest.of(content))
    finally:
        part.discard()
