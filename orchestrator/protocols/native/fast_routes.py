"""The calls of the native API that `orchestrator.http.fast_path` may answer."""

from orchestrator.http.auth.permissions import HasScope, IsWorker
from orchestrator.http.fast_path import FastRoute
from orchestrator.protocols.native.jobs import views as jobs
from orchestrator.protocols.native.leases import batch_views as batches
from orchestrator.protocols.native.leases import calls as leases
from runtime_jobs.models.tenants import Scope

_SUBMITTER, _WORKER = HasScope(Scope.JOBS_WRITE), IsWorker()
_LEASES = "/v1/runtime/leases"
_COLLECTION = "GET, HEAD, POST"

ROUTES = (
    FastRoute("/v1/jobs", jobs.submit, _SUBMITTER, allow=_COLLECTION, arguments=(jobs.ANY_JOBS,)),
    FastRoute("/v1/runtime/jobs", jobs.submit, _SUBMITTER, allow=_COLLECTION, arguments=(jobs.RUNTIME_JOBS,)),
    FastRoute("/v1/jobs/bulk", jobs.submit_bulk, _SUBMITTER, arguments=(jobs.ANY_JOBS,)),
    FastRoute("/v1/runtime/jobs/bulk", jobs.submit_bulk, _SUBMITTER, arguments=(jobs.RUNTIME_JOBS,)),
    FastRoute(_LEASES, leases.claim, _WORKER, is_long_poll=True),
    FastRoute(f"{_LEASES}/<lease_id>/acknowledge", leases.acknowledge, _WORKER),
    FastRoute(f"{_LEASES}/<lease_id>/heartbeat", leases.heartbeat, _WORKER),
    FastRoute(f"{_LEASES}/<lease_id>/complete", leases.complete, _WORKER),
    FastRoute(f"{_LEASES}/<lease_id>/fail", leases.fail, _WORKER),
    FastRoute(f"{_LEASES}/acknowledge", batches.acknowledge_batch, _WORKER),
    FastRoute(f"{_LEASES}/heartbeat", batches.heartbeat_batch, _WORKER),
    FastRoute(f"{_LEASES}/complete", batches.complete_batch, _WORKER),
    FastRoute(f"{_LEASES}/fail", batches.fail_batch, _WORKER),
)
