"""Stores the output of jobs as bytes, at the path of document 002, in `STORAGES["outputs"]`.

The output is never a column: a path in it may contain NUL, which PostgreSQL cannot store. It is written before the
operation that ends the lease, and the result of the job names it. So an output becomes that of its job in the
transaction that accepts the result. An output of a result that did not count is never read, and is deleted later.
"""

import logging
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import PurePosixPath
from typing import Any
from uuid import UUID

import orjson
from django.conf import settings
from django.core.files.base import ContentFile
from django.core.files.storage import Storage, storages
from django.utils import timezone
from prometheus_client import Counter

from runtime_jobs.identifiers import public_id_of, uuid_of
from runtime_jobs.models import Job

log = logging.getLogger(__name__)

OUTPUTS = "outputs"
ORPHANS_PER_QUERY = 1000
UUID_LENGTH = 36
UNNAMED_AGE = timedelta(days=1)  # between a write and the transaction that names it is much less
OUTPUT_MEMBER = "output"  # of a job's result: the name of the output
OUTPUT_FAILURES = Counter(
    "orchestrator_output_store_failures",
    "Outputs of jobs that this process could not store or read, by operation.",
    ["operation"],
    registry=None,
)


class OutputTooLarge(OSError):
    """The output has more bytes than `OUTPUT_LIMIT_BYTES`."""


def output_path(project: UUID | str, name: UUID | str) -> str:
    """Return the path of an output.

    Args:
        project: The project of the job's configuration.
        name: The UUID of the job, or what `write_output` returned.
    """
    return f"{project}/output/v0/jobs/{name}"


def encode_output(results: Sequence[Any], error: str | None = None, *, is_truncated: bool = False) -> bytes:
    """Return the stored form of the iterations that a runner sent, with its error if the job failed.

    A truncated output is stored for people only: no metrics are read from it.
    """
    document: dict[str, Any] = {"results": list(results)}
    if error is not None:
        document["error"] = error
    if is_truncated:
        document["truncated"] = True
    return orjson.dumps(document)


def checked_output(body: bytes) -> bytes:
    """Return the stored form of an output that a worker of ours sends: a JSON object as `encode_output` makes it.

    Raises:
        ValueError: It is no such object. The message names the member.
    """
    document = orjson.loads(body)
    members = document if isinstance(document, dict) else {}
    results, error = members.get("results"), members.get("error")
    if not isinstance(results, list) or not all(map(_is_iteration, results)):
        raise ValueError("results: Must be a list of iterations, each with an integer exit_code.")
    if not isinstance(error, str | None):
        raise ValueError("error: Must be a string.")  # noqa: TRY004  # the caller catches one class
    return encode_output(results, error, is_truncated=members.get("truncated") is True)


def _is_iteration(value: Any) -> bool:
    code = value.get("exit_code") if isinstance(value, dict) else None
    return isinstance(code, int) and not isinstance(code, bool)


def result_naming(name: str) -> dict[str, str]:
    """Return the result of a job that names its stored output."""
    return {OUTPUT_MEMBER: name}


def output_name(job: Job) -> str | None:
    """Return the name of the output of a job, or None: no output belongs to its result.

    A worker of ours may report any result. A name of another job's output does not count.
    """
    name = (job.result or {}).get(OUTPUT_MEMBER)
    is_own = isinstance(name, str) and "/" not in name and name.startswith(str(uuid_of(job.job_ulid)))
    return name if is_own else None


def write_output(project: UUID, job: UUID, body: bytes, *, sender: str | None = None) -> str | None:
    """Store the output of a job, and return its name, or None if that failed.

    The first output of a job is at the path of document 002. A later one has a name of its own, because it may be the
    output of a result that does not count. A failure is logged and counted. It costs the job only its output.

    Args:
        project: The project of the job's configuration.
        job: The UUID of the job.
        body: The output.
        sender: Who sends it, apart from the message that names it, as a part of a file name. A later output of the same
            sender replaces this one.
    """
    if len(body) > settings.OUTPUT_LIMIT_BYTES:
        OUTPUT_FAILURES.labels("write").inc()
        limit = settings.OUTPUT_LIMIT_BYTES
        log.error("the output of job %s has %d bytes; OUTPUT_LIMIT_BYTES is %d", job, len(body), limit)
        return None
    try:
        storage, name = _storage(), str(job) if sender is None else f"{job}_{sender}"
        if sender is not None:
            storage.delete(output_path(project, name))
        return PurePosixPath(storage.save(output_path(project, name), ContentFile(body))).name
    except Exception:  # a store of another kind raises errors of its own
        OUTPUT_FAILURES.labels("write").inc()
        log.exception("the output of job %s could not be stored", job)
        return None


def read_output(project: UUID, name: str) -> bytes | None:
    """Return a stored output, or None if there is none.

    Args:
        project: The project of the job's configuration.
        name: What `output_name` returned.

    Raises:
        OSError: The store cannot be read, or has more than `OUTPUT_LIMIT_BYTES`.
    """
    try:
        with _storage().open(output_path(project, name)) as file:
            body = file.read(settings.OUTPUT_LIMIT_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError:
        OUTPUT_FAILURES.labels("read").inc()
        raise
    if len(body) > settings.OUTPUT_LIMIT_BYTES:
        raise OutputTooLarge(f"The stored output has more than {settings.OUTPUT_LIMIT_BYTES} bytes.")
    return bytes(body)


def delete_orphans(is_stopping: Callable[[], bool] = lambda: False) -> int:
    """Delete the outputs that no job names, and return how many.

    Their jobs were deleted by retention, or the result that came with them did not count. An output is stored before
    its job names it, so that of a job that exists is deleted only after `UNNAMED_AGE`.

    Args:
        is_stopping: Called between two queries; True ends the collection.
    """
    storage, deleted = _storage(), 0
    for project in _listed(storage, ""):
        folder = output_path(project, "")
        names = [(name, found) for name in _listed(storage, folder, files=True) if (found := _job_of(name))]
        for begin in range(0, len(names), ORPHANS_PER_QUERY):
            if is_stopping():
                return deleted
            some = names[begin : begin + ORPHANS_PER_QUERY]
            jobs = {
                job.job_ulid: job
                for job in Job.objects.filter(job_ulid__in={found for _, found in some}).only("job_ulid", "result")
            }
            for name, job_ulid in some:
                owner = jobs.get(job_ulid)
                if owner is None or (output_name(owner) != name and _is_old(storage, f"{folder}{name}")):
                    storage.delete(f"{folder}{name}")
                    deleted += 1
    return deleted


def _job_of(name: str) -> str | None:
    """Return the id of the job in the name of an output, or None: the file is no output."""
    text = name[:UUID_LENGTH]
    try:
        uuid = UUID(text)
    except ValueError:
        return None
    return public_id_of("rtj", uuid) if str(uuid) == text else None


def _is_old(storage: Storage, path: str) -> bool:
    return timezone.now() - storage.get_modified_time(path) > UNNAMED_AGE


def _listed(storage: Storage, folder: str, *, files: bool = False) -> list[str]:
    try:
        folders, names = storage.listdir(folder)
    except FileNotFoundError:
        return []
    return names if files else folders


def _storage() -> Storage:
    return storages[OUTPUTS]
