"""`/v1/webhooks`."""

from rest_framework.routers import SimpleRouter

from orchestrator.protocols.native.webhooks.views import DeliveryViewSet, WebhookViewSet

router = SimpleRouter(trailing_slash=False)
router.register("webhooks", WebhookViewSet, basename="webhook")
router.register(r"webhooks/(?P<webhook_id>whk_[0-9a-z]{26})/deliveries", DeliveryViewSet, basename="delivery")

urlpatterns = router.urls
