"""Tests of a file stay in one process, and so do those that share processes; the files that take longest are named."""

import os
import re
import subprocess
import sys

import pytest

from config.paths import BASE_DIR
from tests import xdist_grouping


@pytest.mark.parametrize(
    ("nodeid", "group"),
    [
        ("tests/integration/test_steps.py::test_it[2]", "integration"),
        ("tests/integration/test_tour.py::test_it", "tests/integration/test_tour.py"),
        ("tests/orchestrator/devtools/test_demo.py::test_it", "demos"),
        ("tests/orchestrator/devtools/test_up.py::test_it", "tests/orchestrator/devtools/test_up.py"),
        ("tests/workers/engines/test_death.py::TestIt::test_it[a::b]", "tests/workers/engines/test_death.py"),
    ],
)
def test_a_test_goes_with_its_group_or_its_file(nodeid, group):
    assert xdist_grouping.group_of(nodeid) == group


def test_files_that_wait_come_first_in_turn_with_others():
    names = [f"tests/{file}.py::test_it" for file in ("leases/a", "leases/b", "workers/agent/c", "workers/engines/d")]
    names.append("tests/leases/a.py::test_another")
    places = xdist_grouping.places_of(names)
    files = [xdist_grouping.file_of(name) for name in names]
    assert sorted(places, key=places.get) == [files[2], files[0], files[3], files[1]]
    assert len(places) == len(set(places.values())) == 4


def test_the_suite_has_the_plugin(request):
    found = request.config.hook.pytest_xdist_make_scheduler.get_hookimpls()
    assert [hook.plugin for hook in found if hook.plugin is xdist_grouping] == [xdist_grouping]


def test_the_plugin_asks_for_it():
    """Without the setting the plugin uses its own grouping silently: two of four tests for each process."""
    command = [sys.executable, "-m", "pytest", "--numprocesses", "2", "-v", "-p", "no:cacheprovider"]
    # Other plugins take seconds, Django's most, in each of three processes. The setting `timeout` needs its own.
    plugins = ("xdist", "pytest_timeout", "tests.xdist_grouping")
    command += ["--noconftest", *(word for name in plugins for word in ("-p", name))]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    result = subprocess.run(
        [*command, f"{__file__}::{test_a_test_goes_with_its_group_or_its_file.__name__}"],
        cwd=BASE_DIR,
        env=environment | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert len(re.findall(r"^\[gw\d\].*PASSED", result.stdout, re.MULTILINE)) == 5
    assert re.search(r"= slowest files =+\n +\d+\.\d s  tests/test_xdist_grouping\.py\n", result.stdout)
    assert len(set(re.findall(r"^\[(gw\d)\].*PASSED", result.stdout, re.MULTILINE))) == 1
