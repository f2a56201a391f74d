"""Lists: `sort`, `direction`, `per_page`, `page`, and the filters `name`, `search` and `archived`.

Unknown parameters are ignored. A page is an offset, and the header `X-Total-Count` has the number of all rows.
"""

import re
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from django.db.models import CharField, F, Lookup, Model, OrderBy, Q, QuerySet, Value
from django.db.models.functions import Cast
from rest_framework.request import Request

from orchestrator.protocols.bencher.errors import bad_request
from runtime_jobs.resource_names import validate_resource_name

M = TypeVar("M", bound=Model)

MAX_PER_PAGE = 255
DEFAULT_PER_PAGE = 8
MAX_PAGE = 2**32 - 1
_NUMBER = re.compile(r"[0-9]{1,10}")
_DIRECTIONS = ("asc", "desc")


@dataclass(frozen=True)
class SortKey:
    """A value of the parameter `sort`.

    Attributes:
        columns: The columns, the first of which decides.
        direction: The direction of a request that names none.
    """

    columns: tuple[str, ...]
    direction: str = "asc"


BY_NAME_OR_CREATION = {"name": SortKey(("name", "slug")), "created": SortKey(("created_at", "pk"), "desc")}


@dataclass(frozen=True)
class Page(Generic[M]):
    """A page of a list.

    Attributes:
        rows: The rows of the page.
        total: The number of rows of all pages.
    """

    rows: list[M]
    total: int


class CaseInsensitiveLike(Lookup):
    """`ILIKE` with the caller's own wildcards, which Django's `icontains` would escape."""

    lookup_name = "ilike"
    prepare_rhs = False

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, tuple[Any, ...]]:
        left, left_params = self.process_lhs(compiler, connection)
        right, right_params = self.process_rhs(compiler, connection)
        return f"{left} ILIKE {right}", (*left_params, *right_params)


def contains(column: str, text: str) -> CaseInsensitiveLike:
    """Return the condition that a column contains a text, in any case; `%` and `_` are wildcards."""
    return CaseInsensitiveLike(Cast(F(column), CharField()), Value(f"%{text}%"))


def search_resources(request: Request, rows: QuerySet[M], *, name: str = "name", slug: str = "slug") -> QuerySet[M]:
    """Return the rows that match the parameters `name` and `search`.

    Args:
        request: The request.
        rows: The rows.
        name: The column of the name.
        slug: The column of the slug.
    """
    if (text := query_name(request)) is not None:
        rows = rows.filter(**{name: text})
    if text := query_value(request, "search"):
        rows = rows.filter(Q(contains(name, text)) | Q(contains(slug, text)) | Q(contains("uuid", text)))
    return rows


def filter_resources(request: Request, rows: QuerySet[M]) -> QuerySet[M]:
    """Return the rows that match the parameters `name` and `search`. Archived ones need `archived=true`."""
    found = search_resources(request, rows)
    return found if query_boolean(request, "archived") else found.filter(archived_at__isnull=True)


def paginate(request: Request, rows: QuerySet[M], sorts: dict[str, SortKey] = BY_NAME_OR_CREATION) -> Page[M]:
    """Return the page of a list that the query parameters name.

    Args:
        request: The request.
        rows: All rows that match the filters.
        sorts: The values of `sort`, the default first.

    Raises:
        ApiError: 400; a parameter has an invalid value.
    """
    sort = sorts[query_choice(request, "sort", tuple(sorts)) or next(iter(sorts))]
    direction = query_choice(request, "direction", _DIRECTIONS) or sort.direction
    per_page = _query_number(request, "per_page", MAX_PER_PAGE, default=DEFAULT_PER_PAGE)
    page = max(1, _query_number(request, "page", MAX_PAGE, default=1))
    order = [OrderBy(F(column), descending=direction == "desc") for column in sort.columns]
    begin = (page - 1) * per_page
    return Page(list(rows.order_by(*order)[begin : begin + per_page]), rows.count())


def query_value(request: Request, name: str) -> str | None:
    """Return a query parameter, or None. Raises ApiError if it is given twice or contains NUL."""
    values = request.query_params.getlist(name)
    if len(values) > 1:
        raise bad_request(f"{name}: Given {len(values)} times; at most once is allowed.")
    if values and "\0" in values[0]:
        raise bad_request(f"{name}: Must not contain a NUL character.")
    return values[0] if values else None


def query_choice(request: Request, name: str, choices: tuple[str, ...]) -> str | None:
    """Return a query parameter that is one of the choices, or None. Raises ApiError for another value."""
    text = query_value(request, name)
    if text is not None and text not in choices:
        raise bad_request(f"{name}: Must be one of: {', '.join(choices)}.")
    return text


def query_boolean(request: Request, name: str, *, default: bool = False) -> bool:
    """Return a query parameter that is `true` or `false`. Raises ApiError for another value."""
    text = query_choice(request, name, ("true", "false"))
    return default if text is None else text == "true"


def query_name(request: Request) -> str | None:
    """Return the query parameter `name`, or None. Raises ApiError for a text that no resource may have as its name."""
    text = query_value(request, "name")
    if text is not None and (problem := validate_resource_name(text)):
        raise bad_request(f"name: {problem}")
    return text


def _query_number(request: Request, name: str, maximum: int, *, default: int) -> int:
    text = query_value(request, name)
    if text is None:
        return default
    if not _NUMBER.fullmatch(text) or int(text) > maximum:
        raise bad_request(f"{name}: Must be a whole number from 0 to {maximum}.")
    return int(text)
