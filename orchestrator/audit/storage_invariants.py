"""Invariants of stored objects: bytes of organizations, names, and rows without an object."""

from collections.abc import Iterator

from orchestrator.artifacts.addresses import MODELS
from orchestrator.artifacts.storage import artifact_storage
from orchestrator.audit.invariant import Invariant
from orchestrator.maintenance.resealing import SEALED_COLUMNS, unreadable_rows

_STORED = """(SELECT organization_id, byte_count FROM runtime_stored_artifacts
              UNION ALL SELECT organization_id, byte_count FROM runtime_cache_entries)"""

STORAGE_INVARIANTS = (
    Invariant(
        "O1",
        "The counted bytes of an organization are those of its artifacts and cache entries.",
        f"""SELECT organization_id FROM (SELECT organization_id, sum(byte_count) AS bytes FROM {_STORED} s GROUP BY 1) s
              FULL JOIN runtime_storage_usage u USING (organization_id)
             WHERE coalesce(s.bytes, 0) <> coalesce(u.byte_count, 0)""",
    ),
    Invariant(
        "O2",
        "An object that passed through the server has a digest, was announced before, and is one of its project.",
        """SELECT object_key FROM
              (SELECT object_key, sha256, created_at, completed_at, organization_id, project_id
                 FROM runtime_stored_artifacts
               UNION ALL
               SELECT object_key, sha256, created_at, completed_at, organization_id, project_id
                 FROM runtime_cache_entries) s
              JOIN runtime_jobs_project p ON p.id = s.project_id
             WHERE (s.completed_at IS NULL AND s.sha256 IS NOT NULL) OR s.completed_at < s.created_at
                OR p.organization_id <> s.organization_id""",
    ),
    Invariant(
        "O3",
        "Masks belong to a fence that the job has had.",
        """SELECT m.job_ulid FROM runtime_mask_snapshots m JOIN runtime_jobs j USING (job_ulid)
            WHERE m.fence > j.fence""",
    ),
)


def missing_objects() -> Iterator[str]:
    """Yield the keys of complete objects that the storage does not have, or has with another size.

    Asks the storage for each object: with a bucket a request each.

    Raises:
        OSError: The storage does not answer.
    """
    storage = artifact_storage()
    for model in MODELS.values():
        rows = model._default_manager.filter(completed_at__isnull=False, is_abandoned=False)  # noqa: SLF001 Django's name
        for key, size in rows.values_list("object_key", "byte_count").iterator(chunk_size=1000):
            if storage.size_of(key) != size:
                yield key


def unreadable_values() -> Iterator[str]:
    """Yield the places of sealed values that no known root key opens."""
    for column in SEALED_COLUMNS:
        for key in unreadable_rows(column):
            yield f"{column.name} {key}"
