"""The trail of a job: rows numbered under the job's lock, chained by hash, written in the transaction of the change."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.db import connection
from django.db.transaction import TransactionManagementError

from runtime_jobs.identifiers import new_event_id
from runtime_jobs.models import Job, JobEvent


@dataclass(frozen=True)
class Actor:
    """Who did it. `kind`: client, operator, worker, clock, core."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


SCHEDULER = Actor("clock", "clock")
SYSTEM = Actor("core", "policy")
_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode


@dataclass
class EventRow:
    """A row of `JobEvent` to be, by its attributes: making the model itself costs more than all else about an event."""

    event_ulid: str
    job_id: str
    seq: int
    event_type: str
    actor_kind: str
    actor_id: str
    payload_json: dict[str, Any]
    created_at: datetime
    org_slug: str
    job_type: str
    correlation_id: str
    worker_id: str | None
    from_state: str | None
    to_state: str | None
    fence: int
    prev_hash: str
    hash: str = ""


def build_event(
    job: Job,
    event_type: str,
    *,
    at: datetime,
    actor: Actor,
    worker_id: str | None = None,
    from_state: str | None = None,
    to_state: str | None = None,
    **payload: Any,
) -> EventRow:
    """Make the next event of a job that the caller has locked, or has just made. The caller stores it, and the job,
    whose `event_seq` and `event_head` this moves."""
    event = EventRow(
        event_ulid=new_event_id(),
        job_id=job.job_ulid,
        seq=job.event_seq + 1,
        event_type=event_type,
        actor_kind=actor.kind,
        actor_id=actor.name,
        payload_json={key: value for key, value in payload.items() if value is not None},
        created_at=at,
        org_slug=job.org_slug,
        job_type=job.job_type,
        correlation_id=job.correlation_id,
        worker_id=worker_id,
        from_state=from_state,
        to_state=to_state,
        fence=job.fence,
        prev_hash=job.event_head,
    )
    event.hash = event_hash(event)
    job.event_seq, job.event_head = event.seq, event.hash
    return event


def event_hash(event: JobEvent | EventRow) -> str:
    """SHA-256 over the canonical row, which holds the hash of the row before: nothing in the middle can be changed,
    taken out or put in unseen. `xid` stays out: a restore from a dump rewrites it."""
    row = {
        "event_ulid": event.event_ulid,
        "job_ulid": event.job_id,
        "seq": event.seq,
        "event_type": event.event_type,
        "actor_kind": event.actor_kind,
        "actor_id": event.actor_id,
        "payload": event.payload_json,
        "created_at": event.created_at.astimezone(UTC).isoformat(),
        "org_slug": event.org_slug,
        "job_type": event.job_type,
        "correlation_id": event.correlation_id,
        "worker_id": event.worker_id,
        "from_state": event.from_state,
        "to_state": event.to_state,
        "fence": event.fence,
        "prev_hash": event.prev_hash,
    }
    return hashlib.sha256(_canonical(row).encode()).hexdigest()


def first_invalid_seq(job_ulid: str) -> int | None:
    """The `seq` of the first event whose chain does not hold, or None."""
    before = ""
    for event in JobEvent.objects.of(job_ulid).iterator(chunk_size=500):
        if event.prev_hash != before or event.hash != event_hash(event):
            return event.seq
        before = event.hash
    return None


def delete_events(job_ulids: Sequence[str]) -> int:
    """Delete the whole event history of these jobs, for retention: the one way past the append-only trigger.

    The trigger lets a DELETE through while `orchestrator.maintenance` says so. The setting is local to the transaction
    and is taken back at once, so that no other statement profits. The caller deletes the jobs in the same transaction:
    a job without its history would be a finding of the audit.

    Args:
        job_ulids: Jobs that have ended, locked by the caller's transaction.

    Returns:
        How many events were deleted.

    Raises:
        TransactionManagementError: There is no transaction."""
    if not connection.in_atomic_block:
        raise TransactionManagementError("delete_events needs the transaction that deletes the jobs.")
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('orchestrator.maintenance', true)")
        (before,) = cursor.fetchone()
        cursor.execute("SELECT set_config('orchestrator.maintenance', 'delete', true)")
        cursor.execute("DELETE FROM runtime_job_events WHERE job_ulid = ANY (%s)", [list(job_ulids)])
        deleted = int(cursor.rowcount)
        cursor.execute("SELECT set_config('orchestrator.maintenance', %s, true)", [before or ""])
    return deleted
