"""Permissions of runners.

A runner authenticates as a worker, by token or client certificate. A pool can accept the lease id instead
(`trusts_lease_ids`), because the real Delta CI runner sends no credentials.
"""

from typing import Any

from rest_framework.exceptions import NotAuthenticated
from rest_framework.request import Request

from leases.errors import StaleLease
from leases.models import Lease
from orchestrator.core.principals import WorkerPrincipal
from orchestrator.http.api.calls import AuthenticatedRequest
from orchestrator.http.auth.authentication import touch_last_seen
from orchestrator.http.auth.permissions import IsWorker
from runtime_jobs.errors import Invalid
from runtime_jobs.identifiers import is_id
from workers.models import Pool, Worker
from workers.registry.models import WorkerState


class CanUseLease(IsWorker):
    """Admits workers, and unauthenticated callers if any pool accepts lease ids.

    `worker_for_lease` checks the lease.
    """

    def has_permission(self, request: AuthenticatedRequest, view: Any) -> bool:
        if request.user is not None:
            return super().has_permission(request, view)
        if not Pool.objects.filter(trusts_lease_ids=True).exists():
            raise NotAuthenticated
        return True


def worker_for_lease(request: Request, *, lease_id: str, job_id: str | None) -> Worker:
    """Return the worker of the lease.

    Args:
        request: The request with the message.
        lease_id: The lease id in the message.
        job_id: The job id in the message, if it has one.

    Raises:
        StaleLease: `unknown_lease`, also for a lease that the caller may not use: the response does not disclose
            which ids exist.
        Invalid: The lease belongs to another job than `job_id`.
    """
    leases = Lease.objects.select_related("worker__pool", "job").filter(lease_ulid=lease_id)
    lease = leases.first() if is_id(lease_id, "rtl") else None
    if lease is None or not _may_use_leases_of(lease.worker, request.user):
        raise StaleLease("unknown_lease")
    if job_id not in {None, lease.job.root_job_ulid}:
        raise Invalid({"job_id": ["The lease belongs to another job."]})
    if request.user is None:
        touch_last_seen(lease.worker)
    return lease.worker


def _may_use_leases_of(worker: Worker, caller: Any) -> bool:
    if isinstance(caller, WorkerPrincipal):
        return caller.worker.pk == worker.pk
    return worker.pool.trusts_lease_ids and worker.state != WorkerState.REVOKED
