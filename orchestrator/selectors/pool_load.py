"""Counts the load of a pool for autoscalers."""

from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from django.db import connection, transaction

from orchestrator.selectors.pending_reasons.workers import SILENT_AFTER

COUNTED = 10_000  # waiting jobs; beyond that the exact number changes no decision
NEWEST = 20_000  # leases of all pools among which the starts of the last minute are counted


class PoolLoad(NamedTuple):
    """The load of one pool.

    `queued`: all waiting jobs; `servable`: those of them that no limit blocks, which more workers would help. Both
    count up to COUNTED. `running`: open leases. Workers are counted by their state; `idle_slots` are those of active
    workers.
    """

    queued: int
    servable: int
    running: int
    idle_slots: int
    active: int
    silent: int
    draining: int
    maintenance: int
    oldest_wait_seconds: float | None
    starts_per_minute: int
    at: datetime

    @property
    def is_capped(self) -> bool:
        return self.queued >= COUNTED


def pool_load(pool: str) -> PoolLoad:
    """Return the load of a pool, by one statement with a timeout of its own."""
    values: dict[str, Any] = {"pool": pool, "most": COUNTED, "newest": NEWEST, "silent": SILENT_AFTER}
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL statement_timeout = '2s'")
        cursor.execute(_question(), values)
        return PoolLoad(*cursor.fetchone())


@cache
def _question() -> str:
    return (Path(__file__).parent / "sql" / "load.sql").read_text()
