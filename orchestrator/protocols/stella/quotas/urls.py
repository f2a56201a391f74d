"""`/api/quotas`."""

from rest_framework.routers import SimpleRouter

from orchestrator.protocols.stella.quotas.views import TenantQuotaViewSet

router = SimpleRouter(trailing_slash=False)
router.register("quotas", TenantQuotaViewSet, basename="stella-quota")

urlpatterns = router.urls
