"""The SQL functions of this release, which `manage.py migrate` creates, and a comparison with those of a database.

`migrate` creates them when all migrations are applied, and replaces those that differ. No other code writes them.

Processes of the former release call them, too, from `migrate` until they are stopped. So from release 0.1.0 on:

- A function may change in its file if each call of the former release still gets what it expects: the name, the
  arguments and the columns of the result stay, and what the former release does not send keeps its value.
- Otherwise the changed function is a new one, whose name ends with a version: `claim_v2` in `claim_v2.sql`. The release
  after the one that stopped calling `claim` deletes its file, and a migration drops it.
- A release that changes a function has a migration, an empty one if it needs no other. By it the former release knows
  that the functions are newer than its files, and its own `migrate` is refused.
"""

import hashlib
import re
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from django.apps import apps
from django.db import connection, transaction
from django.db.models import Model

from runtime_jobs import written_columns
from runtime_jobs.applied_migrations import unknown_migrations

DIRECTORY = Path(__file__).parent / "sql"

CACHE_SECONDS = 60
_verified_at: float | None = None

_DEFINITION = re.compile(
    r"^CREATE OR REPLACE FUNCTION (?P<name>\w+)\((?P<header>.*?)AS \$\$(?P<body>.*?)\$\$", re.DOTALL | re.MULTILINE
)
_COLUMNS = re.compile(r"\{\{(?P<kind>inserted|values|changes|record|rows)\((?P<names>.*?)\)\}\}")
_SETTING = re.compile(r"\bSET (\w+) = (\w+)")
_INSTALLED = """
SELECT p.proname, md5(p.prosrc), coalesce(array_to_string(p.proconfig, ','), '')
  FROM pg_proc p WHERE p.proname = ANY (%s) AND pg_function_is_visible(p.oid)"""


@dataclass(frozen=True)
class SqlFunction:
    """Identify one function by its name, the MD5 of its body and its settings."""

    name: str
    body_md5: str
    settings: str


@cache
def read_sql() -> str:
    """Return the statements that create the functions, with the columns of the models in their places."""
    text = "\n".join(file.read_text() for file in sorted(DIRECTORY.glob("*.sql")))
    return _COLUMNS.sub(lambda found: _columns(found["kind"], *found["names"].split(", ")), text)


def _columns(kind: str, table: str, record: str = "", sent: str = "") -> str:
    if kind == "rows":
        return written_columns.row_inserts(table, connection)
    model = _model_of(table)
    if kind == "inserted":
        return written_columns.column_names(model)
    if kind == "values":
        return written_columns.column_values(model, record, connection)
    if kind == "changes":
        return written_columns.column_changes(model, record, sent)
    return written_columns.column_types(model, connection)


def _model_of(table: str) -> type[Model]:
    return next(model for model in apps.get_models() if model._meta.db_table == table)  # noqa: SLF001 Django's name for it


def install_functions() -> None:
    """Create the functions that the database lacks or has with another body."""
    if function_mismatches():
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(read_sql())


@cache
def expected_functions() -> frozenset[SqlFunction]:
    """Return the functions of this release."""
    return frozenset(
        SqlFunction(
            found["name"],
            hashlib.md5(found["body"].encode(), usedforsecurity=False).hexdigest(),
            ",".join(f"{name}={value}" for name, value in _SETTING.findall(found["header"])),
        )
        for found in _DEFINITION.finditer(read_sql())
    )


def function_mismatches() -> list[str]:
    """Return the names of expected functions that the database lacks, has with another body, or has more than once."""
    expected = expected_functions()
    names = sorted(function.name for function in expected)
    with connection.cursor() as cursor:
        cursor.execute(_INSTALLED, [names])
        rows = [SqlFunction(*row) for row in cursor.fetchall()]
    installed = {function.name: function for function in rows}
    overloaded = {name for name in names if sum(row.name == name for row in rows) > 1}
    return sorted(overloaded | {function.name for function in expected if installed.get(function.name) != function})


def are_functions_current() -> bool:
    """Return whether the database has the functions that this release calls. A positive answer counts for a minute.

    A database of a newer release has that release's functions, which serve the calls of this one.
    """
    global _verified_at  # noqa: PLW0603 one cache per process; a race only compares twice
    now = time.monotonic()
    if _verified_at is not None and now - _verified_at < CACHE_SECONDS:
        return True
    is_current = not function_mismatches() or bool(unknown_migrations(connection))
    _verified_at = now if is_current else None
    return is_current


def clear_cache() -> None:
    """Let the next call of `are_functions_current` ask the database."""
    global _verified_at  # noqa: PLW0603 as above
    _verified_at = None
