"""URLs of the Delta CI protocol under `/api/v1/` (document 001)."""

from django.urls import include, path

urlpatterns = [
    path("", include("orchestrator.protocols.delta.runs.urls")),
    path("internal/", include("orchestrator.protocols.delta.runners.urls")),
]
