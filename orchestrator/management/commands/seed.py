"""`manage.py seed`: creates a first organization, project, worker, login and repository, and prints them."""

import json
from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandParser

from orchestrator.devtools import dev_server
from orchestrator.management.base import ServerCommand


class Command(ServerCommand):
    """Creates the first tenant."""

    help = "Creates and prints what a first job needs: tables, tenant, tokens, login. Keeps what exists."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="Print one JSON object instead of lines.")

    def handle(self, *_: Any, **options: Any) -> None:
        seed_data = asdict(dev_server.prepare())
        if options["json"]:
            self.stdout.write(json.dumps(seed_data))
            return
        for name, value in seed_data.items():
            self.stdout.write(f"{name:16}{value if value is not None else '(changed by hand)'}")
