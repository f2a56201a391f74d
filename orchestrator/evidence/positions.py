"""The positions up to which the tasks of evidence have read events: locked, moved, and set back after a restore."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from django.db import connection

from orchestrator.evidence.chain_models import EvidencePosition

OPERATOR_EVENTS: Final = "operator_events"
CHECKPOINTS: Final = "checkpoints"

_CREATE = """
INSERT INTO evidence_positions (name, stamp, event_id) VALUES (%s, '0', 0) ON CONFLICT (name) DO NOTHING"""
# A dump that was restored by other means than `manage.py restore` may leave a position beyond the newest transaction,
# where no event follows it for long.
_LOCK = """
SELECT CASE WHEN is_past THEN stamp::text::bigint ELSE 0 END, CASE WHEN is_past THEN event_id ELSE 0 END,
       passed_at, requested_at, clock_timestamp()
  FROM (SELECT *, stamp <= pg_snapshot_xmax(pg_current_snapshot()) AS is_past FROM evidence_positions
         WHERE name = %s FOR UPDATE) locked"""


@dataclass(frozen=True)
class LockedPosition:
    """A position whose row is locked until the transaction ends. `now` is the time of the database after the wait."""

    name: str
    stamp: int
    event_id: int
    passed_at: datetime | None
    requested_at: datetime | None
    now: datetime


def lock_position(name: str) -> LockedPosition:
    """Lock the position of a task and return it. The first call of an installation begins before all events."""
    with connection.cursor() as cursor:
        cursor.execute(_LOCK, [name])
        found = cursor.fetchone()
        if found is None:
            cursor.execute(_CREATE, [name])
            cursor.execute(_LOCK, [name])
            found = cursor.fetchone()
    return LockedPosition(name, *found)


def move_position(name: str, *, stamp: int, event_id: int) -> None:
    """Store the position of a task whose row the caller has locked."""
    EvidencePosition.objects.filter(name=name).update(stamp=stamp, event_id=event_id)


def read_everything_again() -> None:
    """Let the tasks begin before all events, after a restore has changed their stamps. What is chained is skipped."""
    if EvidencePosition._meta.db_table in connection.introspection.table_names():  # noqa: SLF001 Django's name
        EvidencePosition.objects.update(stamp=0, event_id=0)  # else the dump is one of an older release
