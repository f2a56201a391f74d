"""`manage.py collectoutputs`: deletes stored outputs that no job names."""

from typing import Any

from orchestrator.management.base import ServerCommand
from orchestrator.results.outputs import delete_orphans


class Command(ServerCommand):
    """Deletes orphaned outputs."""

    help = "Deletes the stored outputs that no job names, as the scheduler process does once a day."

    def handle(self, *_: Any, **__: Any) -> None:
        self.stdout.write(f"{delete_orphans():,} outputs deleted.")
