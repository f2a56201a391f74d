"""`manage.py rotateidentitykey`: replaces the key that signs identity tokens."""

from typing import Any

from django.core.management.base import CommandParser

from orchestrator.core.cause import Cause
from orchestrator.identity import keys
from orchestrator.management.base import ServerCommand
from runtime_jobs.events import Actor


class Command(ServerCommand):
    """Replaces the key of identity tokens."""

    help = "Creates a key for identity tokens of workflow jobs. It is published a day before it signs."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--reason", required=True, help="stored in the audit log")
        parser.add_argument(
            "--urgent",
            action="store_true",
            help="the current key is known to others: withdraw all keys, and sign with the new one at once",
        )

    def handle(self, *_: Any, reason: str, urgent: bool, **__: Any) -> None:
        actor = Actor("operator", "manage.py")
        key = keys.rotate_identity_key(cause=Cause(actor, reason), is_urgent=urgent)
        if key is not None:
            self.stdout.write(f"{key.kid} signs from {key.signs_from:%Y-%m-%d %H:%M:%S} UTC.")
