"""URLs of document 003 under `/api/v1/`."""

from django.urls import include, path

urlpatterns = [
    path("", include("orchestrator.protocols.shithub.heartbeat.urls")),
    path("", include("orchestrator.protocols.shithub.jobs.urls")),
    path("", include("orchestrator.protocols.shithub.clients.urls")),
]
