"""`manage.py seed`: a first organization, project, worker, login and repository, the same ones every time."""

import json
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from orchestrator.devtools import dev_server


class Command(BaseCommand):
    help = "Makes what a first job needs, the tables included, keeps what is there, and prints it."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="One JSON object instead of lines.")

    def handle(self, *_: Any, **options: Any) -> None:
        planted = asdict(dev_server.prepare())
        if options["json"]:
            self.stdout.write(json.dumps(planted))
            return
        for name, value in planted.items():
            self.stdout.write(f"{name:16}{value if value is not None else '(changed by hand)'}")
