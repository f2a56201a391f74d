"""The questions that reasons ask of the database, as SQL in files."""

from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from django.db import connection

SQL = Path(__file__).parent / "sql"
R = TypeVar("R", bound=NamedTuple)


@cache
def _text(name: str) -> str:
    return (SQL / f"{name}.sql").read_text()


def fetch(question: str, shape: type[R], **values: Any) -> list[R]:
    """The rows of `sql/<question>.sql`, each as this shape."""
    with connection.cursor() as cursor:
        cursor.execute(_text(question), values)
        return [shape(*row) for row in cursor.fetchall()]
