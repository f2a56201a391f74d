"""`manage.py prune`: deletes or counts the rows that are older than the retention settings."""

from typing import Any

from django.core.management.base import CommandParser

from orchestrator.maintenance.pruning import PERIODS, count_everything, delete_everything
from orchestrator.management.base import ServerCommand


class Command(ServerCommand):
    """Deletes old rows."""

    help = "Deletes rows older than the retention settings. The scheduler does the same a little at a time."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--dry-run", action="store_true", help="Count the rows; delete nothing.")

    def handle(self, *_: Any, **options: Any) -> None:
        dry_run = options["dry_run"]
        rows = count_everything() if dry_run else delete_everything()
        self.stdout.write(f"{'table':<30} {'kept':<18} {'to delete' if dry_run else 'deleted':>12}")
        for period in PERIODS:
            self.stdout.write(f"{period.table:<30} {period!s:<18} {rows.get(period.table, 0):>12,}")
        total = sum(rows.values())
        self.stdout.write(f"{total:,} rows would be deleted." if dry_run else f"{total:,} rows deleted.")
