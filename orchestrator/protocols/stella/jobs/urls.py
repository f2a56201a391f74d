"""`/api/jobs`."""

from rest_framework.routers import SimpleRouter

from orchestrator.protocols.stella.jobs.views import OrchestrationJobViewSet

router = SimpleRouter(trailing_slash=False)
router.register("jobs", OrchestrationJobViewSet, basename="orchestration-job")

urlpatterns = router.urls
