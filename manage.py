#!/usr/bin/env python3
"""Runs a management command; starts the embedded PostgreSQL first if the command needs a database."""

import errno
import gc
import os
import sys
from pathlib import Path

# Workers run on machines without a database; the others only read code or print.
WITHOUT_DATABASE = {"runworker", "help", "version", "check", "spectacular", "collectstatic", "diffsettings", "workflow"}
# The statement timeouts of each command (config.databases); all other commands have those of a request.
DATABASE_ROLES = dict.fromkeys(["migrate", "seed", "up", "demo", "backup", "restore"], "migrate") | {
    "runclock": "clock",
    "audit": "clock",
    "prune": "clock",
    "runhousekeeping": "housekeeping",
    "rundispatcher": "dispatcher",
}
# Commands that wait for a database which does not answer. All others end with one line.
WAIT_FOR_DATABASE = {"runclock", "runhousekeeping", "rundispatcher", "serve"}
OVERVIEW = ([], ["help"], ["--help"], ["-h"])
VENV_PYTHON = Path(__file__).resolve().parent / ".venv" / "bin" / "python"


def needs_database(arguments: list[str]) -> bool:
    """Return whether this command line accesses the database."""
    if not arguments or {"-h", "--help", "--version"} & set(arguments):
        return False
    # `check --database default` compares the SQL functions.
    return arguments[0] not in WITHOUT_DATABASE or any(word.startswith("--database") for word in arguments)


def main() -> None:
    """Run the command of `sys.argv`, and report a missing environment, database or disk in one line."""
    arguments = sys.argv[1:]
    gc.disable()  # until `freeze_startup_objects`
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    os.environ.setdefault("DATABASE_ROLE", DATABASE_ROLES.get((arguments or ["help"])[0], "api"))
    try:
        import django  # noqa: PLC0415 - may be missing
        from django.core.management import execute_from_command_line  # noqa: PLC0415 - likewise
    except ImportError:
        run_in_virtual_environment()
    from config.gc_freeze import freeze_startup_objects  # noqa: PLC0415 - after the check of the environment

    if arguments in OVERVIEW:
        from config.command_overview import command_overview  # noqa: PLC0415 - loads every command of ours

        print(command_overview())  # noqa: T201 - the command's output
        return
    if needs_database(arguments):
        from config.paths import PathError  # noqa: PLC0415 - only where a database is needed
        from config.postgres.embedded import EmbeddedPostgresFailed, ensure_unless_given  # noqa: PLC0415 - likewise

        try:
            ensure_unless_given()
        except (EmbeddedPostgresFailed, PathError) as error:
            sys.exit(str(error))
        if arguments[0] not in WAIT_FOR_DATABASE:
            require_database()
    django.setup()
    freeze_startup_objects()
    execute_from_command_line(sys.argv)


def run_in_virtual_environment() -> None:
    """Replace this process by the same command under .venv's Python. Exits if .venv is missing or incomplete."""
    if not VENV_PYTHON.exists() or Path(sys.prefix).resolve() == VENV_PYTHON.parent.parent.resolve():
        sys.exit("The dependencies are not installed here: run `make setup`, then repeat the command.")
    os.execv(VENV_PYTHON, [str(VENV_PYTHON), *sys.argv])  # noqa: S606 - the same command, no shell


def require_database() -> None:
    """Exit with one line if the database cannot be reached: the connection pool would log each of its attempts."""
    import psycopg  # noqa: PLC0415 - only where a database is needed
    from django.db import connections  # noqa: PLC0415 - likewise

    from config.databases import libpq_keywords  # noqa: PLC0415 - likewise

    parameters = connections["default"].get_connection_params()
    known = {name: value for name, value in parameters.items() if name in libpq_keywords()}
    try:
        psycopg.connect(**known).close()
    except psycopg.Error as error:
        place = f"{known.get('host') or 'the default socket'}, database {known.get('dbname')}"
        reason = str(error).strip().splitlines()[0].removeprefix("connection failed: ")
        sys.exit(f"DATABASE_URL: the database cannot be reached at {place}: {reason}")


if __name__ == "__main__":
    try:
        from django.core.exceptions import ImproperlyConfigured
    except ImportError:
        ImproperlyConfigured = ()  # main() reports the missing package
    try:
        main()
    except ImproperlyConfigured as error:
        sys.exit(str(error))
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT, errno.EROFS}:
            raise
        sys.exit(f"cannot write {error.filename or 'a file'}: {error.strerror}; make room, or name another STATE_DIR")
