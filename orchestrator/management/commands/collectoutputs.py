"""`manage.py collectoutputs`: deletes stored outputs of jobs that retention has deleted."""

from typing import Any

from django.core.management.base import BaseCommand

from orchestrator.results.outputs import delete_orphans


class Command(BaseCommand):
    """Deletes orphaned outputs."""

    help = "Deletes the stored outputs of jobs that retention has deleted. Run it daily beside a server with runners."

    def handle(self, *_: Any, **__: Any) -> None:
        self.stdout.write(f"{delete_orphans():,} outputs deleted.")
