"""`/v1/notification-rules`."""

from rest_framework.routers import SimpleRouter

from orchestrator.protocols.native.notification_rules.views import NotificationRuleViewSet

router = SimpleRouter(trailing_slash=False)
router.register("notification-rules", NotificationRuleViewSet, basename="notification-rule")

urlpatterns = router.urls
