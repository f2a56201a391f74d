"""`manage.py reseal`: seals stored values again with the current root key."""

from typing import Any

from django.core.management.base import CommandError

from orchestrator.maintenance.resealing import SEALED_COLUMNS, reseal
from orchestrator.management.base import ServerCommand


class Command(ServerCommand):
    """Seals stored values again."""

    help = (
        "Seals secrets and other sealed values again with ACTIONS_ROOT_KEY, while everything runs. Start all processes "
        "with the new key first, and with the former one in ACTIONS_ROOT_KEYS_OLD. Tokens of jobs are signed for 15 "
        "minutes: keep the former key for so long after this command."
    )

    def handle(self, *_: Any, **__: Any) -> None:
        unreadable = 0
        for result in map(reseal, SEALED_COLUMNS):
            self.stdout.write(f"{result.column.name}: {result.changed} sealed again")
            if result.unreadable:
                unreadable += len(result.unreadable)
                some = ", ".join(map(str, result.unreadable[:10]))
                self.stderr.write(f"{result.column.name}: {len(result.unreadable)} cannot be opened (rows {some})")
        if unreadable:
            text = "Add their root keys to ACTIONS_ROOT_KEYS_OLD and repeat the command, or set the values again."
            raise CommandError(f"{unreadable} values cannot be opened. {text}")
