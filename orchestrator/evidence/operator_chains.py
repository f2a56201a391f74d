"""The events of operators, chained by hash for each organization.

The scheduler process writes the links, not the operations: a chain in the operations would be one more lock that all
changes of limits and workers of an organization wait for. A link is written when all older events are committed, at
most a round of the scheduler later.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import takewhile
from typing import Any, Final

from django.db import connection, transaction

from orchestrator.evidence.chain_models import INSTALLATION, EvidenceChain, OperatorEventLink
from orchestrator.evidence.positions import OPERATOR_EVENTS, LockedPosition, lock_position, move_position
from runtime_jobs.events import delete_append_only
from runtime_jobs.models import OperatorEvent

MAX_LINKS: Final = 500  # of one transaction
MAX_STEPS: Final = 4  # of one round; after an upgrade the task catches up

_IS_BEHIND = """
SELECT EXISTS (SELECT FROM operator_events o
                WHERE (o.xid, o.id) > (coalesce(p.stamp, '0'), coalesce(p.event_id, 0))
                  AND o.xid < pg_snapshot_xmin(pg_current_snapshot()))
    OR p.stamp > pg_snapshot_xmax(pg_current_snapshot())
  FROM (SELECT) one LEFT JOIN evidence_positions p ON p.name = %s"""
_NEXT = """
SELECT o.id, o.xid::text::bigint, EXISTS (SELECT FROM operator_event_links l WHERE l.event_id = o.id)
  FROM operator_events o
 WHERE (o.xid, o.id) > (%s::text::xid8, %s) AND o.xid < pg_snapshot_xmin(pg_current_snapshot())
 ORDER BY o.xid, o.id LIMIT %s"""


def canonical_operator_event(event: OperatorEvent, *, seq: int, prev_hash: str) -> bytes:
    """Return the bytes of which the hash of a link is made: JSON with sorted keys, without blanks, in UTF-8.

    The stamp and the key are left out: a restore from a dump changes the first, and the second says nothing.

    Args:
        event: The event as the database returns it.
        seq: Its number in the chain.
        prev_hash: The hash of the link before.
    """
    row: Mapping[str, Any] = {
        "event_ulid": event.event_ulid,
        "action": event.action,
        "actor": event.actor,
        "target": event.target,
        "before": event.before,
        "after": event.after,
        "reason": event.reason,
        "source_address": event.source_address,
        "created_at": event.created_at.astimezone(UTC).isoformat(),
        "org_slug": event.org_slug,
        "job_type": event.job_type,
        "seq": seq,
        "prev_hash": prev_hash,
    }
    return json.dumps(row, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def link_hash(event: OperatorEvent, *, seq: int, prev_hash: str) -> str:
    """Return the hash of a link."""
    return hashlib.sha256(canonical_operator_event(event, seq=seq, prev_hash=prev_hash)).hexdigest()


def link_operator_events() -> int:
    """Link the events that all transactions have committed, in the order of the feeds. Returns how many were linked."""
    linked = 0
    for _ in range(MAX_STEPS):
        with connection.cursor() as cursor:
            cursor.execute(_IS_BEHIND, [OPERATOR_EVENTS])
            if not cursor.fetchone()[0]:
                break
        with transaction.atomic():
            linked += _link_some(lock_position(OPERATOR_EVENTS))
    return linked


def _link_some(position: LockedPosition) -> int:
    with connection.cursor() as cursor:
        cursor.execute(_NEXT, [str(position.stamp), position.event_id, MAX_LINKS])
        rows = cursor.fetchall()
    if not rows:
        move_position(position.name, stamp=position.stamp, event_id=position.event_id)
        return 0
    new = [key for key, _, is_linked in rows if not is_linked]
    _append(new)
    last_id, last_stamp, _ = rows[-1]
    move_position(position.name, stamp=last_stamp, event_id=last_id)
    return len(new)


def _append(keys: Sequence[int]) -> None:
    """Add links to the chains. The lock of the position keeps every other writer away."""
    events = OperatorEvent.objects.in_bulk(keys)
    slugs = {event.org_slug or INSTALLATION for event in events.values()}
    chains = lock_chains(slugs)
    links = []
    for key in keys:
        event = events[key]
        chain = chains[event.org_slug or INSTALLATION]
        seq, before = chain.events + 1, chain.head
        chain.events, chain.head = seq, link_hash(event, seq=seq, prev_hash=before)
        links.append(
            OperatorEventLink(event_id=key, org_slug=chain.org_slug, seq=seq, prev_hash=before, hash=chain.head)
        )
    OperatorEventLink.objects.bulk_create(links)
    EvidenceChain.objects.bulk_update(chains.values(), ["events", "head"])


def lock_chains(slugs: set[str]) -> dict[str, EvidenceChain]:
    """Lock the ends of these chains, in the order of their names. A chain that is missing is created."""
    EvidenceChain.objects.bulk_create([EvidenceChain(org_slug=slug) for slug in sorted(slugs)], ignore_conflicts=True)
    rows = EvidenceChain.objects.select_for_update().filter(org_slug__in=slugs).order_by("org_slug")
    return {chain.org_slug: chain for chain in rows}


_DELETE_UNLINKED = """
DELETE FROM operator_events WHERE id IN (
    SELECT id FROM operator_events o
     WHERE created_at < %s AND (org_slug IS NULL OR org_slug <> ALL (%s::text[]))
       AND NOT EXISTS (SELECT FROM operator_event_links l WHERE l.event_id = o.id)
     ORDER BY created_at LIMIT %s)"""
_OLD_CHAIN = """
SELECT c.org_slug FROM evidence_chains c
  JOIN operator_event_links l ON l.org_slug = c.org_slug AND l.seq = c.deleted_events + 1
  JOIN operator_events o ON o.id = l.event_id
 WHERE o.created_at < %s AND c.org_slug <> ALL (%s::text[])
 ORDER BY o.created_at, o.id LIMIT 1"""
_FIRST_LINKS = """
SELECT l.event_id, l.seq, l.hash, o.created_at < %s
  FROM operator_event_links l LEFT JOIN operator_events o ON o.id = l.event_id
 WHERE l.org_slug = %s AND l.seq > %s ORDER BY l.seq LIMIT %s"""


def delete_operator_events(*, created_before: datetime, limit: int, except_of: Sequence[str] = ()) -> int:
    """Delete old events with their links, for retention: those of one chain, and those without a link.

    A chain loses its beginning only, up to its first event that is young, so what remains can be verified. The end of
    the deleted part is stored with the chain.

    Args:
        created_before: Only events that are older than this.
        limit: The largest number of events of the chain, and of those without a link.
        except_of: Slugs of organizations whose events are kept.

    Returns:
        The number of deleted events; 0: no old one is left.
    """
    with transaction.atomic():
        lock_position(OPERATOR_EVENTS)  # so that no event gets a link meanwhile
        deleted = delete_append_only(_DELETE_UNLINKED, [created_before, list(except_of), limit])
        with connection.cursor() as cursor:
            cursor.execute(_OLD_CHAIN, [created_before, list(except_of)])
            found = cursor.fetchone()
        return deleted + (_delete_beginning(found[0], created_before, limit) if found else 0)


def _delete_beginning(slug: str, created_before: datetime, limit: int) -> int:
    chain = lock_chains({slug})[slug]
    with connection.cursor() as cursor:
        cursor.execute(_FIRST_LINKS, [created_before, slug, chain.deleted_events, limit])
        old = list(takewhile(lambda row: row[3], cursor.fetchall()))
    if not old:
        return 0
    keys = [row[0] for row in old]
    chain.deleted_events, chain.deleted_head = old[-1][1:3]
    chain.save(update_fields=["deleted_events", "deleted_head"])
    delete_append_only("DELETE FROM operator_event_links WHERE event_id = ANY (%s)", [keys])
    return delete_append_only("DELETE FROM operator_events WHERE id = ANY (%s)", [keys])
