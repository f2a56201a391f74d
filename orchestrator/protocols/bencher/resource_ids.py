"""Ids in paths and bodies: a UUID, else a slug."""

import re
from typing import Any
from uuid import UUID

from orchestrator.protocols.bencher.errors import bad_request
from runtime_jobs.identifiers import public_id_of
from runtime_jobs.resource_names import MAX_SLUG_LENGTH, is_slug

_UUID = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}", re.IGNORECASE)


def parse_uuid(text: str) -> UUID | None:
    """Return a UUID of any version, or None for any other text."""
    return UUID(text) if _UUID.fullmatch(text) else None


def parse_resource_id(text: str, name: str) -> UUID | str:
    """Return the UUID or slug of a path or body.

    Args:
        text: The value.
        name: The parameter, for the error.

    Raises:
        ApiError: 400; the value is neither.
    """
    found = parse_uuid(text) or text
    if isinstance(found, str) and not is_slug(found):
        raise bad_request(f"{name}: Must be a UUID, or a slug of at most {MAX_SLUG_LENGTH} characters.")
    return found


def row_filter(resource_id: UUID | str) -> dict[str, Any]:
    """Return the filter of rows with the columns `uuid` and `slug`."""
    return {"uuid": resource_id} if isinstance(resource_id, UUID) else {"slug": resource_id}


def runner_filter(resource_id: UUID | str) -> dict[str, Any]:
    """Return the filter of the worker that a runner's UUID or slug names."""
    if isinstance(resource_id, UUID):
        return {"worker_id": public_id_of("wrk", resource_id)}
    return {"slug": resource_id}
