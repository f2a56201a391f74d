"""`/v1/runtime/jobs` and `/v1/jobs`."""

from rest_framework.routers import SimpleRouter

from orchestrator.protocols.native.jobs.views import AnyJobViewSet, RuntimeJobViewSet

router = SimpleRouter(trailing_slash=False)
router.register("jobs", AnyJobViewSet, basename="job")
router.register("runtime/jobs", RuntimeJobViewSet, basename="runtime-job")

urlpatterns = router.urls
