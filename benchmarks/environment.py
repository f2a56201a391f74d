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
WITHOUT_TIMEOUTS = "-c statement_timeout=0 -c lock_timeout=0 -c idle_in_transaction_session_timeout=0"


@dataclass(frozen=True)
class Cluster:
    """Represents the PostgreSQL of a run, and the folder in which the run keeps its files.

    `url(name)` is the address of one of its databases.
    """

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
        """Delete all rows of the scenario before, so that every scenario begins with the same database."""
        from django.db import connection  # noqa: PLC0415 - after the settings

        kept = {"django_migrations", "django_content_type", "auth_permission"}
        tables = sorted(set(connection.introspection.django_table_names(only_existing=True)) - kept)
        with connection.cursor() as cursor:
            cursor.execute("SET orchestrator.maintenance = 'truncate'")  # its trigger refuses all else
            cursor.execute(f"TRUNCATE {', '.join(tables)} RESTART IDENTITY CASCADE")

    def deadlocks(self) -> int:
        """Since the database was made, or since PostgreSQL last recovered from a crash."""
        with self.superuser() as connection:
            found = connection.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = %s", [OURS]).fetchone()
        return int(found[0]) if found else 0


def opened() -> Cluster:
    """Start the server, create our database, load Django on it and bring its tables up to date."""
    cluster = Cluster(paths.state_dir())
    embedded.ensure(cluster.state)
    os.environ["DATABASE_URL"] = cluster.fresh(OURS)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    with patch.dict(os.environ, LOG_LEVEL="WARNING"):  # its own requests need no access log
        _load_django()
    return cluster


def _load_django() -> None:
    import django  # noqa: PLC0415 - after the environment
    from django.core.management import call_command  # noqa: PLC0415 - likewise
    from django.db import connection  # noqa: PLC0415 - likewise

    django.setup()
    # Sessions of this process have the parameters of the API's, except that a million rows take longer than a request.
    connection.settings_dict["OPTIONS"]["options"] += f" {WITHOUT_TIMEOUTS}"
    call_command("migrate", verbosity=0)
