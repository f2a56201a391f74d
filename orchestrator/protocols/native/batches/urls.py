"""`/v1/batches` and `/v1/checks`."""

from rest_framework.routers import SimpleRouter

from orchestrator.protocols.native.batches.views import BatchViewSet, CheckViewSet

router = SimpleRouter(trailing_slash=False)
router.register("batches", BatchViewSet, basename="batch")
router.register("checks", CheckViewSet, basename="check")

urlpatterns = router.urls
