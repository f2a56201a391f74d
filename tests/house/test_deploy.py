"""The commands that deploy/ and Procfile name exist and take the options that they are given."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))


def commands() -> dict[str, str]:
    found = {unit.name: re.search(r"^ExecStart=(.*)$", unit.read_text(), re.MULTILINE).group(1) for unit in UNITS}
    lines = [line for line in (ROOT / "Procfile").read_text().splitlines() if not line.startswith("#")]
    return found | {f"Procfile {name}": line for name, _, line in (entry.partition(": ") for entry in lines)}


@pytest.mark.parametrize("where", commands())
def test_every_command_takes_its_options(where):
    line = commands()[where]
    options = re.findall(r"(?<=\s)--[a-z-]+", line)
    program = ["manage.py", re.search(r"manage\.py (\w+)", line).group(1)]
    told = subprocess.run([sys.executable, *program, "--help"], cwd=ROOT, capture_output=True, text=True, check=True)
    for option in options:
        assert option in told.stdout, f"{where}: {option}"


def test_every_setting_that_the_docs_name_exists():
    settings = "".join((ROOT / "config" / name).read_text() for name in ("settings.py", "databases.py", "places.py"))
    table = (ROOT / "docs" / "operations.md").read_text().partition("## Settings")[2].partition("## Every day")[0]
    examples = "".join(path.read_text() for path in (ROOT / "deploy" / "systemd").glob("*.env.example"))
    named = set(re.findall(r"`([A-Z_]+)`", table)) | set(re.findall(r"^([A-Z_]+?)(?:_FILE)?=", examples, re.MULTILINE))
    own = {"NAME_FILE", "SERVER_URL"}  # a pattern, and a variable of the worker's unit alone
    assert {name for name in named - own if f'"{name}"' not in settings} == set()


def test_the_units_run_nothing_as_root_but_the_worker():
    without = [unit.name for unit in UNITS if "\nUser=runtime-orchestrator\n" not in unit.read_text()]
    assert without == ["runtime-orchestrator-worker.service"]
