"""`/v1/bulk-actions`."""

from rest_framework.routers import SimpleRouter

from orchestrator.protocols.native.bulk_actions.views import BulkActionViewSet

router = SimpleRouter(trailing_slash=False)
router.register("bulk-actions", BulkActionViewSet, basename="bulk_action")

urlpatterns = router.urls
