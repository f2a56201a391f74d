"""Classifies database errors by SQLSTATE: what the caller is answered, and whether the session can be used again.

The type of the exception decides only where PostgreSQL sent no SQLSTATE. Django's types do not separate a statement
that may be repeated from a server that cannot be used, and a read-only session is an `InternalError` like a bug.
docs/reliability.md has this table for operators.
"""

import logging
from typing import Final, NamedTuple

import psycopg
from django.db import InterfaceError, OperationalError

QUERY_CANCELED: Final = "57014"  # SQLSTATE of a statement that has reached its timeout


class Fault(NamedTuple):
    """A database error whose cause is the state of the server or of the session, not the statement.

    Attributes:
        is_unavailable: No statement can succeed now. Otherwise only this one failed, and may be repeated.
        ends_session: The session cannot be used again. It has ended, or each further statement would fail, too.
    """

    is_unavailable: bool
    ends_session: bool


_BUSY: Final = Fault(is_unavailable=False, ends_session=False)
_BUSY_IN_A_NEW_SESSION: Final = Fault(is_unavailable=False, ends_session=True)
_AWAY: Final = Fault(is_unavailable=True, ends_session=True)
_EXHAUSTED: Final = Fault(is_unavailable=True, ends_session=False)

# By SQLSTATE, or by its class, the first two characters.
FAULTS: Final = {
    "08": _AWAY,  # connection exceptions; poolers send 08P01 for errors of their own
    "25006": _AWAY,  # read_only_sql_transaction: a stand-by, or a primary that was demoted
    "25P02": _BUSY,  # in_failed_sql_transaction: an earlier statement of the transaction had failed
    "25P03": _BUSY_IN_A_NEW_SESSION,  # idle_in_transaction_session_timeout
    "25P04": _BUSY_IN_A_NEW_SESSION,  # transaction_timeout
    "26000": _AWAY,  # invalid_sql_statement_name: a pooler has given the session to another client
    "40001": _BUSY,  # serialization_failure
    "40P01": _BUSY,  # deadlock_detected
    "42P05": _AWAY,  # duplicate_prepared_statement: like 26000
    "53": _EXHAUSTED,  # insufficient_resources: disk_full, out_of_memory, a limit of the configuration
    "53300": _BUSY,  # too_many_connections; also a pool without a free connection
    "55P03": _BUSY,  # lock_not_available
    "57": _AWAY,  # operator_intervention: shutdown, crash, start-up, end of an idle session, dropped database
    QUERY_CANCELED: _BUSY,
    "58": _EXHAUSTED,  # system_error, such as io_error
}


def fault_of(error: BaseException) -> Fault | None:
    """Return what a database error says about server and session, or None for an error of the statement itself.

    Args:
        error: An exception of Django or of psycopg.
    """
    state = sqlstate_of(error)
    if state is not None:
        return FAULTS.get(state) or FAULTS.get(state[:2])
    has_no_answer = isinstance(
        error, OperationalError | InterfaceError | psycopg.OperationalError | psycopg.InterfaceError
    )
    return _AWAY if has_no_answer else None


def sqlstate_of(error: BaseException) -> str | None:
    """Return the SQLSTATE of an exception of Django or of psycopg, or None if PostgreSQL sent none."""
    return getattr(error, "sqlstate", None) or getattr(error.__cause__, "sqlstate", None)


def is_database_unavailable(error: BaseException) -> bool:
    """Return whether the database is unavailable, not only one statement."""
    fault = fault_of(error)
    return fault is not None and fault.is_unavailable


def is_connection_lost(error: BaseException) -> bool:
    """Return whether the session cannot be used again, so that its connection must be closed.

    Stricter than `is_database_unavailable`: a full disk leaves the session as it is.
    """
    fault = fault_of(error)
    return fault is not None and fault.ends_session


def log_level_of(error: BaseException) -> int:
    """Return the level for a line about a database error that the caller has handled.

    `runtime_jobs.db_outage` has logged an outage already, once. Lines of each attempt are for debugging.
    """
    return logging.DEBUG if is_database_unavailable(error) else logging.WARNING
