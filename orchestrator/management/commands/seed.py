"""`manage.py seed`: a first organization, project, worker, login and repository, the same ones every time."""

import json
from dataclasses import asdict
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandParser

from orchestrator import seed
from orchestrator.demo import repository


class Command(BaseCommand):
    help = "Makes what a first job needs, the tables included, keeps what is there, and prints it."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="One JSON object instead of lines.")

    def handle(self, *_: Any, **options: Any) -> None:
        call_command("migrate", verbosity=0)
        planted = asdict(
            seed.plant(
                file=settings.STATE_DIR / "seed.json",
                pool=settings.DEFAULT_POOL,
                repository=repository.build(settings.DEMO_REPOSITORY),
                repo_url=settings.DEMO_REPOSITORY_URL,
            )
        )
        if options["json"]:
            self.stdout.write(json.dumps(planted))
            return
        for name, value in planted.items():
            self.stdout.write(f"{name:16}{value if value is not None else '(changed by hand)'}")
