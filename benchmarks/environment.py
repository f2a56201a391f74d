"""Provides the one PostgreSQL of a run, with fsync on, and a database for the product and for each peer.

Nothing here imports a model, so that it can be loaded before the settings are.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch
from urllib.parse import quote

import psycopg

from config import paths
from config.postgres import embedded, supervisor

OURS = "bench"


@dataclass(frozen=True)
class Stage:
    """Where the run keeps its files. `url(name)` leads to a database of the run."""

    state: Path

    @property
    def logs(self) -> Path:
        folder = self.state / "logs"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    @property
    def socket(self) -> Path:
        return paths.socket_folder(paths.home(self.state))

    @property
    def programs(self) -> Path:
        """The folder of pgbench and psql."""
        home = paths.home(self.state)
        return supervisor.programs(home, paths.postgres_account(home).pw_uid)

    def url(self, name: str = OURS) -> str:
        return embedded.url(self.state, name)

    def superuser(self, name: str = OURS) -> psycopg.Connection:
        """For what the product's own role may not: statistics of others, creating and dropping databases."""
        return psycopg.connect(f"postgres://postgres@/{name}?host={quote(str(self.socket))}", autocommit=True)

    def fresh(self, name: str) -> str:
        """An empty database of that name, whatever was there before, and its URL."""
        with self.superuser("postgres") as connection:
            connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
            connection.execute(f'CREATE DATABASE "{name}" OWNER orchestrator')
        return self.url(name)

    def emptied(self) -> None:
        """Forget all rows of what went before, so that every scene begins with the same database."""
        from django.db import connection  # noqa: PLC0415 - after the settings

        kept = {"django_migrations", "django_content_type", "auth_permission"}
        tables = sorted(set(connection.introspection.django_table_names(only_existing=True)) - kept)
        with connection.cursor() as cursor:
            cursor.execute("SET orchestrator.maintenance = 'truncate'")  # its trigger refuses all else
            cursor.execute(f"TRUNCATE {', '.join(tables)} RESTART IDENTITY CASCADE")

    def deadlocks(self) -> int:
        """Since the database was made."""
        with self.superuser() as connection:
            found = connection.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = %s", [OURS]).fetchone()
        return int(found[0]) if found else 0


def opened() -> Stage:
    """Start the server, make our database, load Django on it and bring its tables up to date."""
    stage = Stage(paths.state_dir())
    embedded.ensure(stage.state)
    os.environ["DATABASE_URL"] = stage.fresh(OURS)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    # Of this process only: a million rows take longer than a request may, and its own requests need no access log.
    with patch.dict(os.environ, DATABASE_ROLE="migrate", LOG_LEVEL="WARNING"):
        _load_django()
    return stage


def _load_django() -> None:
    import django  # noqa: PLC0415 - after the environment
    from django.core.management import call_command  # noqa: PLC0415 - likewise

    django.setup()
    call_command("migrate", verbosity=0)
