"""What lists can be narrowed by. Every filter names its own `parameters`; a page takes no others."""

from collections.abc import Iterator
from datetime import UTC, datetime, time, timedelta
from typing import Any, ClassVar

from django.contrib.admin import ListFilter
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.utils.dateparse import parse_date
from unfold.contrib.filters.admin import DropdownFilter, MultipleDropdownFilter, TextFilter
from unfold.contrib.filters.forms import RangeDateForm


class Exactly(TextFilter):
    """A value typed in full: an index finds it, however many tenants there are."""

    parameters: ClassVar[tuple[str, ...]]

    def queryset(self, _request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = without_nul(self.value())
        return queryset.filter(**{self.parameter_name: value}) if value else queryset


def without_nul(value: str | None) -> str:
    """PostgreSQL's text takes any character but one."""
    return (value or "").strip().replace("\0", "")


class OneOf(DropdownFilter):
    """One of a few values of the column of the same name. Any other value narrows nothing."""

    parameters: ClassVar[tuple[str, ...]]
    values: ClassVar[list[tuple[str, str]]] = []

    def lookups(self, _request: HttpRequest, _model_admin: Any) -> list[tuple[str, str]]:
        return self.values

    def has_output(self) -> bool:
        return True

    def queryset(self, _request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        known = self.value() in dict(self.lookup_choices)
        return queryset.filter(**{self.parameter_name: self.value()}) if known else queryset


class AnyOf(MultipleDropdownFilter):
    """One or more of a few values of the column of the same name. Any other value narrows nothing."""

    parameters: ClassVar[tuple[str, ...]]
    values: ClassVar[list[tuple[str, str]]] = []

    def lookups(self, _request: HttpRequest, _model_admin: Any) -> list[tuple[str, str]]:
        return self.values

    def has_output(self) -> bool:
        return True

    def queryset(self, _request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        known = dict(self.lookup_choices)
        chosen = [value for value in self.used_parameters.get(self.parameter_name, []) if value in known]
        return queryset.filter(**{f"{self.parameter_name}__in": chosen}) if chosen else queryset


class Days(ListFilter):
    """Between two days, both included, in UTC."""

    template = "unfold/filters/filters_date_range.html"
    form_class = RangeDateForm
    column: ClassVar[str]
    parameters: ClassVar[tuple[str, ...]]

    def __init__(self, request: HttpRequest, params: dict[str, Any], model: type[Model], model_admin: Any) -> None:
        super().__init__(request, params, model, model_admin)
        self.request = request
        for name in self.parameters:
            if name in params:
                self.used_parameters[name] = params.pop(name)[-1]

    def has_output(self) -> bool:
        return True

    def expected_parameters(self) -> list[str | None]:
        return list(self.parameters)

    def choices(self, _changelist: Any) -> Iterator[dict[str, Any]]:
        form = self.form_class(name=self.column, data=dict(self.used_parameters))
        yield {"request": self.request, "parameter_name": self.column, "form": form}

    def queryset(self, _request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        first, last = self.parameters
        start, end = self._midnight(first, 0), self._midnight(last, 1)
        if start:
            queryset = queryset.filter(**{f"{self.column}__gte": start})
        return queryset.filter(**{f"{self.column}__lt": end}) if end else queryset

    def _midnight(self, name: str, days_on: int) -> datetime | None:
        try:
            day = parse_date(str(self.used_parameters.get(name, "")).strip())
            return datetime.combine(day + timedelta(days=days_on), time.min, UTC) if day else None
        except (ValueError, OverflowError):  # well written, but no such day, or none after it
            return None


def days(column: str, title: str) -> type[Days]:
    names = (f"{column}_from", f"{column}_to")
    return type("Days", (Days,), {"column": column, "title": title, "parameters": names})


def exactly(column: str, title: str) -> type[Exactly]:
    return type("Exactly", (Exactly,), _named(column, title))


def one_of(column: str, title: str, values: list[tuple[str, str]]) -> type[OneOf]:
    return type("OneOf", (OneOf,), _named(column, title) | {"values": values})


def any_of(column: str, title: str, values: list[tuple[str, str]]) -> type[AnyOf]:
    return type("AnyOf", (AnyOf,), _named(column, title) | {"values": values})


def _named(column: str, title: str) -> dict[str, Any]:
    return {"parameter_name": column, "title": title, "parameters": (column,)}
