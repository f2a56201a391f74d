"""The worker that represents the dispatchers: jobs that write audit bundles are leased to it."""

from typing import Final

from django.conf import settings

from orchestrator.services.operator_events import record_operator_event
from orchestrator.services.unit_of_work import UnitOfWork, operation
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
        record_operator_event("worker.registered", target=worker.worker_id, actor=SYSTEM, after=after)
    return worker
