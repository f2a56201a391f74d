"""The position of the dispatchers in the feed: read, moved, and set anew in the database of a restored dump."""

import logging
from datetime import datetime, timedelta
from typing import Final

from django.db import connection, transaction

from orchestrator.events.pages import Place
from orchestrator.webhooks.models import DispatchPosition
from runtime_jobs.events import reset_foreign_stamps

log = logging.getLogger(__name__)

ROW: Final = 1
BEAT_TIME: Final = timedelta(seconds=1)
# After a restore: events that were sent before the dump have the stamp 0, the others this one.
UNSENT_STAMP: Final = 1

# A dump that was restored by other means than `manage.py restore` may leave the position beyond the newest transaction,
# where no event follows it for long.
_READ: Final = """
SELECT stamp::text::bigint, kind, event_id, beat_at FROM dispatch_position
 WHERE id = %(row)s AND stamp <= pg_snapshot_xmax(pg_current_snapshot())"""
_RESET: Final = """
INSERT INTO dispatch_position AS place (id, stamp, kind, event_id, beat_at)
VALUES (%(row)s, pg_snapshot_xmin(pg_current_snapshot()), 0, 0, clock_timestamp())
    ON CONFLICT (id) DO UPDATE SET stamp = excluded.stamp, kind = 0, event_id = 0
 WHERE place.stamp > pg_snapshot_xmax(pg_current_snapshot())
RETURNING beat_at, xmax::text <> '0'"""
_LIMIT_TO_CLUSTER: Final = """
UPDATE dispatch_position SET stamp = pg_snapshot_xmin(pg_current_snapshot()), kind = 0, event_id = 0
 WHERE stamp > pg_snapshot_xmin(pg_current_snapshot())"""


def read_position() -> tuple[Place, datetime]:
    """Return the position, and when it was last written.

    Without one, and where the stored one is in the future, events are read from the present on.
    """
    with connection.cursor() as cursor:
        cursor.execute(_READ, {"row": ROW})
        found = cursor.fetchone()
        if found is None:
            cursor.execute(_RESET, {"row": ROW})
            _report_reset(cursor.fetchone())
            cursor.execute(_READ, {"row": ROW})
            found = cursor.fetchone()
    stamp, kind, event_id, beat_at = found
    return Place(stamp, kind, event_id), beat_at


def move_position(place: Place, now: datetime) -> None:
    """Store the position. The caller has the lock of the distribution, and stores the deliveries before it."""
    rows = DispatchPosition.objects.filter(pk=ROW)
    rows.update(stamp=place.stamp, kind=place.kind, event_id=place.id, beat_at=now)


def adopt_restored_events() -> None:
    """Give restored events stamps of this database cluster, and keep the position between the same two of them.

    So what was not sent before the dump is sent, and nothing twice.
    """
    with transaction.atomic():
        position = _stored_position()
        changed = reset_foreign_stamps(sent_until=position, unsent_stamp=UNSENT_STAMP)
        if position is None:
            return
        if changed:
            move_position(Place(UNSENT_STAMP), DispatchPosition.objects.get(pk=ROW).beat_at)
            return
        # All events are below the oldest transaction, and all that will follow are above.
        with connection.cursor() as cursor:
            cursor.execute(_LIMIT_TO_CLUSTER)


def _stored_position() -> Place | None:
    if DispatchPosition._meta.db_table not in connection.introspection.table_names():  # noqa: SLF001 Django's name
        return None  # a dump of an older release
    found = DispatchPosition.objects.filter(pk=ROW).first()
    return Place(found.stamp, found.kind, found.event_id) if found else None


def _report_reset(reset: tuple[datetime, bool] | None) -> None:
    if reset is not None and reset[1]:
        log.warning(
            "the position of the dispatchers was beyond the newest transaction: the database is that of another "
            "cluster. Sending begins with the present; events since %s that were not sent are in /api/events",
            reset[0].isoformat(),
        )
