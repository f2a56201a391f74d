"""`/v1/limits` and `/v1/quotas`."""

from rest_framework.routers import SimpleRouter

from orchestrator.protocols.native.limits.views import LimitViewSet, QuotaViewSet

router = SimpleRouter(trailing_slash=False)
router.register("limits", LimitViewSet, basename="limit")
router.register("quotas", QuotaViewSet, basename="quota")

urlpatterns = router.urls
