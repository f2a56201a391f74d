"""A plugin that distributes tests to processes, file by file, and names the files that took longest."""

import os
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

# Files whose tests share processes that take long to start stay together: a server and a scheduler, two demos.
TOGETHER = {
    "integration": ("tests/integration/",),
    "demos": ("tests/orchestrator/devtools/test_backup.py", "tests/orchestrator/devtools/test_demo.py"),
}
# These take so long that a start of their own costs less than a process that has all of them.
ALONE = ("tests/integration/test_tour.py", "tests/integration/test_worker_faults.py")
# Their tests wait for processes more than they compute. They take longest, so they begin first, and one of them takes
# turns with one that computes: both kinds at a time use all processors.
WAITING = (
    "tests/chaos/",
    "tests/integration/",
    "tests/orchestrator/admin/test_pages.py",
    "tests/orchestrator/devtools/",
    "tests/orchestrator/http/test_database_down.py",
    "tests/orchestrator/protocols/bencher/channel/",
    "tests/orchestrator/protocols/git_http/",
    "tests/workers/agent/",
    "tests/workers/engines/",
)
SLOWEST = 10  # files that are named


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Twice as many as there are processors: many tests wait for processes of their own. Six on two were no quicker."""
    return 2 * (os.cpu_count() or 1)


def pytest_configure(config: pytest.Config) -> None:
    """Measure in the process that gets all reports."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(SlowestFiles())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the groups. All test processes sort alike."""
    if hasattr(config, "workerinput"):
        places = places_of(item.nodeid for item in items)
        items.sort(key=lambda item: places[group_of(item.nodeid)])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> "Distribution":
    """Distribute tests by their groups."""
    return Distribution(config, log)


def file_of(nodeid: str) -> str:
    return nodeid.split("::", maxsplit=1)[0]


def group_of(nodeid: str) -> str:
    file = file_of(nodeid)
    if file in ALONE:
        return file
    return next((name for name, places in TOGETHER.items() if file.startswith(places)), file)


def places_of(nodeids: Iterable[str]) -> dict[str, int]:
    """For sorting: each group's place. Those that wait have the even ones, from the first on."""
    waiting, others = {}, {}
    for nodeid in nodeids:
        found = waiting if nodeid.startswith(WAITING) else others
        found.setdefault(group_of(nodeid), 2 * len(found) + (found is others))
    return waiting | others


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
