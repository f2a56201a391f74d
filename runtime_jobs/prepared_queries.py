"""Queries that run with every call, as SQL that is composed once.

Django's ORM composes a query anew each time: the look-up of a token took it 1.3 ms, of which PostgreSQL took 0.1 ms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, cached_property
from types import UnionType
from typing import Any, Generic, TypeVar, cast, get_args, get_type_hints

from django.db import DEFAULT_DB_ALIAS, connection, connections
from django.db.models import Field, Model
from django.db.models.base import ModelState

R = TypeVar("R")
M = TypeVar("M", bound=Model)
Convert = Callable[[Any, None, Any], Any]


@dataclass(frozen=True)
class Sql:
    """Mark a field of a row as the value of an SQL expression: `now: Annotated[datetime, Sql("clock_timestamp()")]`."""

    expression: str


def fetch_all(sql: str, values: Sequence[Any]) -> list[Any]:
    """Execute a statement and return its rows, each a tuple.

    psycopg is called directly: Django's cursor and its wrappers cost 30 to 40 µs of each statement. They are used while
    statements are captured, as in tests.

    Raises:
        django.db.Error: As Django raises it.
    """
    db = connections[DEFAULT_DB_ALIAS]
    if db.execute_wrappers or db.queries_logged:
        with db.cursor() as cursor:
            cursor.execute(sql, values)
            return list(cursor.fetchall())
    db.close_if_health_check_failed()
    db.ensure_connection()
    db.validate_no_broken_transaction()
    with db.wrap_database_errors:
        return cast("list[Any]", db.connection.execute(sql, values).fetchall())


def column_list(row: type) -> str:
    """Return the SQL expressions of a row, for a statement that is written by hand."""
    return ", ".join(_expressions(row).values())


@dataclass(frozen=True)
class _Table:
    """The columns of one table within a row of the result: where they begin, and which need a conversion."""

    attribute: str
    model: type[Model]
    columns: list[Field[Any, Any]]
    begin: int

    @cached_property
    def names(self) -> list[str]:
        return [column.attname for column in self.columns]

    @cached_property
    def conversions(self) -> list[tuple[int, Convert]]:
        return [
            (place, convert)
            for place, column in enumerate(self.columns, start=self.begin)
            for convert in column.get_db_converters(connection)
        ]

    def instance(self, row: list[Any]) -> Model | None:
        """Return the model instance in a row, None where an outer join found nothing."""
        if row[self.begin] is None:
            return None
        for place, convert in self.conversions:
            row[place] = convert(row[place], None, connection)
        return _instance(self.model, dict(zip(self.names, row[self.begin :], strict=False)))


class PreparedQuery(Generic[R]):
    """A SELECT whose rows are instances of a model, or of a frozen dataclass with typed fields.

    A field of such a dataclass is a model or has an `Sql` annotation: `row.lease`, `row.now`. The first model is the
    table `t` of the SQL; each further one is a table that is joined under the name of its field. `Model | None` is for
    an outer join: None where the key of the joined row is null. A joined table that is named like a foreign key of the
    first one is set as that relation, as `select_related` does.

    Models remain instances, and are what the ORM would have read: services change them, and the unit of work stores
    them.
    """

    def __init__(self, row: type[R], tail: str, *, without: Sequence[str] = (), source: str = "") -> None:
        """Describe the query; nothing is read yet.

        Args:
            row: A model, or a frozen dataclass of tables and columns.
            tail: The SQL after `FROM <first table> t`.
            without: Attributes of the first table that are not read. Reading such an attribute is a query of its own.
            source: A FROM item in place of `<first table> t`, such as a function that returns rows of it.
        """
        self.row, self.tail, self.without, self.source = row, tail, without, source

    def all(self, *values: Any) -> list[R]:
        """Return all rows for these values of the placeholders."""
        return [self._read(list(row)) for row in fetch_all(self._sql, values)]

    def first(self, *values: Any) -> R | None:
        """Return the first row, or None."""
        return next(iter(self.all(*values)), None)

    def _read(self, row: list[Any]) -> R:
        first, *others = self._tables
        instances = [first.instance(row)]
        for part in others:
            instances.append(part.instance(row))
            if part.attribute in self._relations:
                instances[0]._state.fields_cache[part.attribute] = instances[-1]  # type: ignore[union-attr] # noqa: SLF001 as select_related
        if not is_dataclass(self.row):
            return cast("R", instances[0])
        values = [*instances, *row[len(row) - len(self._expressions) :]]
        return cast("R", self.row(**dict(zip(self._names, values, strict=True))))

    @cached_property
    def _expressions(self) -> dict[str, str]:
        return _expressions(self.row)

    @cached_property
    def _names(self) -> list[str]:
        return [*(part.attribute for part in self._tables), *self._expressions]

    @cached_property
    def _tables(self) -> list[_Table]:
        models: dict[str, Any] = {"t": self.row}
        if is_dataclass(self.row):
            hints = get_type_hints(self.row)
            models = {part.name: hints[part.name] for part in fields(self.row) if part.name not in self._expressions}
        found: list[_Table] = []
        begin = 0
        for attribute, hint in models.items():
            model = _model(hint)
            columns = [one for one in _columns(model) if found or one.attname not in self.without]
            found.append(_Table(attribute, model, columns, begin))
            begin += len(columns)
        return found

    @cached_property
    def _relations(self) -> set[str]:
        return {column.name for column in _columns(self._tables[0].model) if column.is_relation}

    @cached_property
    def _sql(self) -> str:
        first, *others = self._tables
        names = ["t", *(part.attribute for part in others)]
        columns = [
            f'{name}."{one.column}"' for name, part in zip(names, self._tables, strict=True) for one in part.columns
        ]
        columns += [f"{sql} AS {name}" for name, sql in self._expressions.items()]
        source = self.source or f'"{first.model._meta.db_table}" t'  # noqa: SLF001 Django's name for it
        return f"SELECT {', '.join(columns)} FROM {source} {self.tail}"  # noqa: S608 our own names


def _expressions(row: type) -> dict[str, str]:
    """Return the SQL of each annotated field of a row; nothing for a model."""
    if not is_dataclass(row):
        return {}
    return {
        name: mark.expression
        for name, hint in get_type_hints(row, include_extras=True).items()
        for mark in getattr(hint, "__metadata__", ())
        if isinstance(mark, Sql)
    }


def _model(hint: Any) -> type[Model]:
    """Return the model of an annotation: `Project` or `Project | None`."""
    return next(part for part in get_args(hint) if part is not type(None)) if isinstance(hint, UnionType) else hint


def _columns(model: type[Model]) -> list[Field[Any, Any]]:
    return list(model._meta.concrete_fields)  # noqa: SLF001 Django's name for it


def _instance(model: type[Model], values: dict[str, Any]) -> Model:
    """Return what `Model.from_db` returns, without looking up the defaults of seventy fields.

    Sends no `pre_init` and `post_init`: no model here has a receiver.
    """
    made = model.__new__(model)
    made._state = ModelState()  # noqa: SLF001 as Model.from_db does
    made._state.adding, made._state.db = False, connection.alias  # noqa: SLF001 likewise
    vars(made).update(values)
    return made


def new_instance(model: type[M], values: dict[str, Any]) -> M:
    """Return what `model(**values)` returns, without asking each field for its default: a tenth of the time for a job.

    Args:
        model: A model without receivers of `pre_init` and `post_init`.
        values: Values of columns by attribute, such as `batch_id`; no instance of a related model.

    Raises:
        TypeError: The model has no such column.
    """
    names, constants, computed = _defaults(model)
    if not values.keys() <= names:
        raise TypeError(f"{model.__name__} has no column {', '.join(sorted(values.keys() - names))}.")
    made = model.__new__(model)
    made._state = ModelState()  # noqa: SLF001 as Model.__init__ does
    columns = vars(made)
    columns.update(constants)
    for name, default in computed:
        columns[name] = values[name] if name in values else default()
    columns.update(values)
    return made


@cache
def _defaults(model: type[Model]) -> tuple[frozenset[str], dict[str, Any], list[tuple[str, Callable[[], Any]]]]:
    """Return the names of the columns, the constant defaults by name, and the functions that compute the others."""
    columns = [column for column in _columns(model) if not column.generated]
    computed = [column for column in columns if column.has_default() and callable(column.default)]
    constants = {column.attname: column.get_default() for column in columns if column not in computed}
    return (
        frozenset(column.attname for column in columns),
        constants,
        [(column.attname, column.default) for column in computed],
    )
