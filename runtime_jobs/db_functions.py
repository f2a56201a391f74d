"""Column types and database functions that Django does not bring along."""

from typing import Any

from django.db import models


class ClockTimestamp(models.Func):
    """The database's clock as it is now. Not `now()`, which stands still since the transaction began: a heartbeat
    that waited for the row lock would be accepted after its expiry."""

    function = "clock_timestamp"
    output_field = models.DateTimeField()


class PlannerOpaqueValue(models.Func):
    """A value that the planner does not see. Of a tenant who has most of all jobs it knows that nearly every row will
    do, takes the newest of all for the first page, and walks past each one that is another's."""

    template = "(SELECT %(expressions)s)"
    arity = 1
    output_field = models.TextField()


class CurrentTransaction(models.Func):
    function = "pg_current_xact_id"


class TransactionId(models.Field):
    """A PostgreSQL `xid8`: which transaction wrote the row. A feed over all jobs is ordered by it."""

    def db_type(self, connection: Any) -> str:  # noqa: ARG002 Django's signature
        return "xid8"

    def from_db_value(self, value: Any, *_: Any) -> int | None:
        return None if value is None else int(value)

    def get_prep_value(self, value: Any) -> Any:
        return value if value is None or hasattr(value, "resolve_expression") else str(value)
