"""Exports an audit bundle: a job of type `export`, whose artifact becomes a file."""

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final
from uuid import uuid4

from orchestrator.cli.client import StellaClient
from orchestrator.cli.commands import PAGE
from orchestrator.cli.errors import CommandFailed, ExitCode
from orchestrator.cli.job_waiting import summary_of_end, wait_for_end
from orchestrator.cli.pages import read_pages

ARTIFACT: Final = "audit-bundle.tar.gz"
EXPORT: Final = "export"


@dataclass(frozen=True)
class ExportedBundle:
    """A bundle on disk. `job_id`: the job that has written it."""

    job_id: str
    path: Path
    size: int
    sha256: str

    def document(self) -> dict[str, Any]:
        """Return it for `-o json`."""
        return {"jobId": self.job_id, "path": str(self.path), "sizeBytes": self.size, "sha256": self.sha256}


def export_bundle(client: StellaClient, path: Path, request: dict[str, Any]) -> ExportedBundle:
    """Let the server write a bundle, and store it under a path. An earlier file is replaced when all is there.

    Args:
        client: The client.
        path: The file.
        request: The body of the submit, without the type of the job.

    Raises:
        CommandFailed: The file cannot be written, the job has failed, or the bytes are not those of the job.
    """
    with _new_file(path) as file:
        job = client.call(
            "POST",
            "/api/jobs",
            {"jobType": EXPORT, **request},
            headers={"Idempotency-Key": str(uuid4())},
            is_repeatable=True,
        ).body
        ended = wait_for_end(client, job["jobId"])
        if ended["status"] != "completed":
            raise CommandFailed(ExitCode.FAILED, f"The export has failed: {summary_of_end(ended)}.", code="job_failed")
        size, sha256 = _download(client, job["jobId"], file)
    return ExportedBundle(job["jobId"], path, size, sha256)


def _download(client: StellaClient, job_id: str, file: IO[bytes]) -> tuple[int, str]:
    """Write the bundle of an ended job to a file, and return its size and SHA-256."""
    rows = read_pages(client, f"/runs/{job_id}/artifacts", {"limit": PAGE}, None)
    named = next((row for row in rows if row["name"] == ARTIFACT), None)
    if named is None:
        raise CommandFailed(ExitCode.FAILED, f"The job {job_id} has no artifact {ARTIFACT}.", code="no_artifact")
    digest, size = hashlib.sha256(), 0
    with client.download(f"/runs/{job_id}/artifacts/{ARTIFACT}") as blocks:
        for block in blocks:
            digest.update(block)
            size += len(block)
            file.write(block)
    expected = named["sha256"]
    if size != named["sizeBytes"] or (expected is not None and digest.hexdigest() != expected):
        message = f"The bytes of {ARTIFACT} are not those that the job has stored. Nothing was written."
        raise CommandFailed(ExitCode.FAILED, message, code="digest_mismatch")
    return size, digest.hexdigest()


@contextmanager
def _new_file(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file beside the path, and rename it at the end of the block. An error leaves nothing of it.

    It is created first: whoever cannot write there need not wait for an export.
    """
    draft = None
    try:
        descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:80]}.")
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        Path(draft).replace(path)
        draft = None
    except OSError as error:
        raise CommandFailed(ExitCode.CANNOT_WRITE, f"{path}: {error.strerror or error}.", code="cannot_write") from None
    finally:
        if draft is not None:
            Path(draft).unlink(missing_ok=True)
