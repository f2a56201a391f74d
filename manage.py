#!/usr/bin/env python
"""Runs a management command, with the embedded PostgreSQL up for those that need a database."""

import errno
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
        from config.paths import PathError  # noqa: PLC0415 - only then
        from config.postgres.embedded import EmbeddedPostgresFailed, ensure_unless_given  # noqa: PLC0415 - only then

        try:
            ensure_unless_given()
        except (EmbeddedPostgresFailed, PathError) as error:
            sys.exit(str(error))
    if os.environ["DATABASE_ROLE"] == "migrate" and needs_database(sys.argv[1:]):
        require_database()
    execute_from_command_line(sys.argv)


def require_database() -> None:
    """Exit with one line if the database cannot be reached: the pool of connections would log each of its tries."""
    import psycopg  # noqa: PLC0415 - only where a database is needed
    from django.db import connections  # noqa: PLC0415 - likewise

    parameters = connections["default"].get_connection_params()
    known = {name: parameters[name] for name in ("host", "port", "dbname", "user", "password") if parameters.get(name)}
    try:
        psycopg.connect(**known, connect_timeout=3).close()
    except psycopg.Error as error:
        place = f"{known.get('host') or 'the default socket'}, database {known.get('dbname')}"
        reason = str(error).strip().splitlines()[0].removeprefix("connection failed: ")
        sys.exit(f"DATABASE_URL: the database cannot be reached at {place}: {reason}")


if __name__ == "__main__":
    try:
        from django.core.exceptions import ImproperlyConfigured
    except ImportError:
        ImproperlyConfigured = ()  # main() says what is missing
    try:
        main()
    except ImproperlyConfigured as error:
        sys.exit(str(error))
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT, errno.EROFS}:
            raise
        sys.exit(f"cannot write {error.filename or 'a file'}: {error.strerror}; make room, or name another STATE_DIR")
