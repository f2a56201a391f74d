"""What is asked at every call, as SQL that is composed once: the ORM composes its own anew each time, which takes it
longer than PostgreSQL takes to answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

from django.db import connection
from django.db.models import Field, Model
from django.db.models.base import ModelState

M = TypeVar("M", bound=Model)
Convert = Callable[[Any, None, Any], Any]


@dataclass(frozen=True)
class RowMapper:
    """The columns of one table within a row, its key first: where they begin, and which become something else."""

    model: type[Model]
    names: list[str]
    begin: int
    converted: list[tuple[int, Convert]]

    def made(self, row: list[Any]) -> Any:
        """None where an outer join found nothing."""
        if row[self.begin] is None:
            return None
        for place, convert in self.converted:
            row[place] = convert(row[place], None, connection)
        return _instance(self.model, dict(zip(self.names, row[self.begin :], strict=False)))


class PreparedQuery(Generic[M]):
    """Rows of a model. What follows FROM is written: there the table is `t`, and what is `joined` has the name of the
    attribute that it becomes. `computed`: SQL by the name that its value has as an attribute.
    `without`: attributes that are not read; one that is asked for all the same is a query of its own."""

    def __init__(
        self,
        model: type[M],
        tail: str,
        *,
        joined: Mapping[str, type[Model]] | None = None,
        computed: Mapping[str, str] | None = None,
        without: Sequence[str] = (),
    ) -> None:
        self.model, self.tail, self.without = model, tail, without
        self.joined, self.computed = dict(joined or {}), dict(computed or {})

    def all(self, *values: Any) -> list[M]:
        with connection.cursor() as cursor:
            cursor.execute(self._sql, values)
            return [self._made(list(row)) for row in cursor.fetchall()]

    def first(self, *values: Any) -> M | None:
        """For what is there once at most."""
        return next(iter(self.all(*values)), None)

    def _made(self, row: list[Any]) -> M:
        first, *others = self._parts
        made: M = first.made(row)
        for attribute, part in zip(self.joined, others, strict=True):
            kept = made._state.fields_cache if attribute in self._pointing else vars(made)  # noqa: SLF001 as select_related
            kept[attribute] = part.made(row)
        vars(made).update(zip(self.computed, row[len(row) - len(self.computed) :], strict=True))
        return made

    @cached_property
    def _pointing(self) -> set[str]:
        return {field.name for field in _concrete(self.model) if field.is_relation}

    @cached_property
    def _fields(self) -> list[list[Field[Any, Any]]]:
        own = [field for field in _concrete(self.model) if field.attname not in self.without]
        return [own, *(_concrete(model) for model in self.joined.values())]

    @cached_property
    def _parts(self) -> list[RowMapper]:
        parts, begin = [], 0
        models: list[type[Model]] = [self.model, *self.joined.values()]
        for model, fields in zip(models, self._fields, strict=True):
            converted = [
                (place, convert)
                for place, field in enumerate(fields, start=begin)
                for convert in field.get_db_converters(connection)
            ]
            parts.append(RowMapper(model, [field.attname for field in fields], begin, converted))
            begin += len(fields)
        return parts

    @cached_property
    def _sql(self) -> str:
        tables = zip(["t", *self.joined], self._fields, strict=True)
        columns = [f'{table}."{field.column}"' for table, fields in tables for field in fields]
        columns += [f"{sql} AS {name}" for name, sql in self.computed.items()]
        table = self.model._meta.db_table  # noqa: SLF001 Django's name for it
        return f'SELECT {", ".join(columns)} FROM "{table}" t {self.tail}'  # noqa: S608 our own names


def _instance(model: type[M], values: dict[str, Any]) -> M:
    """What `Model.from_db` makes, without asking each of seventy fields for its default. None of our models listens to
    its own making."""
    made = model.__new__(model)
    made._state = ModelState()  # noqa: SLF001 as Model.from_db does
    made._state.adding, made._state.db = False, connection.alias  # noqa: SLF001 likewise
    vars(made).update(values)
    return made


def _concrete(model: type[Model]) -> list[Field[Any, Any]]:
    return list(model._meta.concrete_fields)  # noqa: SLF001 Django's name for it
