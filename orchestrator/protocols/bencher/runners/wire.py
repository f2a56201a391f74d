"""Runners and their keys as JSON (contract 2.1 to 2.5)."""

from operator import attrgetter
from typing import Any

from orchestrator.protocols.bencher.wire import optional_timestamp, timestamp
from workers.models import Worker


def runner_document(worker: Worker) -> dict[str, Any]:
    """Return a runner with the UUIDs of its hardware specs. `last_heartbeat` is its last authenticated request."""
    return {
        "uuid": str(worker.uuid),
        "name": worker.display_name,
        "slug": worker.slug,
        "specs": [str(spec.uuid) for spec in sorted(worker.specs.all(), key=attrgetter("pk"))],
        "archived": optional_timestamp(worker.archived_at),
        "last_heartbeat": optional_timestamp(worker.last_seen_at),
        "created": timestamp(worker.created_at),
        "modified": timestamp(worker.modified_at),
    }


def key_document(worker: Worker, key: str) -> dict[str, str]:
    """Return a new key under both names: clients before version 0.6.3 read `token`."""
    return {"uuid": str(worker.uuid), "key": key, "token": key}
