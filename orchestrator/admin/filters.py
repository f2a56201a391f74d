"""Filters of the lists. A list accepts only the query parameters that its filters name."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, time, timedelta
from typing import Any, ClassVar

from django.contrib.admin import ListFilter
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.utils.dateparse import parse_date
from unfold.contrib.filters.admin import DropdownFilter, MultipleDropdownFilter, TextFilter
from unfold.contrib.filters.forms import RangeDateForm

from runtime_jobs.states import TRIGGER_KINDS

Options = Iterable[tuple[str, Any]]  # values with their labels
YES_NO = [("True", "Yes"), ("False", "No")]


def parameters_of(list_filter: Any) -> tuple[str, ...]:
    """Return the query parameters that a filter class reads."""
    if issubclass(list_filter, DateRangeFilter):
        return (f"{list_filter.column}_from", f"{list_filter.column}_to")
    return (list_filter.parameter_name,)


def without_nul(value: str | None) -> str:
    """Strip blanks and NUL, the one character that PostgreSQL's text type refuses."""
    return (value or "").strip().replace("\0", "")


class ExactFilter(TextFilter):
    """Narrows a list to rows whose column equals the typed value, so an index finds them among any number of rows."""

    def queryset(self, _request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = without_nul(self.value())
        return queryset.filter(**{self.parameter_name: value}) if value else queryset


class ChoiceFilter(DropdownFilter):
    """Narrows a list to one of a few values of the column of the same name. Ignores unknown values."""

    options: ClassVar[list[tuple[str, str]]] = []

    def lookups(self, _request: HttpRequest, _model_admin: Any) -> list[tuple[str, str]]:
        return self.options

    def has_output(self) -> bool:
        return True

    def queryset(self, _request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        known = self.value() in dict(self.lookup_choices)
        return queryset.filter(**{self.parameter_name: self.value()}) if known else queryset


class MultipleChoiceFilter(MultipleDropdownFilter):
    """Narrows a list to one or more of a few values of the column of the same name. Ignores unknown values."""

    options: ClassVar[list[tuple[str, str]]] = []

    def lookups(self, _request: HttpRequest, _model_admin: Any) -> list[tuple[str, str]]:
        return self.options

    def has_output(self) -> bool:
        return True

    @property
    def chosen(self) -> list[str]:
        """Return the chosen values that the filter offers."""
        known = dict(self.lookup_choices)
        return [value for value in self.used_parameters.get(self.parameter_name, []) if value in known]

    def queryset(self, _request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(**{f"{self.parameter_name}__in": self.chosen}) if self.chosen else queryset


def exact_filter(title: str, column: str) -> type[ExactFilter]:
    """Return an `ExactFilter` of a column."""
    return type("ColumnFilter", (ExactFilter,), {"title": title, "parameter_name": column})


def choice_filter(title: str, column: str, options: Options) -> type[ChoiceFilter]:
    """Return a `ChoiceFilter` of a column."""
    return type("ColumnFilter", (ChoiceFilter,), {"title": title, "parameter_name": column, "options": [*options]})


def multiple_choice_filter(title: str, column: str, options: Options) -> type[MultipleChoiceFilter]:
    """Return a `MultipleChoiceFilter` of a column."""
    members = {"title": title, "parameter_name": column, "options": [*options]}
    return type("ColumnFilter", (MultipleChoiceFilter,), members)


class DateRangeFilter(ListFilter):
    """Narrows a list to the days between two dates, both included, in UTC."""

    template = "unfold/filters/filters_date_range.html"
    form_class = RangeDateForm
    column: ClassVar[str]

    def __init__(self, request: HttpRequest, params: dict[str, Any], model: type[Model], model_admin: Any) -> None:
        super().__init__(request, params, model, model_admin)
        self.request = request
        for name in parameters_of(type(self)):
            if name in params:
                self.used_parameters[name] = params.pop(name)[-1]

    def has_output(self) -> bool:
        return True

    def expected_parameters(self) -> list[str | None]:
        return list(parameters_of(type(self)))

    def choices(self, _changelist: Any) -> Iterator[dict[str, Any]]:
        form = self.form_class(name=self.column, data=dict(self.used_parameters))
        yield {"request": self.request, "parameter_name": self.column, "form": form}

    def queryset(self, _request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        first, last = parameters_of(type(self))
        start, end = self._midnight(first, 0), self._midnight(last, 1)
        if start:
            queryset = queryset.filter(**{f"{self.column}__gte": start})
        return queryset.filter(**{f"{self.column}__lt": end}) if end else queryset

    def _midnight(self, name: str, days_later: int) -> datetime | None:
        try:
            day = parse_date(str(self.used_parameters.get(name, "")).strip())
            return datetime.combine(day + timedelta(days=days_later), time.min, UTC) if day else None
        except (ValueError, OverflowError):  # well-formed, but no such day, or the last day of the calendar
            return None


# --- filters that several lists share ---------------------------------------------------------------------------------


OrganizationFilter = exact_filter("organization", "org_slug")
RelatedOrganizationFilter = exact_filter("organization", "organization__slug")
ProjectFilter = exact_filter("project", "project_slug")
JobTypeFilter = exact_filter("job type", "job_type")
PoolSlugFilter = exact_filter("pool", "pool")
TriggerFilter = choice_filter(
    "trigger", "trigger_kind", [(kind, kind.replace("_", " ").capitalize()) for kind in TRIGGER_KINDS]
)


class CreatedFilter(DateRangeFilter):
    """Filters by the day of creation."""

    title = "created"
    column = "created_at"


class ReceivedFilter(DateRangeFilter):
    """Filters by the day of receipt."""

    title = "received"
    column = "received_at"
