"""Artifacts and cache entries: announced by a job, uploaded once, complete when the whole object has arrived.

The bytes of an organization are counted from the announcement on, so that uploads in progress cannot pass the limit of
its plan together. The object is stored before its row is complete. A process may be killed between both.
"""

import re
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

from django.conf import settings
from django.db.models import BigIntegerField, F, Q, QuerySet, Value

from leases.fencing import lock_lease, require_valid_lease
from orchestrator.core.cause import Cause
from orchestrator.core.operator_events import record_operator_event
from orchestrator.core.unit_of_work import UnitOfWork, operation
from runtime_jobs.control_characters import wrong_label
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import NotFound, ResourceConflict, StorageQuotaExceeded, UploadMismatch
from runtime_jobs.events import ARTIFACTS
from runtime_jobs.identifiers import new_artifact_id
from runtime_jobs.models import CacheEntry, Job, Project, StorageUsage, StoredArtifact
from runtime_jobs.models.artifacts import MAX_ARTIFACT_NAME_LENGTH, StoredObject
from runtime_jobs.specs import JOB_TYPES
from runtime_jobs.states import PULL_REQUEST
from workers.models import Worker

UPLOAD_TIME: Final = timedelta(minutes=15)  # the validity of an address for an upload (contract 2.6)
MAX_WORKFLOW_NAME_LENGTH: Final = 100
MAX_BOUND_ARTIFACTS: Final = 200  # an event is read by every feed, so it stays small
_WORKFLOW_NAME: Final = re.compile(r"(?!\.\.)[A-Za-z0-9._-]{1,100}")
_TOUCH_AFTER: Final = timedelta(hours=1)
_OWN_REFS: Final = ("refs/heads/", "refs/tags/")
_FOREIGN_REFS: Final = ("refs/", "pull/", "merge-requests/")  # git completes a name to `refs/NAME` too

StoredT = TypeVar("StoredT", bound=StoredObject)


def validate_workflow_name(name: str) -> str | None:
    """Return the error of the name of an artifact of a workflow run (contract 2.6), or None."""
    if _WORKFLOW_NAME.fullmatch(name) and name != ".":
        return None
    return (
        f"The name must have 1 to {MAX_WORKFLOW_NAME_LENGTH} letters, digits, dots, hyphens and underscores, "
        "and must not begin with two dots."
    )


def validate_path(path: str) -> str | None:
    """Return the error of the relative path that an artifact of a job has as its name, or None."""
    if not 1 <= len(path.encode(errors="replace")) <= MAX_ARTIFACT_NAME_LENGTH:
        return f"The name must have 1 to {MAX_ARTIFACT_NAME_LENGTH} bytes."
    if error := wrong_label(path):
        return error
    if "\\" in path or path.startswith(("/", "-")):
        return "The name must be a relative path with slashes, and must not begin with a hyphen."
    if any(part in {"", ".", ".."} or part.endswith((".", " ")) or part == ".git" for part in path.split("/")):
        return "No part of the path may be empty, `.`, `..` or `.git`, or end with a dot or a blank."
    return None


def begin_artifact(
    uow: UnitOfWork, *, job: Job, name: str, size_bytes: int, now: datetime, run_id: int | None = None
) -> StoredArtifact:
    """Announce an artifact of a job. Part of an operation that has verified the lease.

    Args:
        job: The job.
        name: The valid name.
        size_bytes: The size of the object.
        now: The time of the announcement.
        run_id: The workflow run of the job. All jobs of a run share the names of artifacts.

    Raises:
        ResourceConflict: The batch or job has an artifact of this name.
        StorageQuotaExceeded: The organization would have more bytes than its plan allows.
    """
    uow.require_transaction()
    project, batch_id = _project_of(job), None if run_id is None else job.batch_id
    own = Q(batch=None, job=job.job_ulid) if run_id is None else Q(batch=batch_id)
    if not _is_free(StoredArtifact, own & Q(name=name), now):
        scope = "job" if run_id is None else "workflow run"
        raise ResourceConflict(f"The {scope} has an artifact with the name {name!r} already. Choose another name.")
    ulid, days = new_artifact_id(), settings.RETENTION_DAYS["artifacts"]
    folder = f"jobs/{job.job_ulid}" if run_id is None else f"actions/runs/{run_id}"
    artifact = StoredArtifact(
        artifact_ulid=ulid,
        job_id=job.job_ulid,
        batch_id=batch_id,
        name=name,
        expires_at=now + timedelta(days=days) if days else None,
        **_columns(project, f"{folder}/artifacts/{ulid}", size_bytes, now),
    )
    artifact.save(force_insert=True)
    _reserve(project, size_bytes)
    return artifact


def bind_artifacts(*, job: Job, **_: Any) -> dict[str, Any]:
    """Return the complete artifacts of a job that has ended, for its final event (`job_ended`).

    They are at most `MAX_BOUND_ARTIFACTS`. An upload that completes after the job has ended is not bound.
    """
    # An end without artifacts stays one read and one write. Only a worker with a lease announces artifacts.
    if job.fence == 0 or not (job.has_artifacts or JOB_TYPES[job.job_type].has_steps):
        return {}
    rows = StoredArtifact.objects.filter(job_id=job.job_ulid, completed_at__isnull=False, is_abandoned=False)
    found = rows.order_by("id").values_list("name", "byte_count", "sha256")[:MAX_BOUND_ARTIFACTS]
    bound = [{"name": name, "size_bytes": size, "sha256": digest} for name, size, digest in found]
    return {ARTIFACTS: bound} if bound else {}


@operation
def begin_cache_entry(
    _: UnitOfWork,
    *,
    lease_ulid: str,
    worker: Worker,
    key: str,
    version: str,
    size_bytes: int,
    now: datetime | None = None,
) -> CacheEntry | None:
    """Announce a cache entry of the job of a lease.

    The entry of a pull request is restored only by jobs of its ref: its code is written by a stranger.

    Args:
        lease_ulid: The lease.
        worker: The worker that holds it.
        key: The key that the job names.
        version: A digest of the paths, 64 hexadecimal digits.
        size_bytes: The size of the object.

    Returns:
        The entry; None: there is one of this key, or another job is uploading it.

    Raises:
        StaleLease: The lease is not valid.
        StorageQuotaExceeded: The organization would have more bytes than its plan allows.
    """
    locked = lock_lease(lease_ulid=lease_ulid, worker=worker, now=now)
    require_valid_lease(locked)
    project, scope = _project_of(locked.job), cache_scope(locked.job)
    named = Q(project=project, scope=scope, version=version, key=key)
    if not _is_free(CacheEntry, named, locked.now):
        return None
    object_key = f"caches/{project.uuid}/{new_artifact_id()}"
    entry = CacheEntry(
        scope=scope,
        key=key,
        version=version,
        last_used_at=locked.now,
        **_columns(project, object_key, size_bytes, locked.now),
    )
    entry.save(force_insert=True)
    _reserve(project, size_bytes)
    return entry


@operation
def find_cache_entry(
    _: UnitOfWork,
    *,
    lease_ulid: str,
    worker: Worker,
    key: str,
    version: str,
    restore_keys: Sequence[str] = (),
    now: datetime | None = None,
) -> CacheEntry | None:
    """Return the cache entry that the job of a lease restores, and count it as used.

    An entry of this key wins over one whose key begins with a restore key. Of those the newest one of the first
    restore key wins. The own scope of a pull request wins over that of the project.

    Args:
        lease_ulid: The lease.
        worker: The worker that holds it.
        key: The key that the job names.
        version: A digest of the paths.
        restore_keys: Beginnings of keys of other entries, in the order of preference.

    Raises:
        StaleLease: The lease is not valid.
    """
    locked = lock_lease(lease_ulid=lease_ulid, worker=worker, now=now)
    require_valid_lease(locked)
    project, scope = _project_of(locked.job), cache_scope(locked.job)
    rows = CacheEntry.objects.filter(project=project, version=version, is_abandoned=False, completed_at__isnull=False)
    for own in dict.fromkeys((scope, "")):
        for named in (Q(key=key), *(Q(key__startswith=beginning) for beginning in restore_keys)):
            found = rows.filter(named, scope=own).order_by("-id").first()
            if found is not None:
                if found.last_used_at < locked.now - _TOUCH_AFTER:
                    CacheEntry.objects.filter(pk=found.pk).update(last_used_at=locked.now)
                return found
    return None


def cache_scope(job: Job) -> str:
    """Return the scope of the cache entries of a job: the ref of a pull request, else empty.

    A client may submit a pull request as `manual` and without its number, so every ref that is neither a branch nor a
    tag counts as one.
    """
    ref = job.git_ref or ""
    is_own = ref.startswith(_OWN_REFS) or not ref.startswith(_FOREIGN_REFS)
    if is_own and job.trigger_kind != PULL_REQUEST and job.pull_request_number is None:
        return ""
    return f"{job.git_ref or ''}#{job.pull_request_number or ''}"[:255]


@operation
def complete_upload(
    _: UnitOfWork,
    model: type[StoredT],
    key: int,
    *,
    size_bytes: int,
    sha256: str | None,
    publish: Callable[[], None],
    now: datetime | None = None,
) -> StoredT:
    """Make an announced object complete. A repetition with the same content changes nothing.

    Args:
        model: The table.
        key: The key of the row.
        size_bytes: The number of bytes that were received.
        sha256: Their digest, or None: they did not pass through the server.
        publish: Stores the object. It is called under the lock of the row, so two uploads cannot mix.

    Raises:
        NotFound: The object was never announced, or its time is up.
        UploadMismatch: The size is not the announced one.
        ResourceConflict: The object is complete and has another content.
    """
    row = _rows(model).select_for_update().filter(pk=key, is_abandoned=False).first()
    if row is None:
        raise NotFound("The upload does not exist, or its time is up. Begin another one.")
    if size_bytes != row.byte_count:
        raise UploadMismatch(f"The upload has {size_bytes} bytes, and {row.byte_count} were announced.")
    if row.completed_at is not None:
        if sha256 != row.sha256:
            raise ResourceConflict("The object was uploaded before, with another content.")
        return row
    publish()
    row.sha256, row.completed_at = sha256, now or database_now()
    row.save(update_fields=["sha256", "completed_at"])
    return row


@operation
def abandon_objects(_: UnitOfWork, model: type[StoredT], keys: Sequence[int], *, only_incomplete: bool) -> int:
    """Hide objects, and free their names. Housekeeping deletes them; their bytes count until then.

    Args:
        model: The table.
        keys: The keys of rows.
        only_incomplete: Leave those that became complete meanwhile.

    Returns:
        The number of rows.
    """
    rows = _rows(model).filter(pk__in=list(keys), is_abandoned=False)
    if only_incomplete:
        rows = rows.filter(completed_at=None)
    return rows.update(is_abandoned=True)


@operation
def delete_stored_object(
    _: UnitOfWork,
    model: type[StoredT],
    key: int,
    *,
    cause: Cause,
) -> None:
    """Hide an object by request of an operator. Housekeeping deletes it; its bytes count until then.

    Args:
        model: The table.
        key: The key of the row.

    Raises:
        NotFound: There is no such object, or it was deleted before.
    """
    row = _rows(model).select_for_update().filter(pk=key, is_abandoned=False).first()
    noun = model._meta.verbose_name  # noqa: SLF001 Django's name
    if row is None:
        raise NotFound(f"The {noun} does not exist, or was deleted.")
    _rows(model).filter(pk=key).update(is_abandoned=True)
    record_operator_event(
        f"{model._meta.model_name}.deleted",  # noqa: SLF001 Django's name
        target=f"{noun}:{row}"[:200],
        cause=cause,
        before={"object_key": row.object_key, "size_bytes": row.byte_count},
        org_slug=row.organization.slug,
    )


@operation
def delete_abandoned(_: UnitOfWork, model: type[StoredT], key: int) -> bool:
    """Delete the row of an abandoned object that was deleted from the storage, and subtract its bytes.

    Returns:
        Whether there was such a row.
    """
    row = _rows(model).select_for_update().filter(pk=key, is_abandoned=True).first()
    if row is None:
        return False
    _rows(model).filter(pk=key).delete()
    usage = StorageUsage.objects.filter(organization=row.organization_id)
    usage.update(byte_count=F("byte_count") - _bytes(row.byte_count))
    return True


def _rows(model: type[StoredT]) -> QuerySet[StoredT]:
    return model._default_manager.all()  # noqa: SLF001 Django's name


def _project_of(job: Job) -> Project:
    projects = Project.objects.select_related("organization__plan")
    return projects.get(organization__slug=job.org_slug, slug=job.project_slug)


def _bytes(number: int) -> Value:
    """Return a number for an expression. Django sends a plain one with 32 bits, and cuts off what is above."""
    return Value(number, output_field=BigIntegerField())


def _columns(project: Project, object_key: str, size_bytes: int, now: datetime) -> dict[str, object]:
    return {
        "organization_id": project.organization_id,
        "project": project,
        "object_key": object_key,
        "byte_count": size_bytes,
        "created_at": now,
        "upload_until": now + UPLOAD_TIME,
    }


def _is_free(model: type[StoredT], named: Q, now: datetime) -> bool:
    """Return whether a name is free. An upload that never came leaves its name to the next one."""
    row = _rows(model).select_for_update().filter(named, is_abandoned=False).first()
    if row is None:
        return True
    if row.completed_at is not None or now < row.upload_until:
        return False
    _rows(model).filter(pk=row.pk).update(is_abandoned=True)
    return True


def _reserve(project: Project, size_bytes: int) -> None:
    """Count bytes of an organization; last, because uploads of the organization wait for the row.

    Raises:
        StorageQuotaExceeded: The organization would have more bytes than its plan allows.
    """
    organization, limit = project.organization, project.organization.plan.max_stored_bytes
    StorageUsage.objects.bulk_create([StorageUsage(organization=organization)], ignore_conflicts=True)
    rows = StorageUsage.objects.filter(organization=organization)
    allowed = rows if limit is None else rows.filter(byte_count__lte=limit - size_bytes)
    if not allowed.update(byte_count=F("byte_count") + _bytes(size_bytes)):
        current = rows.values_list("byte_count", flat=True).get()
        raise StorageQuotaExceeded(
            f"The organization stores {current} bytes of artifacts and caches, and {size_bytes} more would exceed the "
            f"limit of its plan, {limit}. Wait until artifacts expire, or ask an operator for another plan.",
            limit=limit,
        )
