"""JSON of artifacts and caches."""

from datetime import datetime
from typing import Any

from orchestrator.artifacts.addresses import download_url, upload_url
from orchestrator.core.datetimes import format_timestamp
from runtime_jobs.models import CacheEntry, StoredArtifact


def serialize_upload(artifact: StoredArtifact) -> dict[str, Any]:
    """Return an announced artifact with the address of its upload."""
    return {
        "artifact_id": artifact.artifact_ulid,
        "name": artifact.name,
        "size_bytes": artifact.byte_count,
        "upload_url": upload_url(artifact),
        "upload_until": format_timestamp(artifact.upload_until),
    }


def serialize_received(artifact: StoredArtifact) -> dict[str, Any]:
    """Return how much of an artifact was received in pieces."""
    return {
        "artifact_id": artifact.artifact_ulid,
        "size_bytes": artifact.byte_count,
        "received_bytes": artifact.received_bytes,
    }


def serialize_cache_upload(entry: CacheEntry | None) -> dict[str, Any]:
    """Return the address of a new cache entry; nulls if there is one of its key."""
    if entry is None:
        return {"upload_url": None, "upload_until": None}
    return {"upload_url": upload_url(entry), "upload_until": format_timestamp(entry.upload_until)}


def serialize_cache_download(entry: CacheEntry | None, now: datetime) -> dict[str, Any]:
    """Return a cache entry with the address of its content; nulls without one."""
    if entry is None:
        return dict.fromkeys(("key", "size_bytes", "sha256", "download_url"))
    return {
        "key": entry.key,
        "size_bytes": entry.byte_count,
        "sha256": entry.sha256,
        "download_url": download_url(entry, file_name="cache", now=now),
    }


def serialize_artifact(artifact: StoredArtifact) -> dict[str, Any]:
    """Return a complete artifact. Its batch was read with it."""
    return {
        "artifact_id": artifact.artifact_ulid,
        "job_id": artifact.job_id,
        "batch_id": artifact.batch.batch_ulid if artifact.batch else None,
        "name": artifact.name,
        "size_bytes": artifact.byte_count,
        "sha256": artifact.sha256,
        "created_at": format_timestamp(artifact.created_at),
        "expires_at": format_timestamp(artifact.expires_at),
    }


def serialize_download(artifact: StoredArtifact, now: datetime) -> dict[str, Any]:
    """Return a complete artifact with the address of its content."""
    name = artifact.name.rpartition("/")[2]
    return serialize_artifact(artifact) | {"download_url": download_url(artifact, file_name=name, now=now)}
