"""Checks that a block leaves every row of every table as it was."""

import contextlib
from collections.abc import Iterator

from tests.suite_functions import images


@contextlib.contextmanager
def nothing_lost() -> Iterator[None]:
    """The block may read, and be refused, but leaves every row as it was."""
    before = images()
    yield
    after = images()
    changed = [table for table in before if before[table] != after[table]]
    assert not changed, f"rows of these tables have changed: {', '.join(changed)}"
