"""Configures the database: address, connection pool and statement timeouts."""

from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import psycopg
from django.core.exceptions import ImproperlyConfigured

from config.env import Env
from config.postgres.embedded import django_database

SCHEMES: Final = ("postgres", "postgresql", "psql", "pgsql")
SSL_MODES: Final = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
# By kind of process: a statement that hangs must not stop the service.
TIMEOUTS: Final = {
    "api": {"statement_timeout": "5s", "lock_timeout": "2s", "idle_in_transaction_session_timeout": "10s"},
    # Shorter than CLOCK_TAKEOVER_SECONDS: a leader with a hanging statement writes its next beat in time.
    "clock": {"statement_timeout": "5s", "lock_timeout": "2s", "idle_in_transaction_session_timeout": "10s"},
    # Its statements may take longer, because no request and no lease waits for them.
    "housekeeping": {"statement_timeout": "60s", "lock_timeout": "5s", "idle_in_transaction_session_timeout": "30s"},
    # Its statements are short, and claim rows that other dispatchers wait for.
    "dispatcher": {"statement_timeout": "15s", "lock_timeout": "2s", "idle_in_transaction_session_timeout": "10s"},
    "migrate": {"statement_timeout": "0", "lock_timeout": "3s", "idle_in_transaction_session_timeout": "60s"},
}


def database(env: Env, state_dir: Path, parameters: dict[str, Any]) -> dict[str, Any]:
    """Return Django's settings of the database of `DATABASE_URL`, else of the embedded one.

    Args:
        env: The environment.
        state_dir: The folder of the embedded PostgreSQL.
        parameters: PostgreSQL parameters of every session, by name.

    Raises:
        ImproperlyConfigured: A variable has a value that cannot be used.
    """
    #: `postgres://role:password@host/name`. Empty: the embedded PostgreSQL under `STATE_DIR`. Its query may have any
    #: [parameter of libpq](https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-PARAMKEYWORDS), such as
    #: `sslmode`, `sslrootcert`, `sslcert` and `sslkey`, or several hosts with `target_session_attrs`. Commands end with
    #: one line if it does not work; web, scheduler, housekeeping and dispatchers wait for the database, and end if a
    #: parameter is unknown.
    address = env.str("DATABASE_URL", default="")
    if address and not _is_postgres_url(address):
        raise ImproperlyConfigured("DATABASE_URL: an address such as postgres://user@host:5432/name is needed.")
    given = env.db_url("DATABASE_URL") if address else django_database(state_dir)
    _require_known_options(given.get("OPTIONS", {}))
    return given | {
        "ENGINE": "config.postgres.backend",  # tests a connection before the pool hands it out
        "CONN_MAX_AGE": 0,
        "ATOMIC_REQUESTS": False,  # each operation opens its own transaction
        # The URL's query takes precedence: sslmode, or host for a socket's folder.
        "OPTIONS": _session(env, parameters) | _connection_options(env) | given.get("OPTIONS", {}),
    }


def libpq_keywords() -> set[str]:
    """Return the names of the parameters that PostgreSQL's client library knows."""
    return {option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()}


def _require_known_options(options: dict[str, Any]) -> None:
    """Refuse what no connection attempt can make right. libpq itself reports it at each attempt."""
    for name in options.keys() - libpq_keywords():
        raise ImproperlyConfigured(f"DATABASE_URL: {name} is no parameter of libpq.")
    if (mode := options.get("sslmode", "prefer")) not in SSL_MODES:
        raise ImproperlyConfigured(f"DATABASE_URL: sslmode={mode!r}: one of {', '.join(SSL_MODES)} is needed.")


def _is_postgres_url(address: str) -> bool:
    """Return whether the address has a known scheme and valid ports."""
    scheme, _, rest = address.partition("://")
    # A password may contain characters that end the host for `urlsplit`, such as #.
    hosts = rest.rpartition("@")[2].partition("/")[0].partition("?")[0]
    try:
        # libpq takes several, each with a port of its own; `port` raises for one above 65535
        ports = [urlsplit(f"//{host}").port for host in hosts.split(",")]
    except ValueError:
        return False
    return scheme in SCHEMES and 0 not in ports


def _session(env: Env, parameters: dict[str, Any]) -> dict[str, Any]:
    #: Which timeouts of statements apply: `api`, `clock`, `housekeeping`, `dispatcher` or `migrate`. `manage.py`
    #: chooses it by its command.
    role = env.str("DATABASE_ROLE", default="api")
    if role not in TIMEOUTS:
        raise ImproperlyConfigured(f"DATABASE_ROLE={role!r}: one of {', '.join(TIMEOUTS)} is needed")
    every_session = TIMEOUTS[role] | parameters
    return {
        "application_name": f"orchestrator-{role}",
        "options": " ".join(f"-c {name}={value}" for name, value in every_session.items()),
    }


def _connection_options(env: Env) -> dict[str, Any]:
    if env.str("DATABASE_ROLE", default="api") == "clock":
        # One thread with one session, without a pool: closing it ends it, and a cut network is noticed within seconds.
        keepalives = {"keepalives_idle": 3, "keepalives_interval": 1, "keepalives_count": 3, "tcp_user_timeout": 5000}
        return {name: value for name, value in (_pooled_options(env) | keepalives).items() if name != "pool"}
    return _pooled_options(env)


def _pooled_options(env: Env) -> dict[str, Any]:
    #: Empty: each connection plans a statement once, but not through a pooler, which is detected. yes: always, for a
    #: pooler in session mode. no: never.
    prepared = env.bool("DATABASE_PREPARED") if env.str("DATABASE_PREPARED", default="") else None
    #: Connections of one process: those that stay open, and the most; one more where claims wait or logs are followed,
    #: which listens. The sum of the second over all processes and 5 to spare stay below PostgreSQL's `max_connections`.
    smallest, largest = env.int("DATABASE_POOL_MIN", default=1), env.int("DATABASE_POOL_MAX", default=10)
    if not 0 <= smallest <= largest or largest < 1:
        raise ImproperlyConfigured(
            f"DATABASE_POOL_MAX={largest}: a number from 1, and not below DATABASE_POOL_MIN={smallest}, is needed"
        )
    return {
        "connect_timeout": 3,
        # Values travel apart from the text of a statement: the server's log shows the text of one that fails or waits,
        # and a value may be a session key or the hash of a password.
        "server_side_binding": True,
        # A stand-by, and a primary that was demoted, refuse the connection at once: a session that a pool had kept from
        # that time would fail every write after the server is the primary again.
        "target_session_attrs": "read-write",
        # Statements that a connection has sent before are planned already. A pooler that gives each transaction to any
        # free session breaks this, so behind one nothing is prepared unless the operator says that it may be.
        "prepare_threshold": None if prepared is False else 3,
        "detect_pooler": prepared is None,
        "keepalives_idle": 30,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 15000,
        "pool": {
            "min_size": smallest,
            "max_size": largest,
            "timeout": 5,
            # After this the next request starts a new attempt. The pool's own attempts, with delays that double, would
            # find a database that was away for five minutes only minutes after its return.
            "reconnect_timeout": 4,
            "max_lifetime": 1800,
            "max_idle": 300,
        },
    }
