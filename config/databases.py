"""The one database: where it is, its pool of connections, and how long a statement may take."""

from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from django.core.exceptions import ImproperlyConfigured

from config.env import Env
from config.postgres.embedded import django_database

SCHEMES: Final = ("postgres", "postgresql", "psql", "pgsql")
# By kind of process: a statement that is stuck must not take the service with it (reliability, section 2).
TIMEOUTS: Final = {
    "api": {"statement_timeout": "5s", "lock_timeout": "2s", "idle_in_transaction_session_timeout": "10s"},
    # Shorter than CLOCK_TAKEOVER_SECONDS: a leader whose statement hangs writes its next beat in time.
    "clock": {"statement_timeout": "5s", "lock_timeout": "2s", "idle_in_transaction_session_timeout": "10s"},
    "migrate": {"statement_timeout": "0", "lock_timeout": "3s", "idle_in_transaction_session_timeout": "60s"},
}


def database(env: Env, state_dir: Path, parameters: dict[str, Any]) -> dict[str, Any]:
    """Django's settings of it: that of `DATABASE_URL`, else the embedded one. `parameters` hold for every session."""
    address = env.str("DATABASE_URL", default="")
    if address and urlsplit(address).scheme not in SCHEMES:
        raise ImproperlyConfigured("DATABASE_URL: an address such as postgres://user@host:5432/name is needed.")
    given = env.db_url("DATABASE_URL") if address else django_database(state_dir)
    return given | {
        "ENGINE": "config.postgres.backend",  # tests a connection before the pool hands it out
        "CONN_MAX_AGE": 0,
        "ATOMIC_REQUESTS": False,  # a verb is its own transaction
        # What the URL's query says wins: sslmode, host for a socket's folder.
        "OPTIONS": _session(env, parameters) | _link(env) | given.get("OPTIONS", {}),
    }


def _session(env: Env, parameters: dict[str, Any]) -> dict[str, Any]:
    role = env.str("DATABASE_ROLE", default="api")
    return {
        "application_name": f"orchestrator-{role}",
        "options": " ".join(f"-c {name}={value}" for name, value in (TIMEOUTS[role] | parameters).items()),
    }


def _link(env: Env) -> dict[str, Any]:
    if env.str("DATABASE_ROLE", default="api") == "clock":
        # One thread, one session that is really closed when it is given up, and noticed soon when its network is cut.
        soon = {"keepalives_idle": 3, "keepalives_interval": 1, "keepalives_count": 3, "tcp_user_timeout": 5000}
        return {name: value for name, value in (_pooled_link(env) | soon).items() if name != "pool"}
    return _pooled_link(env)


def _pooled_link(env: Env) -> dict[str, Any]:
    prepared = env.bool("DATABASE_PREPARED", default=True)
    return {
        "connect_timeout": 3,
        # Statements that a connection has sent before are planned already. Not behind a pooler that gives a statement
        # to whichever connection is free.
        "server_side_binding": prepared,
        "prepare_threshold": 3 if prepared else None,
        "keepalives_idle": 30,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 15000,
        "pool": {
            "min_size": env.int("DATABASE_POOL_MIN", default=1),
            "max_size": env.int("DATABASE_POOL_MAX", default=10),
            "timeout": 5,
            # Then a new request starts a new try: the pool's own, at distances that double, would find a database
            # that was away for five minutes only minutes after it is back.
            "reconnect_timeout": 2,
            "max_lifetime": 1800,
            "max_idle": 300,
        },
    }
