"""The worker that represents the dispatchers, to which jobs that write audit bundles are leased, and their record."""

from datetime import datetime
from typing import Final

from django.conf import settings

from orchestrator.core.cause import Cause
from orchestrator.core.operator_events import record_operator_event
from orchestrator.core.unit_of_work import UnitOfWork, operation
from orchestrator.evidence.models import AuditBundle
from runtime_jobs.db_time import database_now
from runtime_jobs.events import SYSTEM
from workers.models import Pool, Worker
from workers.registry.tokens import WORKER_PREFIX, digest_of, new_token

WORKER_SLUG: Final = "audit-exports"
MAX_EXPORTS: Final = 4  # at a time, of the whole installation
_POOL: Final = {"description": "Audit bundles, written by the dispatchers", "least_isolation": "none"}


@operation
def ensure_export_worker(_: UnitOfWork) -> Worker:
    """Return the worker of the dispatchers. The first call creates it, and its pool.

    All dispatchers share it, each export has a lease of its own. Its token is thrown away, so no client can use it.
    """
    pool, _is_new = Pool.objects.get_or_create(slug=settings.EXPORT_POOL, defaults=_POOL)
    columns = {
        "pool": pool,
        "capacity": MAX_EXPORTS,
        "capabilities": [],
        "digest": digest_of(new_token(WORKER_PREFIX)),
    }
    worker, is_new = Worker.objects.select_related("pool").get_or_create(slug=WORKER_SLUG, defaults=columns)
    if is_new:
        after = {"slug": worker.slug, "pool": pool.slug, "capacity": worker.capacity}
        record_operator_event("worker.registered", target=worker.worker_id, cause=Cause(SYSTEM), after=after)
    return worker


@operation
def record_audit_bundle(
    _: UnitOfWork,
    *,
    org_slug: str,
    job_ulid: str,
    since: datetime,
    until: datetime,
    size_bytes: int,
    sha256: str,
    key_id: str,
    lines: dict[str, int],
    now: datetime | None = None,
) -> AuditBundle:
    """Record a bundle that was stored, with its digest and its key, which remain when the artifact has expired.

    Args:
        org_slug: The organization.
        job_ulid: The attempt of the export job.
        since: The beginning of the time that the bundle covers.
        until: The end of that time.
        size_bytes: The size of the file.
        sha256: The digest of the file.
        key_id: The key that has signed it.
        lines: The number of lines of each data file.
    """
    return AuditBundle.objects.create(
        org_slug=org_slug,
        job_ulid=job_ulid,
        since=since,
        until=until,
        byte_count=size_bytes,
        sha256=sha256,
        key_id=key_id,
        lines=lines,
        written_at=now or database_now(),
    )
