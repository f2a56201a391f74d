"""Records that a worker does not claim jobs although it is online, and why."""

from datetime import datetime

from leases.errors import StaleLease
from orchestrator.core.principals import actor_of
from orchestrator.core.unit_of_work import UnitOfWork, operation
from orchestrator.incidents.models import Incident, IncidentKind
from orchestrator.incidents.operations import open_incident
from runtime_jobs.db_time import database_now
from workers.models import Worker

MAX_MESSAGE = 500
DISK_LOW, REPEATED_FAILURES = "disk_low", "repeated_failures"


@operation
def report_unready(
    uow: UnitOfWork, *, worker: Worker, reason: str, message: str, session: str = "", now: datetime | None = None
) -> None:
    """Store why a worker does not claim. Repeated failures open an incident, unless the worker has one.

    Args:
        worker: The caller.
        reason: `disk_low` or `repeated_failures`.
        message: A sentence for operators.
        session: The ULID of the worker's process, or empty.

    Raises:
        StaleLease: A newer process of the worker has replaced this session.
    """
    row = Worker.objects.locked().get(pk=worker.pk)
    if session and row.session > session:
        raise StaleLease("lease_ended")
    _store(row, message[:MAX_MESSAGE])
    if reason != REPEATED_FAILURES or Incident.objects.unresolved().filter(worker_ulid=row.worker_id).exists():
        return
    open_incident(
        uow,
        IncidentKind.WORKER,
        org_slug="",
        job_type="",
        worker_ulid=row.worker_id,
        reason=reason,
        summary=f"The worker {row.slug} does not claim jobs: {message}",
        now=now or database_now(),
        actor=actor_of(row),
    )


def clear_unready(worker: Worker) -> None:
    """Take note that the worker claims again. Without a stored reason this is no query."""
    if worker.unready_reason:
        _store(worker, "")


def _store(worker: Worker, message: str) -> None:
    worker.unready_reason = message
    worker.save(update_fields=["unready_reason"])  # not `update`: the cache of principals must learn of it
