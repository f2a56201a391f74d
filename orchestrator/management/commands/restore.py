"""`manage.py restore`: fills an empty database from a dump of `manage.py backup`."""

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connection

from orchestrator.evidence.positions import read_everything_again
from orchestrator.management import client_programs
from orchestrator.webhooks.dispatch_position import adopt_restored_events


class Command(BaseCommand):
    """Restores a dump into an empty database."""

    help = "Restores a dump of `backup` into an empty database, in one transaction."
    requires_system_checks: list[str] = []  # some of them query tables that do not exist yet

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path, metavar="FILE")

    def handle(self, *_: Any, **options: Any) -> None:
        file: Path = options["file"]
        if not file.is_file():
            raise CommandError(f"{file} is not a file.")
        tables = len(connection.introspection.table_names())
        if tables:
            name = connection.settings_dict["NAME"]
            raise CommandError(
                f"The database {name} has {tables} tables already: restore into an empty one, "
                "which another STATE_DIR or DATABASE_URL names."
            )
        try:
            client_programs.run("pg_restore", "--exit-on-error", "--single-transaction", "--no-owner", str(file))
        except client_programs.ClientProgramError as error:
            raise CommandError(str(error)) from None
        adopt_restored_events()
        read_everything_again()
        tables = len(connection.introspection.table_names())
        self.stdout.write(f"{tables} tables restored. Next: manage.py migrate, then manage.py audit --chains.")
