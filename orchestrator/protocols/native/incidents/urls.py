"""`/v1/incidents` and `/v1/incident-modes`."""

from rest_framework.routers import SimpleRouter

from orchestrator.protocols.native.incidents.views import IncidentModeViewSet, IncidentViewSet

router = SimpleRouter(trailing_slash=False)
router.register("incidents", IncidentViewSet, basename="incident")
router.register("incident-modes", IncidentModeViewSet, basename="incident-mode")

urlpatterns = router.urls
