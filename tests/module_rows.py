"""Rows that the tests of one module share: they are made once, in a transaction around all of these tests.

Each test has its own transaction inside that one, and is rolled back to the rows as they were made.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

from django.db import transaction


@contextlib.contextmanager
def module_transaction(django_db_blocker: Any) -> Iterator[None]:
    """Open a transaction that is rolled back after the last test of a module. For a fixture of a module.

    No test of the module may commit, and PostgreSQL's `now()` is the same in all of them.
    """
    surrounding = transaction.atomic()
    # A durable transaction of the product may begin inside, as in the transaction of a test case.
    surrounding._from_testcase = True  # type: ignore[attr-defined]
    with django_db_blocker.unblock():
        surrounding.__enter__()
    yield
    with django_db_blocker.unblock():
        transaction.set_rollback(True)
        surrounding.__exit__(None, None, None)
