"""Hardware specs as JSON, for the REST API and for runners (contract 2.9)."""

from typing import Any

from orchestrator.protocols.bencher.wire import optional_timestamp, timestamp
from workers.models import HardwareSpec


def spec_document(spec: HardwareSpec) -> dict[str, Any]:
    """Return a spec. `fallback` is the time since when it is the fallback, or null."""
    return {
        "uuid": str(spec.uuid),
        "name": spec.name,
        "slug": spec.slug,
        "os": spec.os,
        "architecture": spec.architecture,
        "sandbox": spec.sandbox,
        "cpu": spec.cpu,
        "memory": spec.memory,
        "disk": spec.disk,
        "network": spec.network,
        "fallback": optional_timestamp(spec.fallback_at),
        "created": timestamp(spec.created_at),
        "modified": timestamp(spec.modified_at),
        "archived": optional_timestamp(spec.archived_at),
    }
