"""`manage.py workflow check`: reads workflow files and prints what is wrong in them."""

import sys
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from runtime_jobs.workflows.parsing import parse_workflow
from runtime_jobs.workflows.yaml_nodes import MAX_BYTES

UNREADABLE, WRONG = 1, 2


class Command(BaseCommand):
    """Checks workflow files without a database."""

    requires_system_checks: list[str] = []
    help = "Checks workflow files, and prints FILE:LINE with each error or warning."

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        check = actions.add_parser(
            "check", help="Exit status: 0 without errors, 1 if a file cannot be read, 2 if one has errors."
        )
        check.add_argument("files", nargs="+", metavar="FILE", help="A workflow file.")

    def handle(self, *_: Any, **options: Any) -> None:
        status = max(self._check(name) for name in options["files"])
        if status:
            sys.exit(status)

    def _check(self, name: str) -> int:
        try:
            with Path(name).open("rb") as file:
                content = file.read(MAX_BYTES + 1)
        except OSError as error:
            self.stderr.write(f"{name}: {error.strerror}.")
            return UNREADABLE
        parsed = parse_workflow(content)
        for diagnostic in parsed.diagnostics:
            self.stdout.write(f"{name}:{diagnostic}")
        return 0 if parsed.workflow is not None else WRONG
