"""Trouble with the database: whether one question failed, or nobody answers at all."""

import logging

from django.db import InterfaceError, OperationalError

# The next one may have more luck: a lock or a statement took too long, a deadlock, a serialization failure, an idle
# transaction was ended, no connection was free.
BUSY = frozenset({"55P03", "57014", "40P01", "40001", "25P03", "53300"})


def is_away(error: Exception) -> bool:
    """Whether nobody answers."""
    if not isinstance(error, OperationalError | InterfaceError):
        return False
    return getattr(error.__cause__, "sqlstate", None) not in BUSY


def go_past(error: Exception, log: logging.Logger, told: str, *values: object) -> None:
    """One of many failed: tell of it, so that the others have their turn.

    Raises the error where nobody answers: the others would wait in vain, one after the other, and a clock that has lost
    its connection leads no more."""
    if is_away(error):
        raise error
    log.error(told, *values, exc_info=error)
