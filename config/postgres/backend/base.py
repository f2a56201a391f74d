"""Django's backend for PostgreSQL, cheaper in two places that every request passes, and with statements of a size that
the server takes."""

from __future__ import annotations

import select
from collections.abc import Sequence
from typing import Any

import psycopg
from django.db.backends.postgresql import base
from django.db.backends.postgresql.features import DatabaseFeatures
from django.db.backends.postgresql.operations import DatabaseOperations
from psycopg.adapt import AdaptersMap
from psycopg.types.datetime import TimestamptzLoader
from psycopg_pool import ConnectionPool, PoolTimeout

MAX_QUERY_PARAMS = 2**16 - 1  # of one statement whose values are sent apart


class PoolExhausted(PoolTimeout):
    """All connections of this process are in use. The database itself may be well.

    The code is PostgreSQL's own for "too many connections", by which `runtime_jobs.db_errors` tells the two apart.
    """

    sqlstate = "53300"


class Features(DatabaseFeatures):
    max_query_params = MAX_QUERY_PARAMS


class Operations(DatabaseOperations):
    def bulk_batch_size(self, fields: Sequence[Any], objs: Sequence[Any]) -> int:
        return MAX_QUERY_PARAMS // len(fields) if fields else len(objs)


_in_use: set[int] = set()  # connections that threads of this process have taken from the pool


class DatabaseWrapper(base.DatabaseWrapper):
    """A pooled connection is looked at without a way to the server, and times are read by psycopg's own loader, which
    is written in C. All connections are in UTC."""

    features_class = Features
    ops_class = Operations

    def get_new_connection(self, conn_params: dict[str, Any]) -> psycopg.Connection[Any]:
        """A server that ends, or is killed, closes its connections, and the kernel knows that at once. The check that
        Django has the pool make is a statement of its own before the first one of each request."""
        while True:
            try:
                connection: psycopg.Connection[Any] = super().get_new_connection(conn_params)
            except PoolTimeout as error:
                if len(_in_use) >= self.pool.max_size:
                    raise PoolExhausted(f"all {self.pool.max_size} connections are in use") from error
                raise
            if self.pool is None:
                return connection
            if is_alive(connection):
                _in_use.add(id(connection))
                return connection
            connection.close()
            self.pool.putconn(connection)  # which makes a new one in its place

    def _close(self) -> None:
        _in_use.discard(id(self.connection))
        super()._close()  # type: ignore[misc]  # Django's stubs leave it out

    def get_connection_params(self) -> dict[str, Any]:
        parameters = super().get_connection_params()
        parameters["context"] = AdaptersMap(parameters["context"])
        parameters["context"].register_loader("timestamptz", TimestamptzLoader)
        return parameters

    def create_cursor(self, name: str | None = None) -> Any:
        """As Django's, which then asks the loader that it expects there for its zone."""
        if name is None:
            return self.connection.cursor()
        return self.connection.cursor(name, scrollable=False, withhold=self.connection.autocommit)


def is_alive(connection: psycopg.Connection[Any]) -> bool:
    """Nobody has asked anything, so there is nothing to read but the end, or a word that nobody waited for."""
    idle = select.poll()
    idle.register(connection.fileno(), select.POLLIN)
    if not idle.poll(0):
        return True
    try:
        ConnectionPool.check_connection(connection)
    except psycopg.Error:
        return False
    return True
