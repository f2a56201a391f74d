"""Column types and database functions that Django does not provide."""

from typing import Any

from django.db import models


class ClockTimestamp(models.Func):
    """The database's clock.

    `now()` is the time at which the transaction began: a heartbeat that waited for the row lock would be accepted after
    the expiry of its lease.
    """

    function = "clock_timestamp"
    output_field = models.DateTimeField()


class PlannerOpaqueValue(models.Func):
    """A value that the planner does not see.

    For an organization with most of all jobs the planner would read the newest jobs of all organizations, and skip each
    job of another one.
    """

    template = "(SELECT %(expressions)s)"
    arity = 1
    output_field = models.TextField()


class CurrentTransaction(models.Func):
    """The id of the current transaction."""

    function = "pg_current_xact_id"


class FeedStamp(models.Func):
    """The position of a new row in the feeds: the id of its transaction, or a greater one.

    A transaction may have got its id before it waited for a lock. The stamp is at least the newest id that this
    statement sees, so rows of one resource have stamps in the order in which its lock was held. It is never below the
    id of the writer, so all rows below the oldest open transaction are committed.
    """

    template = "greatest(pg_current_xact_id(), (pg_snapshot_xmax(pg_current_snapshot())::text::bigint - 1)::text::xid8)"
    arity = 0


class TransactionId(models.Field):
    """A PostgreSQL `xid8`: the transaction that wrote the row, or a later one. It orders feeds over all jobs."""

    def db_type(self, connection: Any) -> str:  # noqa: ARG002 Django's signature
        return "xid8"

    def from_db_value(self, value: Any, *_: Any) -> int | None:
        return None if value is None else int(value)

    def get_prep_value(self, value: Any) -> Any:
        return value if value is None or hasattr(value, "resolve_expression") else str(value)
