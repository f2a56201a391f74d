"""Stores the output of jobs as bytes, at the path of document 002, in `STORAGES["outputs"]`.

The output is never a column: a path in it may contain NUL, which PostgreSQL cannot store.
"""

import contextlib
import logging
import os
import secrets
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import orjson
from django.conf import settings
from django.core.files.base import ContentFile, File
from django.core.files.storage import FileSystemStorage, Storage, storages
from django.utils import timezone
from prometheus_client import Counter

from runtime_jobs.identifiers import public_id_of
from runtime_jobs.models import Job

log = logging.getLogger(__name__)

OUTPUTS = "outputs"
ORPHANS_PER_QUERY = 1000
TEMPORARY_FILE_AGE = timedelta(days=1)  # no write takes so long
OUTPUT_FAILURES = Counter(
    "orchestrator_output_store_failures",
    "Outputs of jobs that this process could not store or read, by operation.",
    ["operation"],
    registry=None,
)


class OutputTooLarge(OSError):
    """The output has more bytes than `OUTPUT_LIMIT_BYTES`."""


class DurableFileStorage(FileSystemStorage):
    """Writes a file whole or not at all, and so that it survives a crash of the machine.

    The bytes are written to a temporary file beside the target, which then replaces the target. A file that exists is
    replaced: a result that was sent twice is the same.
    """

    def get_available_name(self, name: str, max_length: int | None = None) -> str:  # noqa: ARG002 Django's signature
        return name

    def _save(self, name: str, content: File) -> str:
        target = Path(self.path(name))
        _make_folder(target.parent)
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
        try:
            opened = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(opened, "wb") as file:
                for chunk in content.chunks():
                    file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()
            raise
        _sync_folder(target.parent)
        return name


def _make_folder(folder: Path) -> None:
    """Create a folder and those above it. The entry of each new folder is on the disk when this returns."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def output_path(project: UUID | str, job: UUID | str) -> str:
    """Return the path of a job's output. `project` is that of the job's configuration."""
    return f"{project}/output/v0/jobs/{job}"


def encode_output(results: Sequence[Any], error: str | None = None) -> bytes:
    """Return the stored form of the iterations that a runner sent, with its error if the job failed."""
    return orjson.dumps({"results": list(results)} | ({"error": error} if error is not None else {}))


def write_output(project: UUID, job: UUID, body: bytes) -> bool:
    """Store the output of a job, and return whether that succeeded.

    A failure is logged and counted. It costs the job only its output.
    """
    if len(body) > settings.OUTPUT_LIMIT_BYTES:
        OUTPUT_FAILURES.labels("write").inc()
        limit = settings.OUTPUT_LIMIT_BYTES
        log.error("the output of job %s has %d bytes; OUTPUT_LIMIT_BYTES is %d", job, len(body), limit)
        return False
    try:
        _storage().save(output_path(project, job), ContentFile(body))
    except Exception:  # a store of another kind raises errors of its own
        OUTPUT_FAILURES.labels("write").inc()
        log.exception("the output of job %s could not be stored", job)
        return False
    return True


def read_output(project: UUID, job: UUID) -> bytes | None:
    """Return the stored output of a job, or None if there is none.

    Raises:
        OSError: The store cannot be read, or has more than `OUTPUT_LIMIT_BYTES`.
    """
    try:
        with _storage().open(output_path(project, job)) as file:
            body = file.read(settings.OUTPUT_LIMIT_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError:
        OUTPUT_FAILURES.labels("read").inc()
        raise
    if len(body) > settings.OUTPUT_LIMIT_BYTES:
        raise OutputTooLarge(f"The stored output has more than {settings.OUTPUT_LIMIT_BYTES} bytes.")
    return bytes(body)


def delete_orphans() -> int:
    """Delete the stored outputs of jobs that do not exist, which retention has deleted. Return how many.

    An output is stored while its job exists, so a new one is never deleted. Temporary files of processes that were
    killed are deleted, too, when they are old.
    """
    storage, deleted = _storage(), 0
    for project in _listed(storage, ""):
        folder = output_path(project, "")
        found = _listed(storage, folder, files=True)
        for name in found:
            if (
                name.startswith(".")
                and timezone.now() - storage.get_modified_time(f"{folder}{name}") > TEMPORARY_FILE_AGE
            ):
                storage.delete(f"{folder}{name}")
        names = [name for name in found if _is_uuid(name)]
        for begin in range(0, len(names), ORPHANS_PER_QUERY):
            jobs = {public_id_of("rtj", UUID(name)): name for name in names[begin : begin + ORPHANS_PER_QUERY]}
            known = set(Job.objects.filter(job_ulid__in=list(jobs)).values_list("job_ulid", flat=True))
            for job_ulid in jobs.keys() - known:
                storage.delete(f"{folder}{jobs[job_ulid]}")
                deleted += 1
    return deleted


def _listed(storage: Storage, folder: str, *, files: bool = False) -> list[str]:
    try:
        folders, names = storage.listdir(folder)
    except FileNotFoundError:
        return []
    return names if files else folders


def _is_uuid(name: str) -> bool:
    try:
        return str(UUID(name)) == name
    except ValueError:
        return False


def _storage() -> Storage:
    return storages[OUTPUTS]
