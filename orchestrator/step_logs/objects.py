"""Names, writes and reads the objects of logs in the storage of artifacts.

An object is written once, under a name of its own attempt, and never replaced. So an attempt that was interrupted, or
that another process has overtaken, damages no log.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from orchestrator.artifacts.storage import TEXT, artifact_storage
from runtime_jobs.models import Job, JobStep, StepLog, WorkflowRun

BLOCK_BYTES: Final = 256 << 10


def object_name(log: StepLog, attempt: int) -> str:
    """Return the name of an object. For a step of a workflow job the first attempt has that of contract 4.6.

    Args:
        log: The log.
        attempt: The number of the attempt, from 1. A later one follows an interruption, or a chunk that came late.
    """
    job_id, batch_id = Job.objects.values_list("pk", "batch_id").get(job_ulid=log.job_id)
    run_id = WorkflowRun.objects.filter(batch_id=batch_id).values_list("pk", flat=True).first() if batch_id else None
    step_id = JobStep.objects.filter(job_id=log.job_id, index=log.step).values_list("pk", flat=True).first()
    folder = f"jobs/{job_id}/steps" if run_id is None else f"actions/runs/{run_id}/jobs/{job_id}/steps"
    name = f"index-{log.step}" if step_id is None else str(step_id)
    return f"{folder}/{name}.log" if attempt == 1 else f"{folder}/{name}.{attempt}.log"


def write_object(name: str, blocks: Iterable[bytes]) -> int:
    """Store an object, and return its size. It exists whole or not at all, also if `blocks` raises an error.

    Args:
        name: A name that is not taken.
        blocks: The content. One block at a time is in memory.

    Raises:
        OSError: The storage refused the object.
    """
    return artifact_storage().put(name, blocks, content_type=TEXT)


def read_object(name: str, start: int, limit: int) -> bytes:
    """Return at most `limit` bytes of an object from the byte `start` on.

    Raises:
        OSError: The storage has no such object, or cannot be read.
    """
    return artifact_storage().read(name, start, limit)


def read_blocks(name: str, size: int) -> Iterator[bytes]:
    """Yield the first `size` bytes of an object in blocks.

    Raises:
        EOFError: The object is shorter.
        OSError: As `read_object`.
    """
    start = 0
    while start < size:
        block = read_object(name, start, min(BLOCK_BYTES, size - start))
        if not block:
            raise EOFError(f"{name} has {start} bytes of {size}")
        start += len(block)
        yield block


def remove_object(name: str) -> None:
    """Delete an object. It may be missing."""
    artifact_storage().remove(name)
