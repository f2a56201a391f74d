"""Audit bundles for tests: small ones from invented rows, and changed copies with a correct seal."""

import gzip
import hashlib
import io
import json
import tarfile
import zlib
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from orchestrator.evidence import bundle_format as form
from orchestrator.evidence.bundle_format import BundleFile
from orchestrator.evidence.dsse import sealed_envelope

KEY, OTHER = (Ed25519PrivateKey.from_private_bytes(bytes([byte]) * 32) for byte in (1, 2))
Members = list[tuple[bytes, bytes]]  # header and content of each member


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def lines_of(entries: list[str]) -> bytes:
    content = b""
    for entry in entries:
        content += form.LINE_START + entry.encode()
        content += form.line_tail(sha256(content).encode())
    return content


def history_of(ulid: str, payload: str, result: str, events: int = 3) -> tuple[str, list[str]]:
    """Returns the entry of a job and those of its history."""
    rows, head = [], ""
    for seq in range(1, events + 1):
        details = {"payload_digest": sha256(payload.encode())} if seq == 1 else {}
        details |= {"result_digest": sha256(result.encode())} if seq == events else {}
        row = text({"job_ulid": ulid, "seq": seq, "prev_hash": head, "payload": details})
        integrity = {"attempt": 1, "sequence": seq, "prevHash": head or None, "hash": sha256(row.encode())}
        head = integrity["hash"]
        rows.append(f'{{"row":{row},"envelope":{text({"integrity": integrity})}}}')
    job = {"ulid": ulid, "inputDigest": sha256(payload.encode()), "resultDigest": sha256(result.encode())}
    job |= {"events": events, "head": head}
    return f'{{"payload":{payload},"result":{result},"job":{text(job)}}}', rows


def sample_files(jobs: int = 3) -> dict[str, bytes]:
    """The data files of a bundle with some jobs."""
    pairs = [history_of(f"rtj_{number:026}", text({"n": number}), text({"exit_code": 0})) for number in range(jobs)]
    return {
        form.JOBS: lines_of([job for job, _ in pairs]),
        form.HISTORY: lines_of([row for _, rows in pairs for row in rows]),
        form.THROTTLES: lines_of([text({"envelope": {"eventType": "limit.set"}})]),
        form.REPLAYS: b"",
    }


def members_of(files: dict[str, bytes], *, key: Ed25519PrivateKey = KEY, **changes: Any) -> Members:
    """The members of a bundle that this key signs. `changes` are members of the manifest."""
    described = [BundleFile(name, len(data), sha256(data), data.count(b"\n")) for name, data in files.items()]
    manifest = form.manifest_of(
        tenant="acme", since="2026-01-01T00:00:00Z", until="2026-02-01T00:00:00Z", files=described
    )
    manifest |= changes
    statement = form.canonical(form.statement_of(manifest))
    envelope = sealed_envelope(form.STATEMENT_TYPE, statement, key)
    contents = {form.MANIFEST: form.canonical(manifest), form.SIGNATURE: form.canonical(envelope)} | files
    return [(form.tar_header(name, len(content)), content) for name, content in contents.items()]


def archive_of(members: Members) -> bytes:
    parts = [header + content + form.tar_padding(len(content)) for header, content in members]
    return b"".join(parts) + form.END_OF_ARCHIVE


def sealed(archive: bytes) -> bytes:
    return b"".join(form.gzip_blocks([archive]))


def bundle_of(members: Members) -> bytes:
    return sealed(archive_of(members))


def unpacked(bundle: bytes) -> Members:
    """The members of a bundle, as a common reader of archives finds them."""
    with tarfile.open(fileobj=io.BytesIO(bundle), mode="r:gz") as archive:
        found = [(member, archive.extractfile(member).read()) for member in archive.getmembers()]  # type: ignore[union-attr]
    return [(form.tar_header(member.name, member.size), content) for member, content in found]


def contents_of(bundle: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(bundle), mode="r:gz") as archive:
        return {member.name: archive.extractfile(member).read() for member in archive.getmembers()}  # type: ignore[union-attr]


def decompressed(bundle: bytes) -> bytes:
    return gzip.decompress(bundle)


def raw_deflate(data: bytes) -> bytes:
    compressor = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    return compressor.compress(data) + compressor.flush()
