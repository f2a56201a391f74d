"""Writes new and changed rows of several tables with one statement.

The rows of a table travel as one JSON array. So the statement binds one value for each table instead of one for each
column of each row, and PostgreSQL reads JSON faster than the values could be quoted.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import orjson
from django.db import DatabaseError, connection
from django.db.models import NOT_PROVIDED, Model


@dataclass(frozen=True)
class Insert:
    """New rows of one table.

    Attributes:
        model: The model of the table.
        rows: Objects with the attributes of the model. Each gets its key as `pk`.
        natural_key: A unique attribute by which a returned key is matched to its row.
    """

    model: type[Model]
    rows: Sequence[Any]
    natural_key: str


@dataclass(frozen=True)
class Update:
    """Changed rows of one table, and the attributes to write."""

    model: type[Model]
    rows: Sequence[Model]
    columns: tuple[str, ...]


def write_rows(inserts: Sequence[Insert], updates: Sequence[Update]) -> None:
    """Insert the new rows and update the changed ones.

    Raises:
        DatabaseError: A changed row does not exist. Callers hold its lock, so this is a programming error.
    """
    inserts, updates = [part for part in inserts if part.rows], [part for part in updates if part.rows]
    parts = [_insert_sql(part.model, part.natural_key) for part in inserts]
    parts += [_update_sql(part.model, part.columns) for part in updates]
    if not parts:
        return
    values = [_to_json(part.model, part.rows, _insert_columns(part.model)) for part in inserts]
    values += [_to_json(part.model, part.rows, ("id", *part.columns)) for part in updates]
    with connection.cursor() as cursor:
        cursor.execute(_statement(tuple(parts)), values)
        returned = cursor.fetchall()
    _assign_keys(inserts, updates, returned)


def _assign_keys(
    inserts: Sequence[Insert], updates: Sequence[Update], returned: list[tuple[int, int, str | None]]
) -> None:
    """Give each new row its key, and check that every changed row exists.

    PostgreSQL promises no order of keys within one INSERT, so a row is recognized by its natural key.

    Args:
        inserts: The parts that were inserted.
        updates: The parts that were updated.
        returned: For each row the number of its part, its key, and its natural key if it is new.
    """
    keys: dict[int, dict[str | None, int]] = {}
    found: Counter[int] = Counter()
    for part, key, natural_key in returned:
        keys.setdefault(part, {})[natural_key] = key
        found[part] += 1
    for number, insert in enumerate(inserts):
        for row in insert.rows:
            row.pk = keys[number][getattr(row, insert.natural_key)]
            if isinstance(row, Model):
                row._state.adding, row._state.db = False, connection.alias  # noqa: SLF001 as Model.save does
    for number, update in enumerate(updates, start=len(inserts)):
        if found[number] != len(update.rows):
            table = update.model._meta.db_table  # noqa: SLF001 Django's name for it
            raise DatabaseError(f"{table}: updated {found[number]} of {len(update.rows)} rows.")


@cache
def _statement(parts: tuple[str, ...]) -> str:
    ctes = ", ".join(f"part{number} AS ({part})" for number, part in enumerate(parts))
    keys = " UNION ALL ".join(f"SELECT {number}, id, name FROM part{number}" for number in range(len(parts)))  # noqa: S608 numbers
    return f"WITH {ctes} {keys}"


@cache
def _insert_sql(model: type[Model], natural_key: str) -> str:
    natural = _column(model, natural_key)
    attributes = _insert_columns(model)
    columns = ", ".join(_column(model, name) for name in attributes)
    rows = _rows_sql(model, attributes)
    return f"INSERT INTO {_table(model)} ({columns}) SELECT {columns} FROM {rows} RETURNING id, {natural}::text AS name"  # noqa: S608 our own names


@cache
def _update_sql(model: type[Model], columns: tuple[str, ...]) -> str:
    values = ", ".join(f"{name} = v.{name}" for name in (_column(model, name) for name in columns))
    rows = _rows_sql(model, ("id", *columns))
    return f"UPDATE {_table(model)} t SET {values} FROM {rows} WHERE t.id = v.id RETURNING t.id, NULL::text AS name"  # noqa: S608 as above


@cache
def _insert_columns(model: type[Model]) -> tuple[str, ...]:
    """Return the attributes that an INSERT names: all but keys and what the database computes."""
    fields = [field for field in _fields(model).values() if not field.generated and not field.primary_key]
    return tuple(field.attname for field in fields if field.db_default is NOT_PROVIDED)


@cache
def _rows_sql(model: type[Model], attributes: tuple[str, ...]) -> str:
    """Return a FROM item that reads the JSON array. Types carry no length: the column of the table checks it."""
    types = [re.sub(r"\(\d+\)", "", _fields(model)[name].rel_db_type(connection)) for name in attributes]
    columns = [f"{_column(model, name)} {kind}" for name, kind in zip(attributes, types, strict=True)]
    return f"json_to_recordset(%s::json) AS v({', '.join(columns)})"


def _column(model: type[Model], attribute: str) -> str:
    return connection.ops.quote_name(_fields(model)[attribute].column)


def _table(model: type[Model]) -> str:
    return connection.ops.quote_name(model._meta.db_table)  # noqa: SLF001 Django's name for it


@cache
def _fields(model: type[Model]) -> dict[str, Any]:
    return {field.attname: field for field in model._meta.concrete_fields}  # noqa: SLF001 likewise


def _to_json(model: type[Model], rows: Sequence[Any], attributes: tuple[str, ...]) -> str:
    """Return the rows as a JSON array. None is left out: PostgreSQL makes it NULL."""
    fields = _fields(model)
    names = [(name, fields[name].column) for name in attributes]
    values = map(vars, rows)
    return orjson.dumps(
        [{column: row[name] for name, column in names if row[name] is not None} for row in values]
    ).decode()
