"""Limits the bytes and uploads of an organization in the image registry, and the blobs of a repository."""

from time import monotonic
from typing import Final

from django.conf import settings
from django.db import connection

from leases.advisory_locks import IMAGES_OF_ORGANIZATION, advisory_xact_lock
from orchestrator.images.errors import DENIED, TOO_MANY_REQUESTS, RegistryError
from orchestrator.images.models import BlobUpload, ImageUsage, RepositoryBlob
from runtime_jobs.models import Project

RETRY_AFTER_SECONDS: Final = 60
MAX_BLOBS_PER_REPOSITORY: Final = 100_000
SLOW_SUM_SECONDS: Final = 1.0
SLOW_SUM_PAUSE: Final = 10  # times the seconds of a slow sum, until a process makes the next one
_slow_sums: dict[int, tuple[float, int]] = {}  # organization: when the next one may be made, and the bytes
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


def lock_images(project: Project) -> None:
    """Wait for the lock of the images of an organization, and hold it until the transaction ends.

    It is taken before the row of a content is locked, for which other organizations wait.
    """
    advisory_xact_lock(IMAGES_OF_ORGANIZATION, project.organization_id)


def require_quota(project: Project, size: int) -> None:
    """Count bytes, and refuse those above the quota of the organization. In the transaction that adds them.

    The count of `ImageUsage` is never too low: deletions are not counted, and a content that is pushed twice counts
    twice. So the bytes are summed up before a refusal. The sum of 900,000 blobs took 6 seconds on two busy cores.

    Args:
        project: The project of the repository.
        size: The bytes that the transaction adds.

    Raises:
        RegistryError: 403 DENIED.
    """
    limit = settings.IMAGE_QUOTA_BYTES
    organization = project.organization_id
    rows = ImageUsage.objects.filter(organization=organization)
    if limit <= 0:
        rows.delete()  # the count would be too low later
        return
    lock_images(project)
    used = rows.values_list("bytes", flat=True).first()
    if used is None or used + size > limit:
        used = _sum_up(organization, used)
    if used + size > limit:
        text = f"The images of the organization have {used} bytes, and {size} more would exceed its limit of {limit}."
        advice = "Delete images, or ask an operator. Layers that were pushed lately are free after the next collection."
        raise RegistryError(403, DENIED, f"{text} {advice}")
    ImageUsage.objects.bulk_create(
        [ImageUsage(organization_id=organization, bytes=used + size)],
        update_conflicts=True,
        unique_fields=["organization"],
        update_fields=["bytes"],
    )


def _sum_up(organization_id: int, counted: int | None) -> int:
    """Return the bytes of an organization, or what was counted while a slow sum was made a short time ago.

    A refusal rolls its transaction back, so each request of a tenant at its limit would make the sum anew.
    """
    until, known = _slow_sums.get(organization_id, (0.0, 0))
    began = monotonic()
    if began < until:
        return known if counted is None else counted
    used = used_bytes(organization_id)
    seconds = monotonic() - began
    _slow_sums.pop(organization_id, None)
    if seconds > SLOW_SUM_SECONDS:
        _slow_sums[organization_id] = (monotonic() + SLOW_SUM_PAUSE * seconds, used)
    return used


def forget_counts() -> None:
    """Let the bytes of each organization be summed up at its next push.

    Other writers may have added bytes without a count: the former release during an upgrade, or an operator by SQL.
    """
    ImageUsage.objects.all().delete()


def require_blob_room(project: Project) -> None:
    """Refuse a blob more of a repository that has too many: small ones hardly count for the quota.

    It is asked before an upload begins, so as many more as uploads are open may be stored.

    Raises:
        RegistryError: 403 DENIED.
    """
    rows = RepositoryBlob.objects.filter(project=project)
    if rows[:MAX_BLOBS_PER_REPOSITORY].count() >= MAX_BLOBS_PER_REPOSITORY:
        text = f"A repository may have at most {MAX_BLOBS_PER_REPOSITORY} blobs. Delete some."
        raise RegistryError(403, DENIED, text)


def has_upload_slot(project: Project) -> bool:
    """Return whether the organization may have one more open upload. Under its lock."""
    rows = BlobUpload.objects.filter(project__organization=project.organization_id)
    return rows.count() < settings.IMAGE_MAX_UPLOADS


def require_upload_slot(project: Project) -> None:
    """Refuse one more upload of an organization that has too many open ones. Under its lock.

    Raises:
        RegistryError: 429 TOOMANYREQUESTS.
    """
    if not has_upload_slot(project):
        limit = settings.IMAGE_MAX_UPLOADS
        raise RegistryError(
            429,
            TOO_MANY_REQUESTS,
            f"The organization has {limit} uploads that are not complete, which is its limit. Complete or cancel one.",
            headers={"Retry-After": str(RETRY_AFTER_SECONDS)},
        )
