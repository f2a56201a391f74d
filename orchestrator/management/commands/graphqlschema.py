"""Writes the GraphQL schema of `/api/graphql` in the schema definition language."""

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandParser


class Command(BaseCommand):
    """Prints the schema, or writes it to a file. It needs no database."""

    help = "Write the GraphQL schema of /api/graphql"
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--file", help="the file; default: standard output")

    def handle(self, *_: Any, file: str | None, **__: Any) -> None:
        from orchestrator.protocols.stella.graph.schema import schema  # noqa: PLC0415 building it takes half a second

        text = f"{schema.as_str()}\n"
        if file is None:
            self.stdout.write(text, ending="")
        else:
            Path(file).write_text(text)
