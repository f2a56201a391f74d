"""The format of an audit bundle, for its writer and its verifier: names, lines, tar and gzip. Imports no Django.

Every byte of a bundle is determined by its content, or covered by a digest, so that no byte can be changed unseen:
members of the archive have no times and owners, and a gzip member without content, at the end, has the SHA-256 of the
compressed bytes before it. `tar` and `gzip` read the result as any other archive.
"""

import hashlib
import json
import struct
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

FORMAT: Final = "runtime-orchestrator/audit-bundle/v1"
STATEMENT_TYPE: Final = "application/vnd.in-toto+json"  # the payload type of the envelope
STATEMENT: Final = "https://in-toto.io/Statement/v1"
PREDICATE: Final = "urn:runtime-orchestrator:audit-bundle:v1"

MANIFEST: Final = "manifest.json"
SIGNATURE: Final = "signatures/manifest.dsse.json"
JOBS: Final = "jobs.jsonl"
HISTORY: Final = "history.jsonl"
THROTTLES: Final = "throttles.jsonl"
REPLAYS: Final = "replays.jsonl"
# Names of digests in the first and the final event of a history; the second ones are those of earlier releases.
INPUT_DIGESTS: Final = ("payload_digest", "input_sha256")
RESULT_DIGESTS: Final = ("result_digest", "result_sha256")
DATA_FILES: Final = (JOBS, HISTORY, THROTTLES, REPLAYS)

MAX_SMALL_FILE_BYTES: Final = 1 << 20  # of the manifest and of the signature
MAX_LINE_BYTES: Final = 4 << 20
TAR_BLOCK: Final = 512
MAX_MEMBER_BYTES: Final = 8**11 - 1  # eleven octal digits of a tar header
END_OF_ARCHIVE: Final = bytes(2 * TAR_BLOCK)

# A line: {"entry":…,"digest":"<64 hex digits>"} with the digest of the file from its beginning to the end of the entry.
LINE_START: Final = b'{"entry":'
_DIGEST_NAME: Final = b',"digest":"'
_LINE_END: Final = b'"}\n'
LINE_TAIL_BYTES: Final = len(_DIGEST_NAME) + 64 + len(_LINE_END)

GZIP_HEADER: Final = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"  # no name, no time, no system
_SEAL_START: Final = b"\x1f\x8b\x08\x04\x00\x00\x00\x00\x00\xff" + struct.pack("<H2sH", 36, b"RO", 32)
_SEAL_END: Final = b"\x03\x00" + bytes(8)  # deflate of nothing; CRC and size are 0
SEAL_BYTES: Final = len(_SEAL_START) + 32 + len(_SEAL_END)


@dataclass(frozen=True)
class BundleFile:
    """A data file of a bundle, as its manifest names it."""

    name: str
    size: int
    sha256: str
    lines: int


def canonical(value: Any) -> bytes:
    """Return JSON with sorted names and without blanks. The values have no fractions."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def line_tail(digest: bytes) -> bytes:
    """Return the end of a line, after its entry.

    Args:
        digest: 64 hex digits.
    """
    return _DIGEST_NAME + digest + _LINE_END


def first_of(details: Mapping[str, Any], names: Iterable[str]) -> str | None:
    """Return the first of these members that an event has, or None."""
    return next((details[name] for name in names if name in details), None)


def manifest_of(*, tenant: str, since: str, until: str, files: Iterable[BundleFile]) -> dict[str, Any]:
    """Return the content of `manifest.json`. It has no time of its own: the same snapshot gives the same bytes."""
    entries = [{"name": file.name, "size": file.size, "sha256": file.sha256, "lines": file.lines} for file in files]
    return {"format": FORMAT, "tenant": tenant, "since": since, "until": until, "files": entries}


def statement_of(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the in-toto Statement that is signed: its subjects are the manifest and the data files."""
    manifest_sha256 = hashlib.sha256(canonical(manifest)).hexdigest()
    subjects = [{"name": MANIFEST, "digest": {"sha256": manifest_sha256}}]
    subjects += [{"name": file["name"], "digest": {"sha256": file["sha256"]}} for file in manifest["files"]]
    return {"_type": STATEMENT, "subject": subjects, "predicateType": PREDICATE, "predicate": dict(manifest)}


def tar_header(name: str, size: int) -> bytes:
    """Return the header of a regular file of an archive: without times, owners and any other choice."""
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o644
    return member.tobuf(tarfile.USTAR_FORMAT, "utf-8")


def tar_padding(size: int) -> bytes:
    """Return the zeros after a content of so many bytes."""
    return bytes(-size % TAR_BLOCK)


def gzip_blocks(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the compressed form of blocks, and the seal: a member without content that names the digest of the rest."""
    compressor, digest = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS), hashlib.sha256(GZIP_HEADER)
    yield GZIP_HEADER
    checksum = size = 0
    for block in blocks:
        checksum, size = zlib.crc32(block, checksum), size + len(block)
        if compressed := compressor.compress(block):
            digest.update(compressed)
            yield compressed
    end = compressor.flush() + gzip_trailer(checksum, size)
    digest.update(end)
    yield end
    yield gzip_seal(digest.digest())


def gzip_trailer(checksum: int, size: int) -> bytes:
    """Return the last bytes of a gzip member: the CRC-32 and the size of its content."""
    return struct.pack("<II", checksum, size & 0xFFFFFFFF)


def gzip_seal(digest: bytes) -> bytes:
    """Return the gzip member that ends a bundle.

    Args:
        digest: The SHA-256 of all compressed bytes before it.
    """
    return _SEAL_START + digest + _SEAL_END
