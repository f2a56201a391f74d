"""A plugin that distributes tests to processes: those of one file stay together, and so do those that share the machine."""

import os
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


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are processors: many tests wait for processes of their own."""
    return (os.cpu_count() or 1) + 1


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let the groups begin. All test processes sort alike."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: place_of(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> "Distribution":
    """Distribute tests by their groups."""
    return Distribution(config, log)


def group_of(nodeid: str) -> str:
    file = nodeid.split("::", maxsplit=1)[0]
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
