"""`/v1/…`: the native API."""

from django.urls import include, path
from rest_framework.routers import SimpleRouter

from orchestrator.http.asgi.long_poll import long_poll
from orchestrator.protocols.native.breakers import BreakerViewSet, IncidentViewSet
from orchestrator.protocols.native.jobs import AnyJobViewSet, JobViewSet
from orchestrator.protocols.native.leases import LeaseViewSet
from orchestrator.protocols.native.limits import LimitViewSet
from orchestrator.protocols.native.many import ManyLeasesViewSet
from orchestrator.protocols.native.pool_verbs import PoolVerbs
from orchestrator.protocols.native.pools import PoolViewSet
from orchestrator.protocols.native.quotas import QuotaViewSet

router = SimpleRouter(trailing_slash=False)
router.register("runtime/leases", ManyLeasesViewSet, basename="runtime-leases")
router.register("runtime/leases", LeaseViewSet, basename="runtime-lease")
router.register("jobs", AnyJobViewSet, basename="job")
router.register("runtime/jobs", JobViewSet, basename="runtime-job")
router.register("limits", LimitViewSet, basename="limit")
router.register("pools", PoolVerbs, basename="pool-verb")
router.register("quotas", QuotaViewSet, basename="quota")
router.register("breakers", BreakerViewSet, basename="breaker")
router.register("incidents", IncidentViewSet, basename="incident")
router.register("pools", PoolViewSet, basename="pool")

urlpatterns = [
    # The claim may wait; it stands before the router's own route of the same address.
    path("runtime/leases", long_poll(LeaseViewSet.as_view({"post": "create"}))),
    path("", include(router.urls)),
]
