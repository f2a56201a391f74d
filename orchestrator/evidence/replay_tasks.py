"""Finds the replays that have ended and have no verdict, and compares each with the job that it repeats."""

import time
from collections.abc import Iterator
from datetime import datetime
from typing import Final

from django.db import connection

from orchestrator.core.row_batches import RowRunner
from orchestrator.evidence import replays

MAX_REPLAYS: Final = 50
SECONDS_A_ROUND: Final = 0.5  # then no further comparison begins: one of large runs takes as long, and leases expire

_ENDED = """
SELECT r.job_ulid FROM job_replays r JOIN runtime_jobs j ON j.root_job_ulid = r.job_ulid
 WHERE r.verdict IS NULL AND j.finished_at IS NOT NULL AND r.job_ulid <> ALL (%s::text[])
   AND NOT EXISTS (SELECT FROM runtime_jobs newer WHERE newer.retry_of_job_ulid = j.job_ulid)
 ORDER BY r.id LIMIT %s"""


def compare_ended_replays(rows: RowRunner, *, now: datetime | None = None) -> int:
    """Record the verdicts of the replays that have ended. Returns how many."""
    with connection.cursor() as cursor:
        cursor.execute(_ENDED, [rows.suspended("job_ulid"), MAX_REPLAYS])
        names = [row[0] for row in cursor.fetchall()]
    return rows.each(replays.compare_replay, _in_time(names), now=now)


def _in_time(names: list[str]) -> Iterator[dict[str, str]]:
    """Yield the arguments of the first replay, and of further ones while the round has time."""
    until = time.monotonic() + SECONDS_A_ROUND
    for number, name in enumerate(names):
        if number and time.monotonic() >= until:
            return
        yield {"job_ulid": name}
