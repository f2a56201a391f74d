"""A command that needs no database starts none."""

import pytest

from manage import needs_database


@pytest.mark.parametrize("line", ["", "help", "--help", "migrate --help", "runworker --server http://x", "seed -h"])
def test_commands_without_a_database_start_none(line):
    assert not needs_database(line.split())


@pytest.mark.parametrize("line", ["migrate", "seed --json", "runclock", "audit", "a_command_of_tomorrow"])
def test_all_others_find_it_running(line):
    assert needs_database(line.split())
