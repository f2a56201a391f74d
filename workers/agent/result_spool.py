"""Keeps a result on disk from before its upload starts until the server has accepted the end of the job.

A worker that is killed in between finds the result at its next start and sends the very same bytes again. A lease is
kept from its acknowledgement on, too: a worker that was killed ends it at its next start, which frees its capacity at
once.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workers.agent.errors import ProtocolError
from workers.agent.http import wire

logger = logging.getLogger(__name__)

SUFFIX = ".result"
OF_LEASE = ".lease"


@dataclass(frozen=True)
class SpoolEntry:
    """One result: `final` goes into `complete` beside the run id, `payload` are the bytes for ingest.

    Without a payload, `final` is the whole final message, and its `status` decides the operation. The file holds the
    lease, whose id is a secret: its mode is 0600.
    """

    server: str
    lease: wire.LeasePayload
    final: dict[str, Any]
    payload: bytes = field(repr=False)


class ResultSpool:
    """The results in one directory, one file each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, entry: SpoolEntry) -> None:
        """Write `entry` so that it survives a crash of worker or machine from here on."""
        path = self._path(entry)
        draft = path.with_suffix(".draft")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(_header(entry) + b"\n" + entry.payload)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        self._sync()

    def remove(self, entry: SpoolEntry) -> None:
        self._path(entry).unlink(missing_ok=True)
        self.forget_lease(entry.lease)  # its end has been sent
        self._sync()

    def pending(self) -> Iterator[SpoolEntry]:
        """Yield the results of earlier processes, oldest first; an unreadable one is renamed and logged."""
        for draft in self._folder.glob("*.draft"):  # incomplete: its upload had not begun
            draft.unlink(missing_ok=True)
        for path in sorted(self._folder.glob(f"*{SUFFIX}"), key=lambda path: path.stat().st_mtime):
            try:
                yield _entry(path.read_bytes())
            except (ProtocolError, ValueError, KeyError, TypeError, OSError):
                logger.exception("spooled result not readable: renamed to .unreadable file=%s", path.name)
                with contextlib.suppress(OSError):
                    path.rename(path.with_suffix(".unreadable"))

    def keep_lease(self, server: str, lease: wire.LeasePayload) -> None:
        """Record that this process runs a job under `lease`. Survives a crash of the worker, not of the machine.

        A full disk fails no job: without the file the lease of a killed worker ends by its expiry.
        """
        kept = json.dumps({"version": 1, "server": server, "claim": _claim(lease)}).encode()
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            with os.fdopen(os.open(self._of_lease(lease), flags, 0o600), "wb") as file:
                file.write(kept)
        except OSError as error:
            logger.warning("lease not recorded job=%s error=%r", lease.job.job_id, error.strerror)

    def forget_lease(self, lease: wire.LeasePayload) -> None:
        self._of_lease(lease).unlink(missing_ok=True)

    def abandoned_leases(self, server: str) -> Iterator[wire.LeasePayload]:
        """Yield the leases of this server under which an earlier process ran a job, but for those with a result here.

        What cannot be read is removed: its lease ends by its expiry.
        """
        for path in sorted(self._folder.glob(f"*{OF_LEASE}")):
            try:
                kept = json.loads(path.read_bytes())
                lease = wire.lease(kept["claim"])
                is_ours = kept["version"] == 1 and kept["server"] == server
            except (ProtocolError, ValueError, KeyError, TypeError, OSError):
                logger.warning("recorded lease not readable: left to expire file=%s", path.name)
                path.unlink(missing_ok=True)
                continue
            if is_ours and not path.with_suffix(SUFFIX).exists():
                yield lease

    def _of_lease(self, lease: wire.LeasePayload) -> Path:
        return self._folder / f"{lease.job.job_id}.{lease.fence}{OF_LEASE}"

    def _path(self, entry: SpoolEntry) -> Path:
        return self._folder / f"{entry.lease.job.job_id}.{entry.lease.fence}{SUFFIX}"

    def _sync(self) -> None:
        descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _claim(lease: wire.LeasePayload) -> dict[str, Any]:
    """Return the lease as it came, without the permission to pull its image: no later process runs the job."""
    if lease.job.oci is None:
        return lease.sent
    job = lease.sent["job"]
    return lease.sent | {"job": job | {"oci": job["oci"] | {"pull_token": ""}}}


def _header(entry: SpoolEntry) -> bytes:
    claim, digest = _claim(entry.lease), hashlib.sha256(entry.payload).hexdigest()
    header = {"version": 1, "server": entry.server, "claim": claim, "final": entry.final, "sha256": digest}
    return json.dumps(header).encode()  # one line: JSON escapes newlines


def _entry(stored: bytes) -> SpoolEntry:
    head, _, payload = stored.partition(b"\n")
    header = json.loads(head)
    if header["version"] != 1 or hashlib.sha256(payload).hexdigest() != header["sha256"]:
        raise ProtocolError("spool")
    return SpoolEntry(header["server"], wire.lease(header["claim"]), header["final"], payload)
