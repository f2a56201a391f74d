"""`/v1/breakers` and `/v1/incidents`."""

from rest_framework.routers import SimpleRouter

from orchestrator.protocols.native.breakers.views import BreakerViewSet, IncidentViewSet

router = SimpleRouter(trailing_slash=False)
router.register("breakers", BreakerViewSet, basename="breaker")
router.register("incidents", IncidentViewSet, basename="incident")

urlpatterns = router.urls
