"""`/v1/breakers`."""

from rest_framework.routers import SimpleRouter

from orchestrator.protocols.native.breakers.views import BreakerViewSet

router = SimpleRouter(trailing_slash=False)
router.register("breakers", BreakerViewSet, basename="breaker")

urlpatterns = router.urls
