"""`/v1/artifacts`, `/v1/objects`, and artifacts and caches of a lease."""

from django.urls import path, re_path
from rest_framework.routers import SimpleRouter

from orchestrator.protocols.native.artifacts.openapi import ARTIFACT_ID_PATTERN
from orchestrator.protocols.native.artifacts.views import (
    ArtifactPieceViewSet,
    ArtifactViewSet,
    LeaseObjectViewSet,
    ObjectView,
)

router = SimpleRouter(trailing_slash=False)
router.register("artifacts", ArtifactViewSet, basename="artifact")

_OF_LEASE = rf"^runtime/leases/(?P<lease_id>[^/]+)/artifacts/(?P<artifact_id>{ARTIFACT_ID_PATTERN})"

urlpatterns = [
    path("runtime/leases/<str:lease_id>/artifacts", LeaseObjectViewSet.as_view({"post": "begin_artifact"})),
    re_path(rf"{_OF_LEASE}/pieces/(?P<offset>[0-9]{{1,15}})\Z", ArtifactPieceViewSet.as_view({"put": "put_piece"})),
    re_path(rf"{_OF_LEASE}/close\Z", LeaseObjectViewSet.as_view({"post": "close_artifact"})),
    path("runtime/leases/<str:lease_id>/caches/restore", LeaseObjectViewSet.as_view({"post": "restore_cache"})),
    path("runtime/leases/<str:lease_id>/caches/save", LeaseObjectViewSet.as_view({"post": "save_cache"})),
    path("objects/<str:address>", ObjectView.as_view()),
    *router.urls,
]
