"""The columns that operations write: one list for the values that Python sends and for the SQL that stores them."""

from functools import cache
from typing import Any

from django.apps import apps
from django.db.models import NOT_PROVIDED, AutoField, Model


@cache
def inserted_fields(model: type[Model]) -> tuple[Any, ...]:
    """Return the fields of a new row that Python names: all that the database does not compute."""
    return tuple(
        field
        for field in model._meta.concrete_fields  # noqa: SLF001 Django's name for it
        if not (field.generated or isinstance(field, AutoField) or (_has_db_default(field) and not field.has_default()))
    )


@cache
def changed_fields(model: type[Model]) -> tuple[Any, ...]:
    """Return the fields of a row that operations change, as `CHANGED_FIELDS` of the model has them."""
    return tuple(model._meta.get_field(name) for name in model.CHANGED_FIELDS)  # type: ignore[attr-defined] # noqa: SLF001 as above


def is_written_with_changes(model: type[Model]) -> bool:
    """Return whether the statement that writes jobs and leases inserts rows of this model, too.

    Such a model says so by `WRITTEN_WITH_CHANGES = True`. The keys of new rows are not returned.
    """
    return getattr(model, "WRITTEN_WITH_CHANGES", False)


def row_inserts(rows: str, connection: Any) -> str:
    """Return the statements of PL/pgSQL that insert the rows of all such models.

    Args:
        rows: The name of a JSON object: arrays of rows by table.
        connection: Of the database.
    """
    models = filter(is_written_with_changes, apps.get_models())
    found = {model._meta.db_table: model for model in models}  # noqa: SLF001 Django's name for it
    return "\n    ".join(
        f"""IF {rows} -> '{table}' IS NOT NULL THEN
        INSERT INTO {table} ({column_names(model)})
        SELECT {column_values(model, "v", connection)}
          FROM json_populate_recordset(NULL::{table}, {rows} -> '{table}') v;
    END IF;"""  # noqa: S608 our own names
        for table, model in sorted(found.items())
    )


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
