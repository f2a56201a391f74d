"""Tests that share the machine stay in one process, and those of a file do."""

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
        ("tests/orchestrator/devtools/test_up.py::test_it[2]", "servers"),
        ("tests/chaos/test_chaos.py::test_it", "servers"),
        ("tests/workers/engines/test_death.py::TestIt::test_it[a::b]", "sandboxes"),
        ("tests/workers/report/test_rules.py::test_it", "tests/workers/report/test_rules.py"),
    ],
)
def test_a_test_goes_with_its_group_or_its_file(nodeid, group):
    assert xdist_grouping.group_of(nodeid) == group


def test_the_groups_come_first():
    names = [
        "tests/leases/test_a.py::a",
        "tests/workers/agent/test_b.py::b",
        "tests/orchestrator/devtools/test_c.py::c",
    ]
    assert sorted(names, key=xdist_grouping.place_of) == list(reversed(names))


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
    assert len(re.findall(r"^\[gw\d\].*PASSED", result.stdout, re.MULTILINE)) == 4
    assert re.search(r"= slowest files =+\n +\d+\.\d s  tests/test_xdist_grouping\.py\n", result.stdout)
    assert len(set(re.findall(r"^\[(gw\d)\].*PASSED", result.stdout, re.MULTILINE))) == 1
