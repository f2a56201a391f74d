"""`/v1/pools`."""

from rest_framework.routers import SimpleRouter

from orchestrator.protocols.native.pools.views import PoolOperationsViewSet, PoolViewSet

router = SimpleRouter(trailing_slash=False)
router.register("pools", PoolOperationsViewSet, basename="pool-operation")
router.register("pools", PoolViewSet, basename="pool")

urlpatterns = router.urls
