"""Runners of the Bencher protocol: workers of the pool `RUNNER_POOL`, their keys and their hardware specs.

A key is returned once, by the operation that creates it. Only its digest is stored.
"""

from typing import Any
from uuid import UUID

from django.conf import settings

from orchestrator.core import work_signals
from orchestrator.core.cause import Cause
from orchestrator.core.operator_events import changed_members, record_operator_event
from orchestrator.core.unit_of_work import UnitOfWork, operation
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import NotFound, ResourceConflict
from runtime_jobs.resource_names import slugify
from workers.models import HardwareSpec, Pool, Worker, WorkerSpec
from workers.registry.models import PoolPolicy, WorkerState
from workers.registry.tokens import RUNNER_PREFIX, digest_of, new_key

MAX_SLUG_LENGTH = 63  # the column is that of all workers
CAPACITY = 256  # jobs at once: a runner may have several open channels
POOL_DEFAULTS = {
    "description": "Runners of the Bencher protocol.",
    "least_isolation": "none",
    "policy": PoolPolicy.FIFO,
    "aging": False,  # the protocol promises strict priorities
}


@operation
def create_runner(
    _: UnitOfWork,
    *,
    name: str,
    slug: str | None = None,
    cause: Cause,
) -> tuple[Worker, str]:
    """Create a runner, and the pool of runners if it is missing.

    Args:
        name: A name for people, not unique.
        slug: The unique name in URLs; by default that of the name.

    Returns:
        The runner and its key.

    Raises:
        ResourceConflict: A worker with this slug exists.
    """
    created_at = cause.now or database_now()
    slug = slug or default_slug(name)
    _require_free(slug)
    pool, _is_new = Pool.objects.get_or_create(slug=settings.RUNNER_POOL, defaults=POOL_DEFAULTS)
    key = new_key(RUNNER_PREFIX)
    worker = Worker.objects.create(
        pool=pool,
        slug=slug,
        name=name,
        digest=digest_of(key),
        capacity=CAPACITY,
        capabilities=[],
        created_at=created_at,
        modified_at=created_at,
    )
    record_operator_event(
        "runner.created",
        target=worker.worker_id,
        cause=cause.at(created_at),
        after={"name": name, "slug": slug, "pool": pool.slug},
    )
    return worker, key


@operation
def change_runner(
    uow: UnitOfWork,
    *,
    worker_id: str,
    name: str | None = None,
    slug: str | None = None,
    archived: bool | None = None,
    cause: Cause,
) -> Worker:
    """Rename, archive or restore a runner.

    The key of an archived runner is refused and it gets no new job, also over open connections. Jobs in execution
    continue. A restored runner has the same key as before.

    Args:
        name: The new name, or None for no change. The slug stays.
        slug: The new slug, or None for no change.
        archived: True archives, False restores, None changes nothing.

    Raises:
        NotFound: The runner does not exist.
        ResourceConflict: Another worker has this slug, or the runner was revoked.
    """
    worker, changed_at = _lock_runner(worker_id), cause.now or database_now()
    if slug is not None and slug != worker.slug:
        _require_free(slug)
    before, was_archived = _description(worker), worker.archived_at is not None
    worker.name = worker.name if name is None else name
    worker.slug = worker.slug if slug is None else slug
    if archived is not None:
        worker.archived_at = changed_at if archived else None
        if archived:
            worker.state = WorkerState.ARCHIVED
        elif worker.state == WorkerState.ARCHIVED:
            worker.state = WorkerState.ACTIVE
    worker.modified_at = changed_at
    worker.save(update_fields=["name", "slug", "archived_at", "state", "modified_at"])
    before, after = changed_members(before, _description(worker))
    if after:
        record_operator_event(
            "runner.changed", target=worker_id, cause=cause.at(changed_at), before=before, after=after
        )
    if was_archived and archived is False:
        _wake_claims(uow, worker)  # over its open connections
    return worker


@operation
def rotate_runner_key(
    _: UnitOfWork,
    *,
    worker_id: str,
    cause: Cause,
) -> tuple[Worker, str]:
    """Give a runner a new key. The old one is refused at once; open connections stay.

    Returns:
        The runner and its key.

    Raises:
        NotFound: The runner does not exist.
        ResourceConflict: The runner is archived or was revoked.
    """
    worker, rotated_at = _lock_runner(worker_id), cause.now or database_now()
    if worker.archived_at is not None:
        raise ResourceConflict(f"The runner {worker.slug} is archived. Restore it before you rotate its key.")
    key = new_key(RUNNER_PREFIX)
    worker.digest, worker.modified_at = digest_of(key), rotated_at
    worker.save(update_fields=["digest", "modified_at"])
    record_operator_event(
        "runner.key_rotated",
        target=worker_id,
        cause=cause.at(rotated_at),
    )
    return worker, key


@operation
def add_runner_spec(
    uow: UnitOfWork,
    *,
    worker_id: str,
    spec_uuid: UUID,
    cause: Cause,
) -> HardwareSpec:
    """Associate a hardware spec with a runner, which then gets the jobs that ask for it. An archived spec is accepted.

    Raises:
        NotFound: The runner or the spec does not exist.
        ResourceConflict: They are associated already, or the runner was revoked.
    """
    worker = _lock_runner(worker_id)
    spec = HardwareSpec.objects.select_for_update(no_key=True).filter(uuid=spec_uuid).first()  # a deletion waits
    if spec is None:
        raise NotFound(f"The spec {spec_uuid} does not exist.")
    _association, is_new = WorkerSpec.objects.get_or_create(worker=worker, spec=spec)
    if not is_new:
        raise ResourceConflict(f"The runner {worker.slug} is already associated with the spec {spec.slug}.")
    record_operator_event(
        "runner.spec_added",
        target=worker_id,
        cause=cause,
        after={"spec": str(spec_uuid), "slug": spec.slug},
    )
    _wake_claims(uow, worker)
    return spec


def _wake_claims(uow: UnitOfWork, worker: Worker) -> None:
    """Repeat the waiting claims of the pool after the commit: those of the runner fit more jobs from then on."""
    uow.after_commit(work_signals.wake, worker.pool.slug)
    uow.after_commit(work_signals.announce, worker.pool.slug)


@operation
def remove_runner_spec(
    _: UnitOfWork,
    *,
    worker_id: str,
    spec_uuid: UUID,
    cause: Cause,
) -> None:
    """End the association of a runner with a hardware spec. Its running jobs continue.

    Raises:
        NotFound: The runner does not exist, or is not associated with the spec.
    """
    worker = _lock_runner(worker_id, allow_revoked=True)
    association = WorkerSpec.objects.select_related("spec").filter(worker=worker, spec__uuid=spec_uuid).first()
    if association is None:
        raise NotFound(f"The runner {worker.slug} is not associated with the spec {spec_uuid}.")
    association.delete()
    record_operator_event(
        "runner.spec_removed",
        target=worker_id,
        cause=cause,
        before={"spec": str(spec_uuid), "slug": association.spec.slug},
    )


def default_slug(name: str) -> str:
    """Return the slug of a runner with this name."""
    return slugify(name)[:MAX_SLUG_LENGTH].rstrip("-")


def _lock_runner(worker_id: str, *, allow_revoked: bool = False) -> Worker:
    worker = Worker.objects.runners().locked().select_related("pool").filter(worker_id=worker_id).first()
    if worker is None:
        raise NotFound("The runner does not exist.")
    if worker.state == WorkerState.REVOKED and not allow_revoked:
        raise ResourceConflict(f"The runner {worker.slug} was revoked, which is final. Create another runner.")
    return worker


def _require_free(slug: str) -> None:
    if Worker.objects.filter(slug=slug).exists():
        raise ResourceConflict(f"A runner or worker with the slug {slug} exists already. Choose another slug.")


def _description(worker: Worker) -> dict[str, Any]:
    """Return what the audit log records about a runner."""
    archived_at = worker.archived_at and worker.archived_at.isoformat()
    return {"name": worker.name, "slug": worker.slug, "archived_at": archived_at, "state": str(worker.state)}
