"""manage.py starts a database only for commands that need one, finds its environment, and lists its commands."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import get_commands

from config.command_overview import APP, command_overview
from manage import needs_database

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("line", ["", "help", "--help", "migrate --help", "runworker --server http://x", "seed -h"])
def test_commands_without_a_database_start_none(line):
    assert not needs_database(line.split())


@pytest.mark.parametrize("line", ["migrate", "seed --json", "runclock", "audit", "a_command_of_tomorrow"])
def test_all_others_find_it_running(line):
    assert needs_database(line.split())


def test_the_commands_of_the_product_come_first_with_one_line_each():
    first, _, others = command_overview().partition("Commands of Django")
    ours = {name for name, app in get_commands().items() if app == APP}
    described = {line.split()[0]: line for line in first.splitlines() if line.startswith("  ")}
    assert set(described) == ours
    assert all(len(line.split()) > 4 and len(line) <= 120 for line in described.values()), described
    assert "createsuperuser" in others
    assert not ours & set(others.replace(",", " ").split())


@pytest.mark.parametrize("arguments", [[], ["help"], ["--help"]])
def test_help_prints_the_overview_without_a_database(tmp_path, arguments):
    environment = os.environ | {"STATE_DIR": str(tmp_path), "DATABASE_URL": ""}
    found = subprocess.run(
        [sys.executable, ROOT / "manage.py", *arguments], env=environment, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == command_overview()
    assert not (tmp_path / "postgres").exists()


@pytest.mark.root
def test_a_full_disk_is_named_in_one_line(tmp_path):
    """With DATABASE_URL the secret key is the first file that cannot be written: no PostgreSQL of ours starts."""
    fill = f'mount -t tmpfs -o size=4k tmpfs {tmp_path} && head -c 4096 /dev/zero >{tmp_path}/filler; exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", fill, "sh", sys.executable, str(ROOT / "manage.py"), "migrate"]
    environment = os.environ | {"STATE_DIR": str(tmp_path), "DATABASE_URL": "postgres://u@127.0.0.1:1/x"}
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (found.returncode, len(found.stderr.splitlines())) == (1, 1), found.stderr
    assert "No space left on device; make room" in found.stderr


def other_python() -> str:
    """Return the Python below the virtual environment, which has no Django."""
    base = Path(sys.base_prefix, "bin", "python3")
    if sys.prefix == sys.base_prefix or not base.exists():
        pytest.skip("the tests run without a virtual environment")
    return str(base)


def test_without_django_it_runs_in_the_virtual_environment():
    if not (ROOT / ".venv" / "bin" / "python").exists():
        pytest.skip("no .venv")
    found = subprocess.run(
        [other_python(), "-I", ROOT / "manage.py", "version"], capture_output=True, text=True, check=False
    )
    assert (found.returncode, found.stderr) == (0, "")


def test_without_a_virtual_environment_it_names_the_command(tmp_path):
    (tmp_path / "manage.py").write_bytes((ROOT / "manage.py").read_bytes())
    found = subprocess.run(
        [other_python(), "-I", tmp_path / "manage.py", "up"], capture_output=True, text=True, check=False
    )
    assert found.returncode == 1
    assert found.stderr == "The dependencies are not installed here: run `make setup`, then repeat the command.\n"


def test_the_first_line_names_a_program_that_debian_has():
    assert (ROOT / "manage.py").read_text().startswith("#!/usr/bin/env python3\n")
