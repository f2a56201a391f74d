"""One statement that writes rows of several tables. Each table's rows travel as one JSON array: one value to bind
instead of a thousand, and PostgreSQL reads it faster than it could be quoted."""

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
    """New rows with the attributes of a model. Each gets its key as `pk`, found by the unique `natural_key`."""

    model: type[Model]
    rows: Sequence[Any]
    natural_key: str


@dataclass(frozen=True)
class Update:
    """Rows of one table, and the columns of theirs that are written."""

    model: type[Model]
    rows: Sequence[Model]
    columns: tuple[str, ...]


def store(new: Sequence[Insert], changed: Sequence[Update]) -> None:
    """Insert the new rows and update the changed ones.

    Raises DatabaseError when a changed row is not there: whoever changes it holds its lock."""
    new, changed = [one for one in new if one.rows], [one for one in changed if one.rows]
    parts = [_inserted(one.model, one.natural_key) for one in new]
    parts += [_updated(one.model, one.columns) for one in changed]
    if not parts:
        return
    values = [_as_json(one.model, one.rows, _new_columns(one.model)) for one in new]
    values += [_as_json(one.model, one.rows, ("id", *one.columns)) for one in changed]
    _received(new, changed, _executed(tuple(parts), values))


def _executed(parts: tuple[str, ...], values: list[str]) -> list[tuple[int, int, str | None]]:
    with connection.cursor() as cursor:
        cursor.execute(_statement(parts), values)
        return cursor.fetchall()


def _received(new: Sequence[Insert], changed: Sequence[Update], returned: list[tuple[int, int, str | None]]) -> None:
    """Give each new row its key, and check that every changed row was there.

    PostgreSQL promises no order of keys within one INSERT, so that a row is recognized by its natural key.

    Args:
        new: What was inserted.
        changed: What was updated.
        returned: For each row the number of its part, its key, and its natural key if it is new.
    """
    keys: dict[int, dict[str | None, int]] = {}
    found: Counter[int] = Counter()
    for part, key, natural in returned:
        keys.setdefault(part, {})[natural] = key
        found[part] += 1
    for place, one in enumerate(new):
        for row in one.rows:
            row.pk = keys[place][getattr(row, one.natural_key)]
            if isinstance(row, Model):
                row._state.adding, row._state.db = False, connection.alias  # noqa: SLF001 as Model.save does
    for place, change in enumerate(changed, start=len(new)):
        if found[place] != len(change.rows):
            raise DatabaseError("A row that should be changed is not there.")


@cache
def _statement(parts: tuple[str, ...]) -> str:
    named = ", ".join(f"part{place} AS ({part})" for place, part in enumerate(parts))
    told = " UNION ALL ".join(f"SELECT {place}, id, name FROM part{place}" for place in range(len(parts)))  # noqa: S608 numbers
    return f"WITH {named} {told}"


@cache
def _inserted(model: type[Model], natural_key: str) -> str:
    natural = _column(model, natural_key)
    columns = _new_columns(model)
    named = ", ".join(_column(model, name) for name in columns)
    rows = _rows(model, columns)
    return f"INSERT INTO {_table(model)} ({named}) SELECT {named} FROM {rows} RETURNING id, {natural}::text AS name"  # noqa: S608 our own names


@cache
def _updated(model: type[Model], columns: tuple[str, ...]) -> str:
    values = ", ".join(f"{name} = v.{name}" for name in (_column(model, name) for name in columns))
    rows = _rows(model, ("id", *columns))
    return f"UPDATE {_table(model)} t SET {values} FROM {rows} WHERE t.id = v.id RETURNING t.id, NULL::text AS name"  # noqa: S608 as above


@cache
def _new_columns(model: type[Model]) -> tuple[str, ...]:
    """The attributes that an INSERT names: all but keys and what the database itself computes."""
    fields = [field for field in _fields(model).values() if not field.generated and not field.primary_key]
    return tuple(field.attname for field in fields if field.db_default is NOT_PROVIDED)


@cache
def _rows(model: type[Model], attributes: tuple[str, ...]) -> str:
    """The JSON array as rows. Types stand without their lengths: the table's own column checks those."""
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


def _as_json(model: type[Model], rows: Sequence[Any], attributes: tuple[str, ...]) -> str:
    """What is None is left out: PostgreSQL makes it NULL."""
    fields = _fields(model)
    names = [(name, fields[name].column) for name in attributes]
    values = map(vars, rows)
    return orjson.dumps(
        [{column: row[name] for name, column in names if row[name] is not None} for row in values]
    ).decode()
