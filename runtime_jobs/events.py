"""The event history of a job: rows numbered under the job's lock, chained by hash, written with the change.

The first event binds the specification of the job, the final event its result and its artifacts, by digests in the
payload.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import orjson
from django.db import connection, transaction
from django.db.models import Q
from django.db.transaction import TransactionManagementError

from runtime_jobs.identifiers import new_event_id
from runtime_jobs.models import Job, JobEvent
from runtime_jobs.states import FINAL_STATES


@dataclass(frozen=True)
class Actor:
    """The client, person or process that caused a change.

    Attributes:
        kind: `client`, `operator`, `worker`, `clock` (the scheduler process) or `core` (the rules of the server).
        name: Its name among those of its kind.
    """

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


SCHEDULER = Actor("clock", "clock")
SYSTEM = Actor("core", "policy")
EVENT_TABLES = ("runtime_job_events", "operator_events")  # by their kind in the feed
# Names in the payloads of events. The first event has the digest of the job's payload, for job types whose payload is
# a part of the request also the digest of the other parts, and the cursors. The final event has the digest of the
# result, and the artifacts. Cursors and artifacts are stored as values, not as digests.
INPUT_HASH, REQUEST_HASH, CURSORS = "payload_digest", "request_digest", "cursors"
RESULT_HASH, ARTIFACTS = "result_digest", "artifacts"
FORMER_NAMES = {"input_sha256": INPUT_HASH, "result_sha256": RESULT_HASH}  # in events of earlier releases
BINDING_NAMES = frozenset({INPUT_HASH, REQUEST_HASH, CURSORS, RESULT_HASH, ARTIFACTS, *FORMER_NAMES})
RESULT_FIELDS = (
    *("exit_code", "failure_reason", "failure_class", "failure_message", "cancel_reason", "ingest_run_id", "result"),
)
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode
# `json` knows none of the types that are passed through: it then raises TypeError, as ever.
_ORJSON_OPTIONS = orjson.OPT_SORT_KEYS | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME


@dataclass
class EventRow:
    """A new row of `JobEvent`. Creating the model itself would cost more than all other work on an event."""

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
    created_at: datetime,
    actor: Actor,
    worker_id: str | None = None,
    from_state: str | None = None,
    to_state: str | None = None,
    **payload: Any,
) -> EventRow:
    """Return the next event of a job, and advance the job's `event_seq` and `event_head`. The caller stores both.

    Args:
        job: The job, locked or new. Its result must be set before its final event.
        event_type: For example `job.leased`.
        created_at: The time of the change.
        actor: The client, operator, worker or process that caused it.
        worker_id: The worker that is concerned.
        from_state: The state before, for a transition.
        to_state: The state after.
        **payload: Details; values of None are left out.
    """
    if job.event_seq == 0:
        payload |= {INPUT_HASH: job.payload_digest, **_beside_payload(job)}
    if to_state in FINAL_STATES:
        payload[RESULT_HASH] = result_hash(job)
    event = EventRow(
        event_ulid=new_event_id(),
        job_id=job.job_ulid,
        seq=job.event_seq + 1,
        event_type=event_type,
        actor_kind=actor.kind,
        actor_id=actor.name,
        payload_json={key: value for key, value in payload.items() if value is not None},
        created_at=created_at,
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
    """Return the SHA-256 of the canonical row, which contains the hash of the row before.

    So no row in the middle can be changed, removed or inserted unseen.
    """
    return hashlib.sha256(canonical_event(event)).hexdigest()


def canonical_event(event: JobEvent | EventRow) -> bytes:
    """Return the bytes of an event that are hashed. `xid` is left out: a restore from a dump changes it."""
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
    return _canonical(row, event.payload_json)


def _canonical(row: dict[str, Any], values: Any) -> bytes:
    """Return a row as JSON with sorted keys, which the hashes of stored events are made of.

    orjson takes a fifth of the time, and writes the same bytes but for fractions: 1e-05 there is 1e-5.

    Args:
        row: The row.
        values: The part of the row that may contain fractions.
    """
    if not _has_fraction(values):
        try:
            return orjson.dumps(row, option=_ORJSON_OPTIONS)
        except orjson.JSONEncodeError:  # a number of more than 64 bits
            pass
    return _encode(row).encode()


def _has_fraction(value: Any) -> bool:
    kind = type(value)
    if kind is str or kind is int or value is None:  # nearly all values of events
        return False
    if isinstance(value, dict):
        return any(map(_has_fraction, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_has_fraction, value))
    return isinstance(value, float)


def result_hash(job: Job) -> str:
    """Return the SHA-256 of what an ended job came to: exit code, failure, run and result."""
    return hashlib.sha256(canonical_result(job)).hexdigest()


def canonical_result(job: Job) -> bytes:
    """Return the bytes of a job's result that are hashed."""
    row = {name: _plain(getattr(job, name)) for name in RESULT_FIELDS}
    return _canonical(row, None)  # _plain leaves no fraction


def _beside_payload(job: Job) -> dict[str, Any]:
    """Return what binds the request of a job with a payload, whose digest covers nothing else of the request."""
    if CURSORS not in job.spec:
        return {}
    others = {name: value for name, value in job.spec.items() if name != "payload"}
    row = {"timeout_seconds": _plain(job.timeout_seconds), "spec": _plain(others)}
    return {CURSORS: job.spec[CURSORS] or None, REQUEST_HASH: hashlib.sha256(_canonical(row, None)).hexdigest()}


def _plain(value: Any) -> Any:
    """Return a value in a form that a round trip through jsonb keeps: it changes 1e+22, 12.50 and -0.0."""
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, int | float) and not isinstance(value, bool):
        digits = format(Decimal(repr(value)), "f")
        return ["number", "0" if value == 0 else digits.rstrip("0").rstrip(".") if "." in digits else digits]
    return value if value is None or isinstance(value, bool) else str(value)


def first_invalid_seq(job_ulid: str) -> int | None:
    """Return the `seq` of the first event whose hash or link to the event before is wrong, or None."""
    before = ""
    for event in JobEvent.objects.of(job_ulid).iterator(chunk_size=500):
        if event.prev_hash != before or event.hash != event_hash(event):
            return event.seq
        before = event.hash
    return None


def unbound_parts(job: Job, input_digest: str) -> list[str]:
    """Return what contradicts the digests of the history: `input`, `request`, `cursors`, `result`, names of artifacts.

    Events of earlier releases have fewer digests. An artifact that was deleted contradicts nothing.

    Args:
        job: The job as it is stored.
        input_digest: The digest of the specification that its columns hold now.
    """
    payloads = JobEvent.objects.of(job.job_ulid).filter(Q(seq=1) | Q(to_state__in=FINAL_STATES))
    bound: dict[str, Any] = {}
    for payload in payloads.values_list("payload_json", flat=True):
        bound |= {FORMER_NAMES.get(name, name): value for name, value in payload.items()}
    wrong = []
    if INPUT_HASH in bound and not bound[INPUT_HASH] == job.payload_digest == input_digest:
        wrong.append("input")
    if REQUEST_HASH in bound:
        beside = _beside_payload(job)
        wrong += ["request"] if bound[REQUEST_HASH] != beside.get(REQUEST_HASH) else []
        wrong += [CURSORS] if bound.get(CURSORS) != beside.get(CURSORS) else []
    if RESULT_HASH in bound and bound[RESULT_HASH] != result_hash(job):
        wrong.append("result")
    return wrong + _changed_artifacts(job, bound.get(ARTIFACTS, []))


def _changed_artifacts(job: Job, bound: list[dict[str, Any]]) -> list[str]:
    if not bound:
        return []
    stored = {artifact.name: artifact for artifact in job.stored_artifacts.filter(is_abandoned=False)}
    return [
        f"artifact {entry['name']}"
        for entry in bound
        if (row := stored.get(entry["name"])) is not None
        and (row.byte_count, row.sha256) != (entry["size_bytes"], entry["sha256"])
    ]


def delete_events(job_ulids: Sequence[str]) -> int:
    """Delete the whole event history of these jobs, for retention.

    The caller deletes the jobs in the same transaction: a job without its history would be a finding of the audit.

    Args:
        job_ulids: Jobs that have ended, locked by the caller's transaction.

    Returns:
        How many events were deleted.

    Raises:
        TransactionManagementError: There is no transaction.
    """
    if not connection.in_atomic_block:
        raise TransactionManagementError("delete_events needs the transaction that deletes the jobs.")
    return delete_append_only("DELETE FROM runtime_job_events WHERE job_ulid = ANY (%s)", [list(job_ulids)])


def reset_foreign_stamps(*, sent_until: tuple[int, int, int] | None = None, unsent_stamp: int = 0) -> int:
    """Set the stamps of all events to 0 where they are those of another database cluster, after a restore.

    The transactions of this cluster may have lower numbers than those of the dump. A feed would then skip the restored
    events now, and send them as new ones when the numbers are reached. With one stamp for all, the order is that of the
    ids, which is the order of each job.

    Args:
        sent_until: A place in the feed, as stamp, kind and id: the last event that was sent before the dump.
        unsent_stamp: The stamp of the events after it, above 0, so that they follow the others.

    Returns:
        How many events were changed.
    """
    tables = [(kind, table) for kind, table in enumerate(EVENT_TABLES) if _has_stamps(table)]
    with transaction.atomic():
        if not any(_has_foreign_stamps(table) for _, table in tables):
            return 0
        stamp, after_kind, after_id = sent_until or (0, 0, 0)
        changed = 0
        for kind, table in tables:
            is_unsent = f"(xid, {kind}, id) > (%s::text::xid8, %s, %s)"
            new_stamp = f"(CASE WHEN {is_unsent} THEN %s ELSE 0 END)::text::xid8"
            sql = f"UPDATE {table} SET xid = {new_stamp} WHERE xid <> '0'"  # noqa: S608 our own text
            changed += _change_append_only("update", sql, [str(stamp), after_kind, after_id, unsent_stamp])
    return changed


def _has_stamps(table: str) -> bool:
    """Return whether the dump is not one of an older release."""
    with connection.cursor() as cursor:
        return "xid" in {column.name for column in connection.introspection.get_table_description(cursor, table)}


def _has_foreign_stamps(table: str) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT EXISTS (SELECT FROM {table} WHERE xid >= pg_snapshot_xmin(pg_current_snapshot()))"  # noqa: S608
        )
        return bool(cursor.fetchone()[0])


def delete_append_only(sql: str, values: list[Any]) -> int:
    """Execute a DELETE past the append-only trigger, for retention. Returns the number of rows.

    Args:
        sql: The statement. The caller has a transaction.
        values: Its values.
    """
    return _change_append_only("delete", sql, values)


def _change_append_only(kind: str, sql: str, values: list[Any]) -> int:
    """Execute a statement that the append-only trigger otherwise refuses. Only retention and a restore need that.

    The trigger permits the statement while the setting `orchestrator.maintenance` names its kind. The setting is local
    to the transaction, and is reset at once: no other statement is permitted.

    Args:
        kind: `delete` or `update`.
        sql: The statement. The caller has a transaction.
        values: Its values.

    Returns:
        The number of rows.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('orchestrator.maintenance', true)")
        (before,) = cursor.fetchone()
        cursor.execute("SELECT set_config('orchestrator.maintenance', %s, true)", [kind])
        cursor.execute(sql, values)
        changed = int(cursor.rowcount)
        cursor.execute("SELECT set_config('orchestrator.maintenance', %s, true)", [before or ""])
    return changed
