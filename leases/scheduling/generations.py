"""Generations of heads: the scheduler process begins a new one, and gives up the old ones when no head is in them.

A claim reads the heads of live generations only, however many old versions a snapshot keeps: `leases/sql/heads.sql`.
Two are live for a moment; while a transaction writes for long, the older one stays.
"""

from django.db import connection, transaction

from leases.models import Lane, LaneGeneration, LaneQueue

VERSION = "(SELECT last_value FROM lane_versions)"  # the number of writes of heads, ever
NEW_ID = "pg_current_xact_id()::text::bigint"
OLDEST_RUNNING = "pg_snapshot_xmin(pg_current_snapshot())::text::bigint"
WRITES = 250  # of heads, after which a new generation begins; more if there are more heads to move
BATCH_SIZE = 500


class Generations:
    """Renews the generations of heads, one step a call. Each piece is a short transaction of its own.

    An older generation is given up when no transaction runs that may have read its number as the newest one. Such a
    transaction had an id before the snapshot with which it read the number. So its id is below one that is assigned
    after the newest generation was committed. (The end of a snapshot would not do: it is the id after the last that has
    completed, and running transactions have higher ones.) Heads are moved after that: each is then in the newest
    generation, or is being written into it.
    """

    def __init__(self) -> None:
        # A generation, and the id of a transaction that began after it was committed. Another process may have begun
        # the newest one, so a generation has a name: its number, and the version before it.
        self._seen: tuple[int, int] | None = None
        self._later_id = 0

    def renew(self) -> None:
        """Begin a generation if the newest has had its writes, or give up the older ones if that is safe now."""
        newest = LaneGeneration.objects.order_by("-number").first() or LaneGeneration(number=0, oldest=0, began_at=0)
        if newest.number == newest.oldest:
            written = _value(VERSION)
            new = written - newest.began_at
            if new < WRITES or new < Lane.objects.count() + LaneQueue.objects.count():
                return
            newest = LaneGeneration.objects.create(number=newest.number + 1, oldest=newest.oldest, began_at=written)
        if self._seen != (newest.number, newest.began_at):
            self._later_id = _value(NEW_ID)
            self._seen = (newest.number, newest.began_at)
        if _value(OLDEST_RUNNING) >= self._later_id:
            _move(Lane, "move_lane_heads")
            _move(LaneQueue, "move_queue_heads")
            with transaction.atomic():
                LaneGeneration.objects.filter(pk=newest.pk).update(oldest=newest.number, began_at=_value(VERSION))
                LaneGeneration.objects.filter(pk__lt=newest.pk).delete()


def _move(model: type[Lane] | type[LaneQueue], function: str) -> None:
    keys = list(model.objects.order_by("pk").values_list("pk", flat=True))
    with connection.cursor() as cursor:
        for start in range(0, len(keys), BATCH_SIZE):
            cursor.execute(f"SELECT {function}(%s)", [keys[start : start + BATCH_SIZE]])


def _value(expression: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {expression}")
        return int(cursor.fetchone()[0])
