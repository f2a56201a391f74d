"""Retention of scheduler rows: lanes, queues, and limits of concurrency keys and source addresses."""

from datetime import timedelta
from typing import Any

from django.db import connection, transaction

IDLE_FOR = timedelta(hours=1)
BATCH_SIZE = 100  # each advisory lock is an entry of the shared lock table


def prune_idle_lanes(
    *, batch_size: int = BATCH_SIZE, idle_for: timedelta = IDLE_FOR, after: int = 0
) -> tuple[int | None, int]:
    """Delete lanes in which no job has waited for a while; one short transaction that never waits.

    Args:
        batch_size: Number of lanes to read.
        idle_for: Time since a call of this function first found the lane empty.
        after: Id after which the batch begins.

    Returns:
        The id at which the next call continues (None at the end of the table), and the number of deleted lanes.
    """
    return _pruned("prune_idle_lanes(%s, %s, %s)", [after, batch_size, idle_for])


def prune_empty_queues(*, batch_size: int = BATCH_SIZE, after: int = 0) -> tuple[int | None, int]:
    """Delete queues without lanes; arguments and result as those of `prune_idle_lanes`."""
    return _pruned("prune_empty_queues(%s, %s)", [after, batch_size])


def prune_unused_limits(*, batch_size: int = BATCH_SIZE, after: int = 0) -> tuple[int | None, int]:
    """Delete limits of concurrency keys and source addresses without a lane, with their slots.

    Arguments and result as those of `prune_idle_lanes`. Limits that a person or a plan has set stay.
    """
    return _pruned("prune_unused_limits(%s, %s)", [after, batch_size])


def _pruned(call: str, values: list[Any]) -> tuple[int | None, int]:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {call}", values)  # noqa: S608 our own calls
        looked_to, pruned = cursor.fetchone()
    return looked_to, pruned


class IdlePruner:
    """Prunes the tables batch by batch. One per scheduler process; its position is not stored."""

    STEPS = (prune_idle_lanes, prune_empty_queues, prune_unused_limits)

    def __init__(self) -> None:
        self.step, self.after = 0, 0

    def advance(self, *, batches: int = 10, batch_size: int = BATCH_SIZE, idle_for: timedelta = IDLE_FOR) -> int:
        """Prune the next batches, and begin again after the last. Return the number of deleted rows."""
        deleted = 0
        for _ in range(batches):
            prune = self.STEPS[self.step]
            more = {"idle_for": idle_for} if prune is prune_idle_lanes else {}
            after, count = prune(batch_size=batch_size, after=self.after, **more)
            deleted += count
            self.after = after or 0
            if after is None:
                self.step = (self.step + 1) % len(self.STEPS)
                if self.step == 0:
                    return deleted
        return deleted
