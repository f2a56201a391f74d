"""Compiles the queries of Django's ORM as Django does, and sends each with its values in the text.

The sessions of the web processes use generic plans (`config.databases`), which are made without the values. That suits
the statements of operations, which find rows by their keys. The ORM's queries are lists, pages and rare look-ups. Their
best plan depends on the values: a partial index serves `state = 'failed'`, but no plan for any state. PostgreSQL plans
a statement with its values in the text each time, whatever the session's setting is.
"""

from __future__ import annotations

from typing import Any

from django.db.backends.postgresql import compiler
from django.db.backends.postgresql.compiler import SQLInsertCompiler

__all__ = ["SQLAggregateCompiler", "SQLCompiler", "SQLDeleteCompiler", "SQLInsertCompiler", "SQLUpdateCompiler"]


class _PlannedByValues:
    """Executes the compiled statement with a cursor that binds values in the client."""

    def execute_sql(self, *args: Any, **kwargs: Any) -> Any:
        with self.connection.binding_in_client():  # type: ignore[attr-defined] # an attribute of every compiler
            return super().execute_sql(*args, **kwargs)  # type: ignore[misc] # of every compiler


class SQLCompiler(_PlannedByValues, compiler.SQLCompiler):
    """Compiles a SELECT."""


class SQLAggregateCompiler(_PlannedByValues, compiler.SQLAggregateCompiler):
    """Compiles an aggregate over a subquery."""


class SQLDeleteCompiler(_PlannedByValues, compiler.SQLDeleteCompiler):
    """Compiles a DELETE."""


class SQLUpdateCompiler(_PlannedByValues, compiler.SQLUpdateCompiler):
    """Compiles an UPDATE."""
