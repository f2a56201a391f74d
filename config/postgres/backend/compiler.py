"""Compiles the queries of Django's ORM as Django does, and never prepares them.

PostgreSQL plans a prepared statement for any values after five executions. That suits the statements of operations,
which find rows by their keys. The ORM's queries are lists, pages and rare look-ups, whose best plan depends on the
values: a partial index serves `state = 'failed'`, but no plan for any state. A statement that is not prepared is
planned for its values each time. They are sent apart from its text, so the server's log does not show them.
"""

from __future__ import annotations

from typing import Any

from django.db.backends.postgresql import compiler
from django.db.backends.postgresql.compiler import SQLInsertCompiler

__all__ = ["SQLAggregateCompiler", "SQLCompiler", "SQLDeleteCompiler", "SQLInsertCompiler", "SQLUpdateCompiler"]


class _PlannedByValues:
    """Executes the compiled statement with a cursor that does not prepare it."""

    def execute_sql(self, *args: Any, **kwargs: Any) -> Any:
        with self.connection.without_preparing():  # type: ignore[attr-defined] # an attribute of every compiler
            return super().execute_sql(*args, **kwargs)  # type: ignore[misc] # of every compiler


class SQLCompiler(_PlannedByValues, compiler.SQLCompiler):
    """Compiles a SELECT."""


class SQLAggregateCompiler(_PlannedByValues, compiler.SQLAggregateCompiler):
    """Compiles an aggregate over a subquery."""


class SQLDeleteCompiler(_PlannedByValues, compiler.SQLDeleteCompiler):
    """Compiles a DELETE."""


class SQLUpdateCompiler(_PlannedByValues, compiler.SQLUpdateCompiler):
    """Compiles an UPDATE."""
