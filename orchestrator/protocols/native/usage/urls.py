"""`/v1/usage`."""

from rest_framework.routers import SimpleRouter

from orchestrator.protocols.native.usage.views import UsageViewSet

router = SimpleRouter(trailing_slash=False)
router.register("usage", UsageViewSet, basename="usage")

urlpatterns = router.urls
