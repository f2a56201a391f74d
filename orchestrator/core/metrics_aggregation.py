"""Counts metrics from the event history, in the scheduler process.

So the counts are right with any number of web processes, and no operation becomes slower.
"""

from functools import cache
from pathlib import Path
from typing import Any, Final

from django.conf import settings
from django.db import connection, transaction

from runtime_jobs.models import Organization
from runtime_jobs.plans import TIERS
from runtime_jobs.priorities import PRIORITIES
from runtime_jobs.states import FINAL_STATES, CancelReason

ALL_TENANTS: Final = "*"
MAX_TENANTS: Final = 50  # each label is a series of its own in the store of a monitor
MAX_ROWS = 5000  # events that one transaction counts: 50 ms on a busy machine
PIECES = 4  # in one round; after an outage of the scheduler it catches up
BOUNDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14400.0)  # seconds
# The values of the label `reason` of canceled workflow jobs (document 003). Jobs that are skipped, and those that their
# runner has stopped by itself, are not among them.
CANCEL_LABELS = {
    CancelReason.REQUESTED: "user",
    CancelReason.OPERATOR: "user",
    CancelReason.BATCH_CANCELED: "user",
    CancelReason.SUPERSEDED: "concurrency",
    CancelReason.TIMEOUT: "timeout",
}


def labelled_tenants() -> list[str]:
    """Return the organizations with a label of their own: those of METRICS_TENANTS, or the oldest ones for `*`."""
    if settings.METRICS_TENANTS != [ALL_TENANTS]:
        return settings.METRICS_TENANTS[:MAX_TENANTS]
    return list(Organization.objects.order_by("pk").values_list("slug", flat=True)[:MAX_TENANTS])


class EventCounter:
    """Counts new events when `go_on()` is called, once a round.

    Remembers which limits were full, so that each wait counts once.
    """

    def __init__(self) -> None:
        self.known: list[int] = []

    def go_on(self) -> None:
        """Count what is new, at most `PIECES` times `MAX_ROWS` events."""
        for _ in range(PIECES):
            if self.advance() < MAX_ROWS:
                return

    def advance(self) -> int:
        """Count what is new. Returns how many events were read."""
        values: dict[str, Any] = {
            "max_rows": MAX_ROWS,
            "bounds": list(BOUNDS),
            "final": [str(state) for state in FINAL_STATES],
            "tenants": labelled_tenants(),
            "tiers": list(TIERS),
            "priorities": [PRIORITIES[tier] for tier in TIERS],
            "known": self.known,
            "cancel_reasons": [str(reason) for reason in CANCEL_LABELS],
            "cancel_labels": list(CANCEL_LABELS.values()),
        }
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(_sql("begin"))
            cursor.execute(_sql("count"), values)
            events, self.known = cursor.fetchone()
        return int(events)


@cache
def _sql(name: str) -> str:
    return (Path(__file__).parent / "sql" / f"{name}.sql").read_text()
