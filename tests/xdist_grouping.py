"""A plugin that distributes tests to processes, and names the files that took longest.

Those of one file stay together, and so do those that share the machine.
"""

import os
from collections import Counter
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

# Tests that share what a machine has once: slots, accounts, control groups, a server's processes. They take longest, so
# they begin first.
TOGETHER = {
    "servers": ("tests/chaos/", "tests/orchestrator/devtools/", "tests/integration/"),
    "sandboxes": ("tests/workers/agent/", "tests/workers/engines/"),
}
GROUPS = list(TOGETHER)
SLOWEST = 10  # files that are named


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are processors: many tests wait for processes of their own."""
    return (os.cpu_count() or 1) + 1


def pytest_configure(config: pytest.Config) -> None:
    """Measure in the process that gets all reports."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(SlowestFiles())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let the groups begin. All test processes sort alike."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: place_of(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> "Distribution":
    """Distribute tests by their groups."""
    return Distribution(config, log)


def file_of(nodeid: str) -> str:
    return nodeid.split("::", maxsplit=1)[0]


def group_of(nodeid: str) -> str:
    file = file_of(nodeid)
    return next((name for name, folders in TOGETHER.items() if file.startswith(folders)), file)


def place_of(nodeid: str) -> int:
    """For sorting: the groups in their order, then the rest as it is."""
    group = group_of(nodeid)
    return GROUPS.index(group) if group in TOGETHER else len(GROUPS)


class Distribution(LoadScopeScheduling):
    """Groups tests by the names of their files.

    The plugin's own grouping by marks writes the group into a private attribute of the test's name. This pytest has no
    such attribute, so marked tests ran anywhere.
    """

    def __init__(self, config, log=None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


class SlowestFiles:
    """Names the files whose tests took longest, with the fixtures that they asked for."""

    def __init__(self) -> None:
        self.seconds = Counter[str]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[file_of(report.nodeid)] += report.duration

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if terminalreporter.verbosity >= 0:
            terminalreporter.write_sep("=", "slowest files")
            for file, seconds in self.seconds.most_common(SLOWEST):
                terminalreporter.write_line(f"{seconds:6.1f} s  {file}")
