"""`/v1/artifacts`, `/v1/objects`, and artifacts and caches of a lease."""

from django.urls import path
from rest_framework.routers import SimpleRouter

from orchestrator.protocols.native.artifacts.views import ArtifactViewSet, LeaseObjectViewSet, ObjectView

router = SimpleRouter(trailing_slash=False)
router.register("artifacts", ArtifactViewSet, basename="artifact")

urlpatterns = [
    path("runtime/leases/<str:lease_id>/artifacts", LeaseObjectViewSet.as_view({"post": "begin_artifact"})),
    path("runtime/leases/<str:lease_id>/caches/restore", LeaseObjectViewSet.as_view({"post": "restore_cache"})),
    path("runtime/leases/<str:lease_id>/caches/save", LeaseObjectViewSet.as_view({"post": "save_cache"})),
    path("objects/<str:address>", ObjectView.as_view()),
    *router.urls,
]
