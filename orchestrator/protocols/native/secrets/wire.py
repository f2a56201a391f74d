"""JSON of secrets and variables. Pure functions: they run no query. No value of a secret is part of it."""

from typing import Any

from orchestrator.core.datetimes import format_timestamp
from orchestrator.http.api.actors import serialize_actor
from runtime_jobs.models import Secret, Variable
from runtime_jobs.models.secrets import ScopedValue


def serialize_secret(secret: Secret) -> dict[str, Any]:
    """Return a secret without its value. Its organization and repository were read with it."""
    return _serialize(secret)


def serialize_variable(variable: Variable) -> dict[str, Any]:
    """Return a variable. Its organization and repository were read with it."""
    return _serialize(variable) | {"value": variable.value}


def _serialize(row: ScopedValue) -> dict[str, Any]:
    return {
        "name": row.name,
        "org_slug": row.organization.slug,
        "repository": row.repository.full_name if row.repository else None,
        "updated_by": serialize_actor(row.updated_by),
        "created_at": format_timestamp(row.created_at),
        "updated_at": format_timestamp(row.updated_at),
    }
