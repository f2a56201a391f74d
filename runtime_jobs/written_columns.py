"""The columns that operations write: one list for the values that Python sends and for the SQL that stores them."""

from functools import cache
from typing import Any

from django.db.models import NOT_PROVIDED, Model


@cache
def inserted_fields(model: type[Model]) -> tuple[Any, ...]:
    """Return the fields of a new row that Python names: all but its key and what the database computes."""
    return tuple(
        field
        for field in model._meta.concrete_fields  # noqa: SLF001 Django's name for it
        if not (field.generated or field.primary_key or (_has_db_default(field) and not field.has_default()))
    )


@cache
def changed_fields(model: type[Model]) -> tuple[Any, ...]:
    """Return the fields of a row that operations change, as `CHANGED_FIELDS` of the model has them."""
    return tuple(model._meta.get_field(name) for name in model.CHANGED_FIELDS)  # type: ignore[attr-defined] # noqa: SLF001 as above


def column_names(model: type[Model]) -> str:
    """Return the columns of a new row."""
    return ", ".join(field.column for field in inserted_fields(model))


def column_values(model: type[Model], record: str, connection: Any) -> str:
    """Return their values in a record. What it lacks is the default of the database: its sender may not know a column.

    Args:
        model: The model.
        record: The name of the record in SQL.
        connection: Of the database.
    """
    return ", ".join(
        f"coalesce({record}.{field.column}, {_db_default(field, connection)})"
        if _has_db_default(field)
        else f"{record}.{field.column}"
        for field in inserted_fields(model)
    )


def column_changes(model: type[Model], record: str, sent: str) -> str:
    """Return the assignments of an UPDATE of `t`. A column that its sender does not name keeps its value.

    Args:
        model: The model.
        record: The name of the record in SQL.
        sent: The `jsonb` from which the record was made.
    """
    return ",\n               ".join(
        f"{name} = CASE WHEN {record}.{name} IS NULL AND NOT {sent} ? '{name}' THEN t.{name} ELSE {record}.{name} END"
        for name in (field.column for field in changed_fields(model))
    )


def column_types(model: type[Model], connection: Any) -> str:
    """Return the key and the changed columns with their types, for `jsonb_to_record`."""
    columns = [f"{field.column} {field.db_type(connection)}" for field in changed_fields(model)]
    return ", ".join(["id bigint", *columns])


def _has_db_default(field: Any) -> bool:
    return field.db_default is not NOT_PROVIDED


def _db_default(field: Any, connection: Any) -> str:
    editor = connection.schema_editor()
    sql, values = editor.db_default_sql(field)
    return str(sql % tuple(editor.quote_value(value) for value in values))
