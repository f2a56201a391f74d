"""`/api/sources`."""

from rest_framework.routers import SimpleRouter

from orchestrator.protocols.stella.sources.views import JobSourceViewSet

router = SimpleRouter(trailing_slash=False)
router.register("sources", JobSourceViewSet, basename="stella-source")

urlpatterns = router.urls
