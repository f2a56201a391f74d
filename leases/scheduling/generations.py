"""Generations of heads: the scheduler process begins a new one, and gives up the old ones when no head is in them.

A claim reads the heads of live generations only, so what it reads is bounded by the writes of about two generations,
however many old versions a snapshot keeps: `leases/sql/heads.sql`.
"""

from django.db import connection, transaction

from leases.models import Lane, LaneGeneration, LaneQueue

WRITES = 250  # of heads, after which a new generation begins; more if there are more heads to move
BATCH_SIZE = 500


class Generations:
    """Renews the generations of heads, one step a call. Each piece is a short transaction of its own.

    An older generation is given up when no transaction runs that may have read its number as the newest one. Such a
    transaction had an id before it read the number, so it ended when all below the next id of that time have. Heads are
    moved after that: each is then in the newest generation, or is being written into it.
    """

    def __init__(self) -> None:
        self._next_id: int | None = None  # of a transaction, since the newest generation has begun

    def renew(self) -> None:
        """Begin a generation if the newest has had its writes, or give up the older ones if that is safe now."""
        newest = LaneGeneration.objects.order_by("-number").first() or LaneGeneration(number=0, oldest=0, began_at=0)
        if newest.number == newest.oldest:
            self._next_id = None
            written = _written()
            if written - newest.began_at < max(WRITES, Lane.objects.count() + LaneQueue.objects.count()):
                return
            newest = LaneGeneration.objects.create(number=newest.number + 1, oldest=newest.oldest, began_at=written)
        if self._next_id is None:
            self._next_id = _snapshot("xmax")
        if _snapshot("xmin") >= self._next_id:
            _move(Lane, "move_lane_heads")
            _move(LaneQueue, "move_queue_heads")
            with transaction.atomic():
                LaneGeneration.objects.filter(pk=newest.pk).update(oldest=newest.number, began_at=_written())
                LaneGeneration.objects.filter(pk__lt=newest.pk).delete()


def _move(model: type[Lane] | type[LaneQueue], function: str) -> None:
    keys = list(model.objects.order_by("pk").values_list("pk", flat=True))
    with connection.cursor() as cursor:
        for start in range(0, len(keys), BATCH_SIZE):
            cursor.execute(f"SELECT {function}(%s)", [keys[start : start + BATCH_SIZE]])


def _written() -> int:
    """Return the number of writes of heads, ever."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT last_value FROM lane_versions")
        return int(cursor.fetchone()[0])


def _snapshot(end: str) -> int:
    """Return `xmin`, the oldest transaction that runs, or `xmax`, the next one."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT pg_snapshot_{end}(pg_current_snapshot())::text::bigint")
        return int(cursor.fetchone()[0])
