"""Classifies database errors: one statement failed, or the database is unavailable."""

from django.db import InterfaceError, OperationalError

# A retry may succeed: lock timeout, statement timeout, deadlock, serialization failure, ended idle transaction, no free
# connection.
RETRYABLE_SQLSTATES = frozenset({"55P03", "57014", "40P01", "40001", "25P03", "53300"})

# The server ended or refused the session: admin_shutdown, crash_shutdown, cannot_connect_now, idle_session_timeout.
SESSION_ENDED = frozenset({"57P01", "57P02", "57P03", "57P05"})


def is_database_unavailable(error: Exception) -> bool:
    """Return whether the database is unavailable, not only one statement."""
    if not isinstance(error, OperationalError | InterfaceError):
        return False
    return getattr(error.__cause__, "sqlstate", None) not in RETRYABLE_SQLSTATES


def is_connection_lost(error: BaseException) -> bool:
    """Return whether this error says that the session has ended, not only that one statement failed.

    Stricter than `is_database_unavailable`: a full disk or a statement that is too complex leaves the session as it is.
    """
    if not isinstance(error, OperationalError | InterfaceError):
        return False
    sqlstate = getattr(error.__cause__, "sqlstate", None)
    return sqlstate is None or sqlstate in SESSION_ENDED or sqlstate.startswith("08")
