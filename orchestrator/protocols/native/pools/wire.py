"""JSON of pools and their load. Pure functions: they run no query."""

from typing import Any

from orchestrator.core.datetimes import format_timestamp
from orchestrator.selectors.pools import PoolLoad
from workers.models import Pool


def serialize_pool(pool: Pool) -> dict[str, Any]:
    """Return a pool."""
    return {
        "pool": pool.slug,
        "description": pool.description,
        "policy": pool.policy,
        "aging": pool.aging,
        "least_isolation": pool.least_isolation,
        "trace": pool.trace or None,
    }


def serialize_load(pool: str, load: PoolLoad) -> dict[str, Any]:
    """Return the load of the pool with this slug."""
    return {
        "pool": pool,
        "queued": load.queued,
        "servable": load.servable,
        "capped": load.is_capped,
        "running": load.running,
        "idle_slots": load.idle_slots,
        "workers": {name: getattr(load, name) for name in ("active", "silent", "draining", "maintenance")},
        "oldest_wait_seconds": round(load.oldest_wait_seconds or 0, 1),
        "starts_per_minute": load.starts_per_minute,
        "at": format_timestamp(load.measured_at),
    }
