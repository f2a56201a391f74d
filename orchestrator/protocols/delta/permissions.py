"""Who may speak at this door: a worker by its token or its certificate. Where an operator has allowed it for a pool,
whoever knows the lease's id, because the real runner sends no credentials."""

from typing import Any

from rest_framework.exceptions import NotAuthenticated
from rest_framework.request import Request

from leases.errors import StaleLease
from leases.models import Lease
from orchestrator.http.auth.authentication import touch_last_seen
from orchestrator.http.auth.permissions import IsWorker
from orchestrator.http.auth.principals import WorkerPrincipal
from runtime_jobs.errors import Invalid
from runtime_jobs.identifiers import is_id
from workers.models import Pool, Worker
from workers.registry.models import WorkerState


class CanUseLease(IsWorker):
    """A worker. Nobody at all, too, where any pool trusts lease ids: which lease it is is asked later."""

    def has_permission(self, request: Request, view: Any) -> bool:
        if request.user is not None:
            return super().has_permission(request, view)
        if not Pool.objects.filter(trusts_lease_ids=True).exists():
            raise NotAuthenticated
        return True


def worker_for_lease(request: Request, *, lease_id: str, job_id: str | None) -> Worker:
    """The worker whose lease the message is about.

    Raises StaleLease `unknown_lease`, also for one that this caller may not speak for: there is no telling which ids
    exist. Raises Invalid for a message about another job than the lease's."""
    known = Lease.objects.select_related("worker__pool", "job").filter(lease_ulid=lease_id)
    lease = known.first() if is_id(lease_id, "rtl") else None
    if lease is None or not _may_speak_for(lease.worker, request.user):
        raise StaleLease("unknown_lease")
    if job_id not in {None, lease.job.root_job_ulid}:
        raise Invalid({"job_id": ["The lease is another job's."]})
    if request.user is None:
        touch_last_seen(lease.worker)
    return lease.worker


def _may_speak_for(worker: Worker, caller: Any) -> bool:
    if isinstance(caller, WorkerPrincipal):
        return caller.worker.pk == worker.pk
    return worker.pool.trusts_lease_ids and worker.state != WorkerState.REVOKED
