"""Extends Django's PostgreSQL backend: cheaper connection checks and timestamps, plans by value, a parameter limit."""

from __future__ import annotations

import logging
import select
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import Any, Self

import psycopg
from django.db.backends.postgresql import base
from django.db.backends.postgresql.features import DatabaseFeatures
from django.db.backends.postgresql.operations import DatabaseOperations
from psycopg.adapt import AdaptersMap
from psycopg.types.datetime import TimestamptzLoader
from psycopg_pool import ConnectionPool, PoolTimeout

from orchestrator.core.compute_slots import compute_slots
from runtime_jobs.db_errors import is_connection_lost
from runtime_jobs.db_outage import outage, session_opened

log = logging.getLogger(__name__)

MAX_QUERY_PARAMS = 2**16 - 1  # PostgreSQL's limit for one statement with server-side binding


class PoolExhausted(PoolTimeout):
    """Reports that all connections of this process are in use. The database itself may be healthy.

    `runtime_jobs.db_errors` distinguishes the two by this code, PostgreSQL's own for "too many connections".
    """

    sqlstate = "53300"


class MonitoredConnection(psycopg.Connection[Any]):
    """Lets another request run Python code while this one waits for PostgreSQL, and reports outages.

    It closes itself when its session cannot be used again, so that a pool replaces it: the session may be open, and
    read-only because the server was demoted.
    """

    @classmethod
    def connect(cls, *args: Any, **options: Any) -> Self:
        try:
            connection = super().connect(*args, **options)
        except psycopg.Error as error:
            outage.observe(error)
            raise
        outage.end()
        session_opened.send(cls)
        return connection

    def wait(self, *args: Any, **options: Any) -> Any:
        must_enter = compute_slots.leave()
        try:
            return super().wait(*args, **options)
        except psycopg.Error as error:
            if error.sqlstate or self.closed:  # else only the wait has ended, such as one for notifications
                outage.observe(error)
                if is_connection_lost(error):
                    self.close()
            raise
        finally:
            if must_enter:
                compute_slots.enter()


class UnpreparedCursor(psycopg.Cursor[Any]):
    """Sends values apart from the text of the statement, and never prepares it."""

    def execute(self, query: Any, params: Any = None, **options: Any) -> Self:
        return super().execute(query, params, **options | {"prepare": False})


class Features(DatabaseFeatures):
    """States the limit on parameters."""

    max_query_params = MAX_QUERY_PARAMS


class Operations(DatabaseOperations):
    """Splits bulk inserts by the limit on parameters, and compiles queries by `config.postgres.backend.compiler`."""

    compiler_module = "config.postgres.backend.compiler"

    def bulk_batch_size(self, fields: Sequence[Any], objs: Sequence[Any]) -> int:
        return MAX_QUERY_PARAMS // len(fields) if fields else len(objs)


_in_use: set[int] = set()  # connections that threads of this process have taken from the pool


class DatabaseWrapper(base.DatabaseWrapper):
    """Checks a pooled connection without a round trip, and parses timestamps by psycopg's loader in C.

    All connections are in UTC.
    """

    features_class = Features
    ops_class = Operations
    _prepares = True

    @contextmanager
    def without_preparing(self) -> Iterator[None]:
        """Let cursors of this block prepare no statement, so that each is planned for its values."""
        before, self._prepares = self._prepares, False
        try:
            yield
        finally:
            self._prepares = before

    @property
    def pool(self) -> Any:
        """Return the pool of this process, whose connections free compute slots; None without a pool."""
        options = self.settings_dict["OPTIONS"].get("pool")
        if options:
            options.setdefault("connection_class", MonitoredConnection)
        return super().pool

    def get_new_connection(self, conn_params: dict[str, Any]) -> psycopg.Connection[Any]:
        """Return a pooled connection that is open.

        A server that ends, or is killed, closes its connections, and the kernel knows that at once. The check that
        Django configures for the pool is an additional statement before the first one of each request.
        """
        if self.pool is None:
            self.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            return MonitoredConnection.connect(**conn_params)
        while True:
            try:
                with compute_slots.released():
                    connection: psycopg.Connection[Any] = super().get_new_connection(conn_params)
            except PoolTimeout as error:
                if len(_in_use) >= self.pool.max_size:
                    raise PoolExhausted(f"all {self.pool.max_size} connections are in use") from error
                raise
            if is_alive(connection):
                _in_use.add(id(connection))
                return connection
            connection.close()
            self.pool.putconn(connection)  # the pool replaces it by a new one

    def close_if_health_check_failed(self) -> None:
        """Let the thread connect again if its connection has closed itself. Django calls this before each use."""
        if self.connection is not None and self.connection.closed and not self.in_atomic_block:
            self.close()

    def _close(self) -> None:
        _in_use.discard(id(self.connection))
        super()._close()  # type: ignore[misc]  # missing in Django's stubs

    def get_connection_params(self) -> dict[str, Any]:
        parameters = super().get_connection_params()
        parameters.pop("detect_pooler", None)
        parameters["context"] = _with_fast_timestamps(parameters["context"])
        return parameters

    def _configure_connection(self, connection: psycopg.Connection[Any]) -> bool:
        """Prepare a new connection. Returns whether the caller must commit, as Django's method does."""
        must_commit: bool = super()._configure_connection(connection)  # type: ignore[misc]  # missing in Django's stubs
        if connection.prepare_threshold is None or not self.settings_dict["OPTIONS"].get("detect_pooler"):
            return must_commit
        if is_behind_pooler(connection):
            connection.prepare_threshold = None
            _log_pooler()
        return True

    def _set_autocommit(self, autocommit: bool) -> None:
        """Skip what changes nothing: a pooled connection is in autocommit mode whenever it is handed out."""
        if self.connection is None or self.connection.autocommit != autocommit:
            super()._set_autocommit(autocommit)  # type: ignore[misc]  # missing in Django's stubs

    def create_cursor(self, name: str | None = None) -> Any:
        """Return a cursor as Django's method does, without its call to a loader that is replaced here."""
        if name is None:
            return self.connection.cursor() if self._prepares else UnpreparedCursor(self.connection)
        return self.connection.cursor(name, scrollable=False, withhold=self.connection.autocommit)


@lru_cache(maxsize=8)
def _with_fast_timestamps(adapters: AdaptersMap) -> AdaptersMap:
    """Return a copy, once for each map of Django's: it asks for the parameters whenever a thread connects."""
    copied = AdaptersMap(adapters)
    copied.register_loader("timestamptz", TimestamptzLoader)
    return copied


def is_behind_pooler(connection: psycopg.Connection[Any]) -> bool:
    """Return whether the server process of this connection is not the one that its start named.

    A pooler names a process of its own invention, because the client's next transaction may run in another session.
    """
    row = connection.execute("SELECT pg_backend_pid()", prepare=False).fetchone()
    return row is None or row[0] != connection.info.backend_pid


@cache
def _log_pooler() -> None:
    """Log once a process that its statements are not prepared."""
    log.warning("connected through a pooler: statements are not prepared (DATABASE_PREPARED)")


def is_alive(connection: psycopg.Connection[Any]) -> bool:
    """Return whether an idle connection is open.

    No query is in progress, so its socket is readable only after the end of the session or an unsolicited message.
    """
    idle = select.poll()
    idle.register(connection.fileno(), select.POLLIN)
    if not idle.poll(0):
        return True
    try:
        ConnectionPool.check_connection(connection)
    except psycopg.Error:
        return False
    return True
