"""JSON of versions of packs. Pure functions: they run no query."""

from typing import Any

from orchestrator.core.datetimes import format_timestamp
from orchestrator.http.api.actors import serialize_actor
from runtime_jobs.models import PackVersion
from runtime_jobs.specs import public_digest


def serialize_listed_pack(row: PackVersion) -> dict[str, Any]:
    """Return a version without its plan. Its organization was read with it."""
    return {
        "org_slug": row.organization.slug,
        "pack_id": row.pack_id,
        "version": row.version,
        "plan_hash": public_digest(row.plan_hash),
        "created_by": serialize_actor(row.created_by),
        "created_at": format_timestamp(row.created_at),
    }


def serialize_pack(row: PackVersion) -> dict[str, Any]:
    """Return a version with its plan. Its organization was read with it."""
    return serialize_listed_pack(row) | {"plan": row.plan}
