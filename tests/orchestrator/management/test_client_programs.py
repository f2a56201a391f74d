"""`backup` and `restore` choose programs that fit the server, and connect as the server itself does."""

import ast
import sys
from pathlib import Path

import pytest
from django.core.management.base import CommandError

from orchestrator.management import client_programs
from orchestrator.management.commands.backup import Command


@pytest.fixture
def program(tmp_path):
    def made(name: str, script: str) -> Path:
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    return made


def connecting_with(monkeypatch, **parameters):
    monkeypatch.setattr(
        client_programs.connection, "get_connection_params", lambda: {"host": "h", "dbname": "d"} | parameters
    )


@pytest.mark.parametrize(("server", "chosen"), [(15, "15"), (16, "16"), (17, "18"), (18, "18"), (19, None)])
def test_the_oldest_program_that_is_not_older_than_the_server_is_used(program, server, chosen):
    """pg_restore of PostgreSQL 18 sets transaction_timeout first, which a server of version 15 or 16 does not have."""
    found = [program(version, f"echo 'pg_restore (PostgreSQL) {version}.4'") for version in ("18", "16", "15")]
    usable = client_programs.oldest_usable([*found, "no such program"], server)
    assert (Path(usable).name if usable else None) == chosen


@pytest.mark.parametrize(("parameters", "password"), [({}, "of the operator"), ({"password": "sesame"}, "sesame")])
def test_the_password_of_the_settings_or_the_operator_is_in_the_environment(
    program, tmp_path, monkeypatch, parameters, password
):
    """Without one in DATABASE_URL the server connects with PGPASSWORD, and so must the programs."""
    fake = program("pg_dump", f'echo "$PGPASSWORD" >"{tmp_path}/password"; echo "$@" >"{tmp_path}/arguments"')
    monkeypatch.setenv("PGPASSWORD", "of the operator")
    monkeypatch.setattr(client_programs, "_program", lambda _name: fake)
    connecting_with(monkeypatch, **parameters)
    client_programs.run("pg_dump", "--format=custom")
    assert (tmp_path / "password").read_text() == f"{password}\n"
    assert "sesame" not in (tmp_path / "arguments").read_text()


# Prints its command line, and what libpq reads for a connection: the fields of a service file have no variable.
REPORT = """
import sys, psycopg
defaults = {option.keyword.decode(): (option.val or b"").decode() for option in psycopg.pq.Conninfo.get_defaults()}
open(sys.argv[0] + ".report", "w").write(repr([sys.argv[1:], defaults["sslpassword"], defaults["password"]]))
"""


def test_the_password_of_a_client_key_is_not_on_the_command_line(tmp_path, monkeypatch):
    fake = tmp_path / "pg_dump"
    fake.write_text(f"#!{sys.executable}\n{REPORT}")
    fake.chmod(0o755)
    monkeypatch.setattr(client_programs, "_program", lambda _name: fake)
    connecting_with(monkeypatch, password="sesame", sslpassword="open = 'sesame' #1", sslkey="/key")
    client_programs.run("pg_dump", "--format=custom")
    arguments, sslpassword, password = ast.literal_eval(Path(f"{fake}.report").read_text())
    assert (sslpassword, password) == ("open = 'sesame' #1", "sesame")
    assert arguments == ["--dbname=host=h dbname=d sslkey=/key", "--format=custom"]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"sslpassword": "sesame", "service": "ours"}, "put sslpassword into the service file"),
        ({"sslpassword": "sesame "}, "sslpassword: libpq's service file cannot have a value that ends in a space"),
    ],
)
def test_a_password_that_libpq_would_not_read_is_an_error(program, monkeypatch, parameters, message):
    monkeypatch.setattr(client_programs, "_program", lambda _name: program("pg_dump", "exit 9"))
    connecting_with(monkeypatch, **parameters)
    with pytest.raises(client_programs.ClientProgramError, match=message):
        client_programs.run("pg_dump")


def test_a_folder_is_no_file_for_a_dump():
    with pytest.raises(CommandError, match=r"\. exists: name another file"):
        Command().handle(file=Path())
