"""Verifies an audit bundle without server, database and Django: it reads a stream once and writes nothing.

The manifest and its signature are the first members, so nothing is read that no trusted key has signed. Whatever
follows must be exactly what the manifest names, byte by byte. The first fault ends the reading and is named.
"""

import base64
import hashlib
import json
import re
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import IO, Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from orchestrator.evidence import bundle_format as form
from orchestrator.evidence.dsse import EnvelopeRefused, signatures_of, verify
from orchestrator.evidence.public_keys import key_id

_READ_BYTES: Final = 1 << 16
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_DECODER: Final = json.JSONDecoder()

EntryReader = Callable[[str, Mapping[str, Any]], None]


class BundleRefused(Exception):
    """The bundle is not what its key has signed, or is not signed by a named key. The text names the first fault."""


@dataclass(frozen=True)
class VerifiedBundle:
    """The content of a bundle that was verified.

    Attributes:
        tenant: The tenant.
        since: The beginning of the time that it covers, RFC 3339.
        until: The end of that time.
        key_id: The key that has signed it.
        sha256: The digest of the whole bundle.
        lines: The number of lines of each data file.
    """

    tenant: str
    since: str
    until: str
    key_id: str
    sha256: str
    lines: Mapping[str, int]


def verify_bundle(
    stream: IO[bytes], public_keys: Iterable[Ed25519PublicKey], *, on_entry: EntryReader | None = None
) -> VerifiedBundle:
    """Read a bundle to its end and verify it.

    Args:
        stream: The bundle. It is read once, in blocks, and need not be seekable.
        public_keys: The keys that the reader trusts. A key in the bundle would prove nothing.
        on_entry: Is called with the file and the entry of each line. Nothing is proven before this function returns.

    Raises:
        BundleRefused: The first fault.
    """
    keys = list(public_keys)
    if not keys:
        raise BundleRefused("No public key was named. A bundle cannot prove its own origin: name the key to trust.")
    source = _BundleArchive(stream)
    manifest_bytes = source.small_file(form.MANIFEST)
    envelope_bytes = source.small_file(form.SIGNATURE)
    signer = _require_signature(manifest_bytes, envelope_bytes, keys)
    manifest = _manifest(manifest_bytes)
    jobs = _JobBindings()
    for file in manifest["files"]:
        _read_file(source, file, partial(_ENTRY_CHECKS[file["name"]], jobs), on_entry)
    jobs.end()
    sha256 = source.end()
    lines = {file["name"]: file["lines"] for file in manifest["files"]}
    return VerifiedBundle(manifest["tenant"], manifest["since"], manifest["until"], signer, sha256, lines)


# --- the manifest and its signature -----------------------------------------------------------------------------------


def _require_signature(manifest: bytes, envelope_bytes: bytes, keys: list[Ed25519PublicKey]) -> str:
    """Return the id of the key that has signed the manifest."""
    envelope = _parsed(envelope_bytes, form.SIGNATURE)
    if not isinstance(envelope, dict):
        raise BundleRefused(f"{form.SIGNATURE}: it is not an envelope.")
    try:
        payload = verify(envelope, keys, payload_type=form.STATEMENT_TYPE)
    except EnvelopeRefused as refusal:
        raise BundleRefused(f"{form.SIGNATURE}: {refusal}") from None
    signer = next(key_id(key) for key in keys if _has_signed(envelope, key))
    # One signature, with the id of its key and without one, and no further members: the signature covers none of these.
    exact = {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": form.STATEMENT_TYPE,
        "signatures": signatures_of(signer, envelope["signatures"][0]["sig"]),
    }
    if form.canonical(exact) != envelope_bytes:
        raise BundleRefused(f"{form.SIGNATURE}: it is not in canonical JSON, or has further members.")
    if payload != form.canonical(form.statement_of(_manifest(manifest))):
        raise BundleRefused(f"{form.MANIFEST}: the signed statement is about another manifest.")
    return signer


def _has_signed(envelope: Mapping[str, Any], key: Ed25519PublicKey) -> bool:
    try:
        verify(envelope, [key])
    except EnvelopeRefused:
        return False
    return True


def _manifest(content: bytes) -> dict[str, Any]:
    manifest = _parsed(content, form.MANIFEST)
    if not isinstance(manifest, dict) or form.canonical(manifest) != content:
        raise BundleRefused(f"{form.MANIFEST}: it is not an object in canonical JSON.")
    if manifest.get("format") != form.FORMAT:
        raise BundleRefused(f"{form.MANIFEST}: the format {manifest.get('format')!r} is unknown.")
    files = manifest.get("files")
    texts = [manifest.get(name) for name in ("tenant", "since", "until")]
    if not isinstance(files, list) or not all(isinstance(text, str) for text in texts):
        raise BundleRefused(f"{form.MANIFEST}: a member is missing or has another type.")
    if [file.get("name") if isinstance(file, dict) else None for file in files] != list(form.DATA_FILES):
        raise BundleRefused(f"{form.MANIFEST}: the data files must be {', '.join(form.DATA_FILES)}, in this order.")
    for file in files:
        numbers = (file.get("size"), file.get("lines"))
        if not all(type(number) is int and 0 <= number <= form.MAX_MEMBER_BYTES for number in numbers) or not (
            isinstance(file.get("sha256"), str) and _SHA256.fullmatch(file["sha256"])
        ):
            raise BundleRefused(f"{form.MANIFEST}: the description of {file['name']} is not valid.")
    return manifest


def _parsed(content: bytes, name: str) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise BundleRefused(f"{name}: it is not JSON.") from None


# --- the archive ------------------------------------------------------------------------------------------------------


class _BundleArchive:
    """The members of the archive in order. Compressed bytes, headers and padding are exactly those of the writer."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        self._compressed = hashlib.sha256()  # of the first gzip member
        self._whole = hashlib.sha256()
        self._checksum = self._size = 0
        self._buffer = b""
        self._input = b""
        if self._raw(len(form.GZIP_HEADER)) != form.GZIP_HEADER:
            raise BundleRefused("The file is not an audit bundle: its gzip header is another one.")
        self._compressed.update(form.GZIP_HEADER)

    def small_file(self, name: str) -> bytes:
        """Return the content of the next member, which must have this name."""
        size = self._begin(name, None)
        content = b"".join(self._content(size))
        self.padding(name, size)
        return content

    def file(self, name: str, size: int) -> Iterator[bytes]:
        """Yield the content of the next member, which must have this name and size. `padding` must follow."""
        self._begin(name, size)
        return self._content(size)

    def padding(self, name: str, size: int) -> None:
        expected = form.tar_padding(size)
        if self._take(len(expected)) != expected:
            raise BundleRefused(f"{name}: bytes follow its content.")

    def end(self) -> str:
        """Require the end of the archive, and return the digest of the whole bundle."""
        end = self._take(len(form.END_OF_ARCHIVE))
        if end != form.END_OF_ARCHIVE:
            raise BundleRefused(f"The archive has a further member: {_name_of(end)}.")
        if self._take(1, at_end=True):
            raise BundleRefused("Bytes follow the end of the archive.")
        if not self._inflater.eof:
            raise BundleRefused("The compressed data does not end.")
        trailer = form.gzip_trailer(self._checksum, self._size)
        if self._raw(len(trailer)) != trailer:
            raise BundleRefused("The gzip checksum is wrong.")
        self._compressed.update(trailer)
        seal = form.gzip_seal(self._compressed.digest())
        if self._raw(len(seal)) != seal:
            raise BundleRefused("The compressed bytes are not those that the seal at the end of the bundle names.")
        if self._raw(1):
            raise BundleRefused("Bytes follow the end of the bundle.")
        return self._whole.hexdigest()

    def _begin(self, name: str, size: int | None) -> int:
        header = self._take(form.TAR_BLOCK)
        if header == bytes(form.TAR_BLOCK):
            raise BundleRefused(f"{name}: the member is missing.")
        declared = _size_of(header) if size is None else size
        if size is None and declared > form.MAX_SMALL_FILE_BYTES:
            raise BundleRefused(f"{name}: it is larger than {form.MAX_SMALL_FILE_BYTES} bytes.")
        if header != form.tar_header(name, declared):
            found = _name_of(header)
            if found != repr(name):
                raise BundleRefused(f"{name}: the member {found} is in its place.")
            raise BundleRefused(f"{name}: its header in the archive was changed, or it is no regular file of its size.")
        return declared

    def _content(self, size: int) -> Iterator[bytes]:
        while size:
            block = self._take(min(size, _READ_BYTES))
            size -= len(block)
            yield block

    def _take(self, count: int, *, at_end: bool = False) -> bytes:
        """Return so many decompressed bytes; at the end of the data fewer, if that is permitted."""
        parts, missing = [], count
        while missing:
            if not self._buffer and not self._inflate():
                if at_end:
                    break
                raise BundleRefused("The bundle ends too early.")
            part, self._buffer = self._buffer[:missing], self._buffer[missing:]
            parts.append(part)
            missing -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _inflate(self) -> bool:
        """Decompress the next bytes into the buffer. Returns whether there were any."""
        while not self._inflater.eof:
            pending = self._inflater.unconsumed_tail
            given = pending or self._input or self._stream.read(_READ_BYTES)
            if not pending:
                self._input = b""
            if not given:
                return False
            try:
                block = self._inflater.decompress(given, _READ_BYTES)
            except zlib.error:
                raise BundleRefused("The compressed data is damaged.") from None
            if self._inflater.eof:  # the tail may then be the same bytes again
                rest = self._input = self._inflater.unused_data
            else:
                rest = self._inflater.unconsumed_tail
            used = given[: len(given) - len(rest)]
            self._compressed.update(used)
            self._whole.update(used)
            if block:
                self._checksum = zlib.crc32(block, self._checksum)
                self._size += len(block)
                self._buffer = block
                return True
        return False

    def _raw(self, count: int) -> bytes:
        """Return so many compressed bytes that are no part of the compressed data; fewer at the end of the stream."""
        while len(self._input) < count and (block := self._stream.read(_READ_BYTES)):
            self._input += block
        found, self._input = self._input[:count], self._input[count:]
        self._whole.update(found)
        return found


def _size_of(header: bytes) -> int:
    digits = header[124:135]
    if not digits.isdigit() or max(digits) > ord("7"):
        raise BundleRefused("The archive has a header that is not valid.")
    return int(digits, 8)


def _name_of(header: bytes) -> str:
    """Return the name in a tar header for a message: printable whatever it contains."""
    prefix, name = header[345:500].rstrip(b"\0"), header[:100].rstrip(b"\0")
    return ascii((prefix + b"/" + name if prefix else name).decode(errors="replace"))


# --- lines ------------------------------------------------------------------------------------------------------------


def _read_file(
    source: _BundleArchive,
    file: Mapping[str, Any],
    check: Callable[[str], dict[str, Any]],
    on_entry: EntryReader | None,
) -> None:
    name, number, digest = file["name"], 0, hashlib.sha256()
    for line in _lines(name, source.file(name, file["size"])):
        number += 1
        entry_end = len(line) - form.LINE_TAIL_BYTES
        digest.update(memoryview(line)[:entry_end])
        # The digest covers the file from its beginning, so that the first changed, moved or missing line is named.
        tail = form.line_tail(digest.copy().hexdigest().encode())
        if line[entry_end:] != tail or not line.startswith(form.LINE_START):
            raise BundleRefused(f"{name}, line {number}: it was changed, moved, or follows a missing line.")
        digest.update(tail)
        try:
            entry = check(line[len(form.LINE_START) : entry_end].decode())
        except _EntryRefused as refusal:
            raise BundleRefused(f"{name}, line {number}: {refusal}") from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise BundleRefused(f"{name}, line {number}: it has another form.") from None
        if on_entry is not None:
            on_entry(name, entry)
    if number != file["lines"]:
        raise BundleRefused(f"{name}: it has {number} lines, and {file['lines']} were signed.")
    if digest.hexdigest() != file["sha256"]:
        raise BundleRefused(f"{name}: its SHA-256 is not the signed one.")
    source.padding(name, file["size"])


def _lines(name: str, blocks: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for block in blocks:
        *whole, rest = (rest + block).split(b"\n")
        for line in whole:
            yield line + b"\n"
        if len(rest) > form.MAX_LINE_BYTES:
            raise BundleRefused(f"{name}: a line is longer than {form.MAX_LINE_BYTES} bytes.")
    if rest:
        raise BundleRefused(f"{name}: its last line has no end.")


class _EntryRefused(Exception):
    """An entry contradicts another one, or a digest."""


def _parts(text: str, names: tuple[str, ...]) -> tuple[list[str], dict[str, Any]]:
    """Return the texts and the values of an object's members, which are in this order and without blanks.

    Digests are those of the texts, as they were hashed when the job ended.
    """
    texts, values, place = [], {}, 0
    for name in names:
        start = f'{"," if place else "{"}"{name}":'
        if not text.startswith(start, place):
            raise ValueError(name)
        begin = place + len(start)
        values[name], place = _DECODER.raw_decode(text, begin)
        texts.append(text[begin:place])
    if text[place:] != "}":
        raise ValueError(names[-1])
    return texts, values


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


class _JobBindings:
    """Compares each history with what `jobs.jsonl` has about it.

    For a job in memory are 16 bytes: a digest of its id, input, result, number of events and last hash.
    """

    def __init__(self) -> None:
        self._bindings = array("B")
        self._ulid = ""
        self._compared = 0
        self._sequence = 0
        self._head = ""
        self._input: str | None = None
        self._result: str | None = None
        self._attempt: Any = None

    def job(self, text: str) -> dict[str, Any]:
        """Check an entry of `jobs.jsonl`: the digests of payload and result."""
        (payload, result, _), entry = _parts(text, ("payload", "result", "job"))
        job = entry["job"]
        ulid, digest = job["ulid"], job["resultDigest"]
        is_bound = entry["payload"] is not None and job["inputDigest"] is not None
        if is_bound and _sha256(payload) != job["inputDigest"]:
            raise _EntryRefused(f"the payload of job {ulid} has another digest than its first event.")
        if digest is not None and _sha256(result) != digest:
            raise _EntryRefused(f"the result of job {ulid} has another digest than its final event.")
        self._bindings.frombytes(_binding(ulid, job["inputDigest"], digest, job["events"], job["head"]))
        return entry

    def event(self, text: str) -> dict[str, Any]:
        """Check an entry of `history.jsonl`: the hash of the row, its link to the row before, and the envelope."""
        (row_text, _), entry = _parts(text, ("row", "envelope"))
        row, integrity = entry["row"], entry["envelope"]["integrity"]
        ulid, sequence = row["job_ulid"], row["seq"]
        if ulid != self._ulid:
            self._end_history()
            self._ulid, self._sequence, self._head = ulid, 0, ""
            self._input = self._result = None
        where = f"event {sequence} of job {ulid}"
        if sequence != self._sequence + 1 or row["prev_hash"] != self._head:
            raise _EntryRefused(f"{where} does not follow the event before it.")
        digest = _sha256(row_text)
        if (integrity["sequence"], integrity["prevHash"] or "", integrity["hash"]) != (sequence, self._head, digest):
            raise _EntryRefused(f"{where} has another hash than its row.")
        self._sequence, self._head = sequence, digest
        details = row["payload"]
        if sequence == 1:
            self._input = form.first_of(details, form.INPUT_DIGESTS)
        self._result = form.first_of(details, form.RESULT_DIGESTS)
        return entry

    def other(self, text: str) -> dict[str, Any]:
        """Parse an entry of the other files, which have no links."""
        entry: dict[str, Any] = json.loads(text)
        return entry

    def end(self) -> None:
        """Require that every job had its history."""
        self._end_history()
        if self._compared * 16 != len(self._bindings):
            raise BundleRefused(f"{form.HISTORY}: the last jobs of {form.JOBS} have no history.")

    def _end_history(self) -> None:
        if not self._ulid:
            return
        begin = self._compared * 16
        found = _binding(self._ulid, self._input, self._result, self._sequence, self._head)
        if self._bindings[begin : begin + 16].tobytes() != found:
            text = f"the history of job {self._ulid} is not that of the next job in {form.JOBS}: another input, result,"
            raise BundleRefused(f"{form.HISTORY}: {text} number of events or last hash.")
        self._compared += 1


def _binding(ulid: str, input_digest: str | None, result_digest: str | None, events: int, head: str) -> bytes:
    parts = json.dumps([ulid, input_digest, result_digest, events, head])
    return hashlib.sha256(parts.encode()).digest()[:16]


_ENTRY_CHECKS: Final[dict[str, Callable[[_JobBindings, str], dict[str, Any]]]] = {
    form.JOBS: _JobBindings.job,
    form.HISTORY: _JobBindings.event,
    form.THROTTLES: _JobBindings.other,
    form.REPLAYS: _JobBindings.other,
}
