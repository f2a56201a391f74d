#!/usr/bin/env python
"""Runs a management command, with the embedded PostgreSQL up for those that need a database."""

import os
import sys

# Workers run on machines without a database; the others only read code or print.
WITHOUT_DATABASE = {"runworker", "help", "version", "check", "spectacular", "collectstatic", "diffsettings"}
# Whose timeouts a command's statements get (config.databases); all others are bound like a request.
DATABASE_ROLES = dict.fromkeys(["migrate", "seed", "up", "demo"], "migrate") | {
    "runclock": "clock",
    "audit": "clock",
    "prune": "clock",
}


def needs_database(arguments: list[str]) -> bool:
    """Say whether this command line will talk to the database."""
    asks_for_help = not arguments or bool({"-h", "--help", "--version"} & set(arguments))
    return not asks_for_help and arguments[0] not in WITHOUT_DATABASE


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    os.environ.setdefault("DATABASE_ROLE", DATABASE_ROLES.get((sys.argv[1:] or ["help"])[0], "api"))
    try:
        from django.core.management import execute_from_command_line  # noqa: PLC0415 - its absence is told in one line
    except ImportError:
        sys.exit("Django is not installed here: run `make setup`, then use .venv/bin/python manage.py")
    if needs_database(sys.argv[1:]):
        from config.embedded_postgres import EmbeddedPostgresFailed, ensure_unless_given  # noqa: PLC0415 - only then
        from config.places import PlaceRefused  # noqa: PLC0415 - only then

        try:
            ensure_unless_given()
        except (EmbeddedPostgresFailed, PlaceRefused) as error:
            sys.exit(str(error))
    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
