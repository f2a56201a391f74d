"""`backup` and `restore` choose programs that fit the server, and connect as the server itself does."""

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
    monkeypatch.setattr(
        client_programs.connection, "get_connection_params", lambda: {"host": "h", "dbname": "d"} | parameters
    )
    client_programs.run("pg_dump", "--format=custom")
    assert (tmp_path / "password").read_text() == f"{password}\n"
    assert "sesame" not in (tmp_path / "arguments").read_text()


def test_a_folder_is_no_file_for_a_dump():
    with pytest.raises(CommandError, match=r"\. exists: name another file"):
        Command().handle(file=Path())
