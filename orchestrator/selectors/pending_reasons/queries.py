"""Runs the SQL queries of the pending reasons."""

from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from django.db import connection

SQL = Path(__file__).parent / "sql"
R = TypeVar("R", bound=NamedTuple)


@cache
def _text(name: str) -> str:
    return (SQL / f"{name}.sql").read_text()


def fetch(query: str, row_type: type[R], **values: Any) -> list[R]:
    """Return the rows of the query `sql/<query>.sql`.

    Args:
        query: The name of the file without its suffix.
        row_type: The type of a row, with the columns of the query as its fields.
        values: The named parameters of the query.
    """
    with connection.cursor() as cursor:
        cursor.execute(_text(query), values)
        return [row_type(*row) for row in cursor.fetchall()]
