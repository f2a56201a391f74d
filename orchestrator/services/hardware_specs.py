"""Hardware specs: created, changed, archived and deleted by operators. At most one is the fallback."""

from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import connection
from django.db.models.fields.json import KT

from orchestrator.core.cause import Cause
from orchestrator.core.operator_events import record_change_of, record_event_of
from orchestrator.core.unit_of_work import UnitOfWork, operation
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import NotFound, ResourceConflict
from runtime_jobs.models import Job
from runtime_jobs.resource_names import slugify, with_random_suffix
from runtime_jobs.specs.oci import OCI
from workers.models import HardwareSpec
from workers.registry.models import spec_archived

# A part of the names of the constraints on slug and fallback: another transaction may take either meanwhile.
_CONSTRAINTS = "hardwarespec"


@operation(retry_unique_violation=_CONSTRAINTS)
def create_spec(
    _: UnitOfWork,
    *,
    name: str,
    slug: str | None = None,
    hardware: dict[str, Any],
    fallback: bool = False,
    cause: Cause,
) -> HardwareSpec:
    """Create a hardware spec.

    Args:
        name: A name for people, not unique.
        slug: The name in URLs; by default that of the name. One that is taken gets a random suffix.
        hardware: The values of `os`, `architecture`, `sandbox`, `cpu`, `memory`, `disk` and `network`. They never
            change.
        fallback: Make the spec the default of jobs that name none, in place of any other spec.
    """
    created_at = cause.now or database_now()
    wanted = slug or slugify(name)
    if HardwareSpec.objects.filter(slug=wanted).exists():
        wanted = with_random_suffix(wanted)
    if fallback:
        _clear_fallback(cause, created_at)
    spec = HardwareSpec.objects.create(
        name=name,
        slug=wanted,
        **hardware,
        fallback_at=created_at if fallback else None,
        created_at=created_at,
        modified_at=created_at,
    )
    record_event_of(spec, "created", cause.at(created_at), after=_description(spec) | hardware)
    return spec


@operation(retry_unique_violation=_CONSTRAINTS)
def change_spec(
    _: UnitOfWork,
    *,
    spec_uuid: UUID,
    name: str | None = None,
    slug: str | None = None,
    fallback: bool | None = None,
    archived: bool | None = None,
    cause: Cause,
) -> HardwareSpec:
    """Rename, archive or restore a spec, or make it the fallback.

    Args:
        name: The new name, or None for no change. The slug stays.
        slug: The new slug, or None for no change.
        fallback: True makes the spec the only fallback, False ends that, None changes nothing.
        archived: True archives the spec: it is no fallback any more, whatever `fallback` says. False restores it.

    Raises:
        NotFound: The spec does not exist.
        ResourceConflict: Another spec has this slug.
    """
    spec, changed_at = _lock_spec(spec_uuid), cause.now or database_now()
    if slug is not None and slug != spec.slug and HardwareSpec.objects.filter(slug=slug).exists():
        raise ResourceConflict(f"A spec with the slug {slug} exists already. Choose another slug.")
    before = _description(spec)
    spec.name = spec.name if name is None else name
    spec.slug = spec.slug if slug is None else slug
    if archived:
        spec.archived_at, spec.fallback_at = changed_at, None
        spec_archived.send(HardwareSpec, spec=spec, now=changed_at)
    elif archived is False:
        spec.archived_at = None
    if fallback and not archived:
        _clear_fallback(cause, changed_at, exempt=spec)
        spec.fallback_at = spec.fallback_at or changed_at
    elif fallback is False:
        spec.fallback_at = None
    spec.modified_at = changed_at
    spec.save(update_fields=["name", "slug", "archived_at", "fallback_at", "modified_at"])
    record_change_of(spec, cause.at(changed_at), before=before, after=_description(spec))
    return spec


@operation
def delete_spec(
    _: UnitOfWork,
    *,
    spec_uuid: UUID,
    cause: Cause,
) -> None:
    """Delete a spec that no runner provides and no job asks for. No other spec becomes the fallback.

    Raises:
        NotFound: The spec does not exist.
        ResourceConflict: A runner or a job refers to the spec.
    """
    spec = _lock_spec(spec_uuid, delete=True)
    runners = spec.worker_specs.count()
    if runners:
        raise ResourceConflict(f"The spec {spec.slug} is associated with runners ({runners}). Remove it there first.")
    if _has_jobs(spec):
        raise ResourceConflict(f"Jobs refer to the spec {spec.slug}. Archive it instead.")
    record_event_of(spec, "deleted", cause, before=_description(spec))
    spec.delete()


def lock_active(spec: HardwareSpec) -> bool:
    """Keep a spec from being archived or deleted until the end of the transaction, for a row that refers to it.

    The lock is shared: any number of transactions may hold it. Take it before the rows of testbeds, because archiving
    locks the spec and then its testbeds.

    Args:
        spec: A spec that was read without a lock.

    Returns:
        Whether the spec is active. One that was archived or deleted meanwhile is not.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT FROM workers_hardwarespec WHERE id = %s AND archived_at IS NULL FOR SHARE",
            [spec.pk],
        )
        return cursor.rowcount == 1


def _lock_spec(spec_uuid: UUID, *, delete: bool = False) -> HardwareSpec:
    """Lock a spec. Only a lock for deletion waits for transactions that insert a reference to the spec."""
    spec = HardwareSpec.objects.select_for_update(no_key=not delete).filter(uuid=spec_uuid).first()
    if spec is None:
        raise NotFound(f"The spec {spec_uuid} does not exist.")
    return spec


def _clear_fallback(cause: Cause, now: datetime, *, exempt: HardwareSpec | None = None) -> None:
    specs = HardwareSpec.objects.select_for_update(no_key=True).filter(fallback_at__isnull=False)
    for spec in specs if exempt is None else specs.exclude(pk=exempt.pk):
        before = _description(spec)
        spec.fallback_at, spec.modified_at = None, now
        spec.save(update_fields=["fallback_at", "modified_at"])
        record_change_of(spec, cause.at(now), before=before, after=_description(spec))


def _has_jobs(spec: HardwareSpec) -> bool:
    """Return whether a job asks for the spec, by the index `jobs_of_hardware_spec`."""
    return Job.objects.alias(named=KT("spec__spec")).filter(job_type=OCI, named=str(spec.uuid)).exists()


def _description(spec: HardwareSpec) -> dict[str, Any]:
    """Return what the audit log records about changes of a spec."""
    return {
        "name": spec.name,
        "slug": spec.slug,
        "archived_at": spec.archived_at and spec.archived_at.isoformat(),
        "fallback_at": spec.fallback_at and spec.fallback_at.isoformat(),
    }
