"""Checkpoints: signed statements about the jobs of each organization that have ended, and about its operator events.

An ended job does not change, so a checkpoint can be computed again from the rows. Whoever changes the database cannot
sign another one, and copies of checkpoints elsewhere show that one was removed.

A pass reads the final events in the order of the feeds, up to the oldest open transaction: what is committed later
belongs to the next pass. The first pass after an upgrade reads the whole history, in several steps.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from django.conf import settings
from django.db import connection, transaction
from django.db.models import F

from orchestrator.core.datetimes import format_timestamp
from orchestrator.evidence import bundle_format as form
from orchestrator.evidence.chain_models import Checkpoint, EvidenceChain, EvidencePosition
from orchestrator.evidence.operator_chains import lock_chains
from orchestrator.evidence.positions import CHECKPOINTS, LockedPosition, lock_position, move_position
from orchestrator.evidence.signing_keys import sign
from runtime_jobs.db_time import database_now
from runtime_jobs.states import FINAL_STATES

PREDICATE: Final = "urn:runtime-orchestrator:checkpoint:v1"
MAX_EVENTS: Final = 50_000  # that one transaction reads

EndedJob = tuple[str, int, str]  # id, number of events, hash of the final event

# A final event is the last event of its job, so its number and hash are those of the whole history.
_NEXT: Final = """
WITH scanned AS MATERIALIZED (
    SELECT xid, id, job_ulid, org_slug, seq, hash, to_state FROM runtime_job_events
     WHERE (xid, id) > (%(stamp)s::text::xid8, %(event_id)s) AND xid < pg_snapshot_xmin(pg_current_snapshot())
     ORDER BY xid, id LIMIT %(rows)s
), last AS (SELECT xid, id FROM scanned ORDER BY xid DESC, id DESC LIMIT 1)
SELECT (SELECT count(*) FROM scanned), last.xid::text::bigint, last.id, s.org_slug, s.job_ulid, s.seq, s.hash
  FROM last LEFT JOIN scanned s ON s.to_state = ANY (%(final)s::text[])
   AND NOT EXISTS (SELECT FROM evidence_checkpoint_jobs j WHERE j.job_ulid = s.job_ulid)"""
_STORE_JOBS: Final = """
INSERT INTO evidence_checkpoint_jobs (checkpoint_id, job_ulid, seq, head)
SELECT %s::bigint, * FROM unnest(%s::text[], %s::bigint[], %s::text[])"""


def jobs_digest(jobs: Iterable[EndedJob]) -> str:
    """Return the SHA-256 over ended jobs: a JSON array a line, `["rtj_…",5,"…"]`, in the order of the ids."""
    lines = (json.dumps(list(job), separators=(",", ":")) + "\n" for job in sorted(jobs))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def statement_of(
    *,
    org_slug: str,
    number: int,
    created_at: datetime,
    job_count: int,
    jobs_sha256: str,
    event_count: int,
    event_head: str,
    previous_sha256: str,
) -> dict[str, Any]:
    """Return the in-toto statement of a checkpoint. Heads and digests that do not exist are null."""
    name = f"{org_slug or 'installation'}/checkpoints/{number}"
    return {
        "_type": form.STATEMENT,
        "subject": [{"name": name, "digest": {"sha256": jobs_sha256}}],
        "predicateType": PREDICATE,
        "predicate": {
            "tenant": org_slug or None,
            "number": number,
            "createdAt": format_timestamp(created_at),
            "jobs": {"count": job_count, "sha256": jobs_sha256},
            "operatorEvents": {"count": event_count, "head": event_head or None},
            "previous": previous_sha256 or None,
        },
    }


def request_checkpoints(*, now: datetime | None = None) -> datetime:
    """Request a pass, which the scheduler process does in its next round. `has_passed` returns whether it was done.

    Returns:
        The time of the request.
    """
    requested_at = now or database_now()
    with transaction.atomic():
        lock_position(CHECKPOINTS)
        EvidencePosition.objects.filter(name=CHECKPOINTS).update(requested_at=requested_at)
    return requested_at


def has_passed(requested_at: datetime) -> bool:
    """Return whether a pass that began after this time has reached the oldest open transaction."""
    return EvidencePosition.objects.filter(name=CHECKPOINTS, passed_at__gte=requested_at).exists()


def are_checkpoints_due(*, now: datetime | None = None) -> bool:
    """Return whether a pass is due: by the time since the last one, by request, or for the first time."""
    position = EvidencePosition.objects.filter(name=CHECKPOINTS).first()
    if position is None or position.passed_at is None:
        return True
    if position.requested_at is not None and position.requested_at > position.passed_at:
        return True
    return (now or database_now()) - position.passed_at >= timedelta(seconds=settings.CHECKPOINT_SECONDS)


def write_checkpoints(*, now: datetime | None = None, max_events: int = MAX_EVENTS) -> tuple[list[Checkpoint], bool]:
    """Write the checkpoints of one step of a pass, in one transaction.

    An organization without a newly ended job and without a new operator event gets none.

    Args:
        max_events: The largest number of events that the step reads.

    Returns:
        The checkpoints, and whether the pass is complete.

    Raises:
        SigningKeyError: No key can sign. Nothing was written.
    """
    with transaction.atomic():
        position = lock_position(CHECKPOINTS)
        now = now or position.now
        ended, is_complete = _advance(position, max_events)
        changed = EvidenceChain.objects.exclude(events=F("checkpointed_events")).values_list("org_slug", flat=True)
        chains = lock_chains({*ended, *changed})
        written = [_write(chain, ended.get(slug, []), now) for slug, chain in sorted(chains.items())]
        if is_complete:
            EvidencePosition.objects.filter(name=CHECKPOINTS).update(passed_at=now)
    return written, is_complete


def _advance(position: LockedPosition, max_events: int) -> tuple[Mapping[str, Sequence[EndedJob]], bool]:
    """Return the newly ended jobs by organization, and whether the oldest open transaction is reached."""
    values: dict[str, Any] = {
        "stamp": str(position.stamp),
        "event_id": position.event_id,
        "rows": max_events,
        "final": [str(state) for state in FINAL_STATES],
    }
    with connection.cursor() as cursor:
        cursor.execute(_NEXT, values)
        rows = cursor.fetchall()
    ended: dict[str, list[EndedJob]] = defaultdict(list)
    if not rows:
        return ended, True
    for *_, org_slug, job_ulid, seq, head in rows:
        if job_ulid is not None:
            ended[org_slug].append((job_ulid, seq, head))
    scanned, stamp, event_id = rows[0][:3]
    move_position(position.name, stamp=stamp, event_id=event_id)
    return ended, scanned < max_events


def _write(chain: EvidenceChain, ended: Sequence[EndedJob], now: datetime) -> Checkpoint:
    number = chain.checkpoints + 1
    statement = statement_of(
        org_slug=chain.org_slug,
        number=number,
        created_at=now,
        job_count=len(ended),
        jobs_sha256=jobs_digest(ended),
        event_count=chain.events,
        event_head=chain.head,
        previous_sha256=chain.checkpoint_sha256,
    )
    payload = form.canonical(statement)
    digest = hashlib.sha256(payload).hexdigest()
    checkpoint = Checkpoint.objects.create(
        org_slug=chain.org_slug,
        number=number,
        created_at=now,
        sha256=digest,
        envelope=sign(form.STATEMENT_TYPE, payload),
    )
    if ended:
        with connection.cursor() as cursor:
            cursor.execute(_STORE_JOBS, [checkpoint.pk, *(list(column) for column in zip(*ended, strict=True))])
    chain.checkpoints, chain.checkpoint_sha256, chain.checkpointed_events = number, digest, chain.events
    chain.save(update_fields=["checkpoints", "checkpoint_sha256", "checkpointed_events"])
    return checkpoint
