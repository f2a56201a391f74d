"""Limits the bytes and the uploads of an organization in the image registry."""

from typing import Final

from django.conf import settings
from django.db import connection

from leases.advisory_locks import IMAGES_OF_ORGANIZATION, advisory_xact_lock
from orchestrator.images.errors import DENIED, TOO_MANY_REQUESTS, RegistryError
from orchestrator.images.models import BlobUpload
from runtime_jobs.models import Project

RETRY_AFTER_SECONDS: Final = 60
# A content counts once for an organization, however many of its repositories have it.
_USED: Final = """
WITH projects AS (SELECT id FROM runtime_jobs_project WHERE organization_id = %s),
stored AS (
    SELECT blob_id FROM image_repository_blobs WHERE project_id IN (SELECT id FROM projects)
    UNION SELECT blob_id FROM image_manifests WHERE project_id IN (SELECT id FROM projects))
SELECT (SELECT coalesce(sum(size), 0) FROM image_blobs WHERE id IN (SELECT blob_id FROM stored))
     + (SELECT coalesce(sum(size), 0) FROM image_uploads WHERE project_id IN (SELECT id FROM projects))
"""


def used_bytes(organization_id: int) -> int:
    """Return the bytes of an organization: its blobs and manifests, and the parts of its uploads."""
    with connection.cursor() as cursor:
        cursor.execute(_USED, [organization_id])
        return int(cursor.fetchone()[0])


def require_quota(project: Project, size: int) -> None:
    """Refuse bytes above the quota of the organization. In the transaction that adds them: it holds a lock.

    Args:
        project: The project of the repository.
        size: The bytes that the transaction adds.

    Raises:
        RegistryError: 403 DENIED.
    """
    limit = settings.IMAGE_QUOTA_BYTES
    if limit <= 0:
        return
    advisory_xact_lock(IMAGES_OF_ORGANIZATION, project.organization_id)
    used = used_bytes(project.organization_id)
    if used + size > limit:
        text = f"The images of the organization have {used} bytes, and {size} more would exceed its limit of {limit}."
        raise RegistryError(403, DENIED, f"{text} Delete images, or ask an operator.")


def require_upload_slot(project: Project) -> None:
    """Refuse one more upload of an organization that has too many open ones.

    Raises:
        RegistryError: 429 TOOMANYREQUESTS.
    """
    limit = settings.IMAGE_MAX_UPLOADS
    advisory_xact_lock(IMAGES_OF_ORGANIZATION, project.organization_id)
    if BlobUpload.objects.filter(project__organization=project.organization_id).count() >= limit:
        raise RegistryError(
            429,
            TOO_MANY_REQUESTS,
            f"The organization has {limit} uploads that are not complete, which is its limit. Complete or cancel one.",
            headers={"Retry-After": str(RETRY_AFTER_SECONDS)},
        )
