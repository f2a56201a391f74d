"""Creates Prefect's tables without its trigram indexes: the embedded PostgreSQL has no pg_trgm.

Prefect has less to write for it, so its figures are no worse. Runs in the peers' environment; `run_prefect` sets where.
"""

from __future__ import annotations

from typing import Any

import anyio
import anyio.to_thread
from alembic.operations import Operations
from prefect.server.database.alembic_commands import alembic_upgrade

_execute = Operations.execute


def _without_trigrams(self: Operations, statement: Any, **options: Any) -> None:
    if "trgm" not in str(statement).lower():
        _execute(self, statement, **options)


if __name__ == "__main__":
    Operations.execute = _without_trigrams  # type: ignore[method-assign]
    anyio.run(anyio.to_thread.run_sync, alembic_upgrade)  # in a thread of a loop's, where its migrations expect to be
