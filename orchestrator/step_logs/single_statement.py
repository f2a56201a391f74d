"""Stores a frequent call of a workflow runner by one statement: its token, its lease, and the next chunk of a log.

The rows were read before without a lock. The statement locks them, compares their versions, and writes all or nothing.
So a call costs two statements instead of eight; if a version differs, the caller repeats it in a transaction
(docs/adr/0053).
"""

from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, Final

from django.db import connection, transaction

from leases.models import Lease
from leases.states import OPEN as OPEN_LEASES
from orchestrator.core.unit_of_work import NeedsTransaction, UnitOfWork
from orchestrator.pubsub.job_updates import announcer
from orchestrator.step_logs.rows import ASSIGNMENTS, MAX_CHUNK_BYTES, saved_values
from orchestrator.step_logs.step_log_writes import MAX_STEP_LOG_BYTES, TRUNCATED, LogWriter
from runtime_jobs.models import StepLog
from runtime_jobs.prepared_queries import fetch_all, new_instance
from runtime_jobs.states import ENDED_STEP_STATUSES

# The columns and tables of a step and its log, for a statement that has the job as the table `job`.
LOG_COLUMNS: Final = (
    "step.index, step.status, log.id, log.xmin, log.next_seq, log.chunk_count, log.stored_bytes, log.held,"
    " log.held_masked, log.open_line, log.annotation_count, log.omitted_forms,"
    " log.waiting_count = 0 AND NOT log.is_truncated AND log.closed_at IS NULL AND log.skipped = '[]'::jsonb"
)
LOG_JOINS: Final = """
  LEFT JOIN runtime_job_steps step ON step.job_ulid = job.job_ulid AND step.id = %s
  LEFT JOIN step_logs log ON log.job_ulid = step.job_ulid AND log.step = step.index
"""
_LEASES: Final = Lease._meta.db_table  # noqa: SLF001 Django's name. Only the expiry is written here, no state
_MASK_GROWTH: Final = 3  # a mask is at most so many times as long as the secret that it replaces


@dataclass(frozen=True)
class LeaseExtension:
    """A new expiry of a lease, which must be live."""

    lease_id: int
    until: datetime
    now: datetime


@dataclass(frozen=True)
class NextChunk:
    """The next chunk of a log, masked.

    Attributes:
        log: The log with its new values.
        version: The version of the row that was read.
        output: The bytes to store; none if all are held back.
        replacements: The number of secrets that were replaced.
    """

    log: StepLog
    version: int
    output: bytes
    replacements: int


def next_chunk(job_ulid: str, row: tuple[Any, ...], *, seq: int, data: bytes, masks: tuple[bytes, ...]) -> NextChunk:
    """Mask a chunk that continues a log whose row was read without a lock.

    Args:
        job_ulid: The job.
        row: The values of `LOG_COLUMNS`.
        seq: The number of the chunk.
        data: Its bytes.
        masks: The secrets of the job's claim.

    Raises:
        NeedsTransaction: The chunk is not the next one, the step has ended, or more than one row must be stored.
    """
    index, status, key, version, next_seq, count, size, held, held_masked, open_line, annotations, omitted, is_plain = (
        row
    )
    if key is None or not is_plain or seq != next_seq or status in ENDED_STEP_STATUSES:
        raise NeedsTransaction
    columns = {"id": key, "job_id": job_ulid, "step": index, "next_seq": next_seq, "skipped": [], "chunk_count": count}
    columns |= {"stored_bytes": size, "held": held, "held_masked": held_masked, "open_line": open_line}
    columns |= {"waiting_bytes": 0, "waiting_count": 0, "annotation_count": annotations, "is_truncated": False}
    columns["omitted_forms"] = omitted
    columns |= {"closed_at": None, "closed_bytes": None, "needs_finalizing": True}
    log = new_instance(StepLog, columns)
    growth = _MASK_GROWTH * (len(data) + len(held or b"")) + len(TRUNCATED)
    if size + growth > MAX_STEP_LOG_BYTES or growth > _MASK_GROWTH * MAX_CHUNK_BYTES:
        raise NeedsTransaction
    writer = LogWriter(log, masks)
    writer.accept(seq, data)
    output, commands = writer.prepare()
    if commands or len(output) > MAX_CHUNK_BYTES:
        raise NeedsTransaction
    return NextChunk(log, version, output, writer.replacements)


def store_call(
    uow: UnitOfWork,
    *,
    gate: str,
    gate_values: list[object],
    extension: LeaseExtension | None = None,
    chunk: NextChunk | None = None,
) -> None:
    """Store a call by one statement, which commits by itself.

    Args:
        uow: The unit of work of an optimistic attempt.
        gate: An INSERT with the placeholder `{source}` after its SELECT list. All else is stored if it returns a row.
        gate_values: The values of its placeholders.
        extension: The lease to extend, or None.
        chunk: The chunk to store, or None.

    Raises:
        NeedsTransaction: A row has changed since it was read, the lease is not live, or the gate returned no row.
    """
    values: list[object] = []
    if extension is not None:
        values += [extension.lease_id, extension.now]
    if chunk is not None:
        values += [chunk.log.pk, chunk.version]
    values += gate_values
    if extension is not None:
        values += [extension.until, extension.now, extension.lease_id]
    if chunk is not None:
        log = chunk.log
        if chunk.output:
            values += [log.job_id, log.step, log.chunk_count, chunk.output]
            log.chunk_count += 1
            log.stored_bytes += len(chunk.output)
        values += [*saved_values(log), log.pk]
    sql = _statement(gate, extension is not None, chunk is not None, bool(chunk and chunk.output))
    # The statement commits by itself. Only tests call this within a transaction, which an error must not break.
    with transaction.atomic(durable=True) if connection.in_atomic_block else nullcontext():
        if not fetch_all(sql, values):
            raise NeedsTransaction
    if chunk is not None:
        uow.after_commit(announcer.announce, chunk.log.job_id)


@cache
def _statement(gate: str, extends: bool, has_log: bool, has_output: bool) -> str:
    """Return the statement. The lease is locked before the log, as at the end of a job."""
    parts, source = [], ""
    if extends:
        states = ", ".join(f"'{state}'" for state in sorted(OPEN_LEASES))
        live = f"id = %s AND state IN ({states}) AND expires_at > %s"
        parts.append(f"lease AS (SELECT id FROM {_LEASES} WHERE {live} FOR NO KEY UPDATE)")  # noqa: S608
        source = "FROM lease"
    if has_log:
        after = " AND EXISTS (SELECT FROM lease)" if extends else ""
        version = f"id = %s AND xmin = %s::text::xid{after}"
        parts.append(f"log AS (SELECT id FROM step_logs WHERE {version} FOR NO KEY UPDATE)")  # noqa: S608
        source = "FROM log"
    parts.append(f"used AS ({gate.format(source=source)})")
    if extends:
        changes = "expires_at = greatest(l.expires_at, %s::timestamptz), last_heartbeat_at = %s::timestamptz"
        parts.append(f"extended AS (UPDATE {_LEASES} l SET {changes} FROM used WHERE l.id = %s)")  # noqa: S608
    if has_output:
        columns = "job_ulid, step, seq, chunk, sha256, created_at"
        selected = "%s::text, %s::int, %s::int, %b::bytea, '', clock_timestamp()"
        parts.append(f"stored AS (INSERT INTO runtime_job_log_chunks ({columns}) SELECT {selected} FROM used)")  # noqa: S608
    if has_log:
        parts.append(f"saved AS (UPDATE step_logs SET {ASSIGNMENTS} FROM used WHERE step_logs.id = %s)")  # noqa: S608
    return f"WITH {', '.join(parts)} SELECT 1 FROM used"  # noqa: S608
