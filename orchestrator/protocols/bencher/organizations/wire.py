"""JSON of organizations."""

from typing import Any

from orchestrator.protocols.bencher.wire import optional_timestamp, timestamp
from orchestrator.services.tenants import claimed_at
from runtime_jobs.models import Organization


def serialize_organization(organization: Organization) -> dict[str, Any]:
    """Return an organization. `claimed` is when it got its first member, or null."""
    return {
        "uuid": str(organization.uuid),
        "name": organization.name or organization.slug,
        "slug": organization.slug,
        "created": timestamp(organization.created_at),
        "modified": timestamp(organization.created_at),
        "claimed": optional_timestamp(claimed_at(organization)),
    }
