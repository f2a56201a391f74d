"""`/v1/runtime/leases`."""

from django.urls import path
from rest_framework.routers import SimpleRouter

from orchestrator.http.asgi.long_poll import long_poll
from orchestrator.protocols.native.leases.batch_views import LeaseBatchViewSet
from orchestrator.protocols.native.leases.views import LeaseViewSet, WorkerReadinessViewSet

router = SimpleRouter(trailing_slash=False)
router.register("runtime/leases", LeaseBatchViewSet, basename="runtime-leases")
router.register("runtime/leases", LeaseViewSet, basename="runtime-lease")
router.register("runtime/workers", WorkerReadinessViewSet, basename="runtime-worker")

urlpatterns = [
    # A claim can be a long poll. This pattern precedes the router's pattern for the same path.
    path("runtime/leases", long_poll(LeaseViewSet.as_view({"post": "create"}))),
    *router.urls,
]
