"""`/v1/schedules`."""

from rest_framework.routers import SimpleRouter

from orchestrator.protocols.native.schedules.views import ScheduleViewSet

router = SimpleRouter(trailing_slash=False)
router.register("schedules", ScheduleViewSet, basename="schedule")

urlpatterns = router.urls
