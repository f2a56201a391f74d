"""`/api/limits`."""

from rest_framework.routers import SimpleRouter

from orchestrator.protocols.stella.limits.views import SourceLimitViewSet

router = SimpleRouter(trailing_slash=False)
router.register("limits", SourceLimitViewSet, basename="stella-limit")

urlpatterns = router.urls
