"""Rows that several tests of a module begin with, made once, in a transaction around those of the tests.

A test changes them as it likes: its own transaction is a savepoint then, and is rolled back at its end. pytest-django
leaves room for that. No test of the module may commit, and PostgreSQL's `now()` is the same in all of them.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import transaction


@contextmanager
def module_transaction(blocker: Any) -> Iterator[None]:
    """Open a transaction that is rolled back after the last test of a module. For a fixture of a module."""
    surrounding = transaction.atomic()
    # A durable transaction of the product may begin inside, as in the transaction of a test case.
    surrounding._from_testcase = True  # type: ignore[attr-defined]
    with blocker.unblock():
        surrounding.__enter__()
    yield
    with blocker.unblock():
        transaction.set_rollback(True)
        surrounding.__exit__(None, None, None)


class SharedRows:
    """The rows that `build` makes, and `value`: what it returns.

    `fixture`: the name by which tests request them. `max_age`: the seconds after which they are built again.
    """

    def __init__(self, fixture: str, build: Callable[[], Any], blocker: Any, max_age: float) -> None:
        self.fixture, self._build, self._blocker, self._max_age = fixture, build, blocker, max_age
        self._transaction: Any = None
        self.value: Any = None

    def ensure(self) -> None:
        """Build the rows, if there are none or they are old."""
        if self._transaction is not None and time.monotonic() > self._built_at + self._max_age:
            self.discard()
        if self._transaction is None:
            self._transaction = module_transaction(self._blocker)
            self._transaction.__enter__()
            with self._blocker.unblock():
                self.value = self._build()
            self._built_at = time.monotonic()

    def discard(self) -> None:
        """Delete the rows."""
        if self._transaction is not None:
            self._transaction.__exit__(None, None, None)
            self._transaction = None


_found: list[SharedRows] = []


@contextmanager
def shared_rows(
    fixture: str, build: Callable[[], Any], blocker: Any, *, max_age: float = math.inf
) -> Iterator[SharedRows]:
    """The rows of a fixture of a module. It needs `django_db_setup`, and `prepare` before each test."""
    rows = SharedRows(fixture, build, blocker, max_age)
    _found.append(rows)
    try:
        rows.ensure()
        yield rows
    finally:
        rows.discard()
        _found.remove(rows)


def prepare(item: pytest.Item) -> None:
    """Renew old rows for a test that requests them, and delete them for another one, which expects an empty database.

    Call it before the fixtures of the test, among which is its transaction.
    """
    for rows in _found:
        if rows.fixture in getattr(item, "fixturenames", ()):
            rows.ensure()
        else:
            rows.discard()
