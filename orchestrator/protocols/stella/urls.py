"""URLs of document 004 under `/api/`, one module per resource. `/runs/` is in `runs.urls`."""

from django.urls import include, path

urlpatterns = [
    path("", include("orchestrator.protocols.stella.events.urls")),
    path("", include("orchestrator.protocols.stella.jobs.urls")),
    path("", include("orchestrator.protocols.stella.replays.urls")),
    path("", include("orchestrator.protocols.stella.quotas.urls")),
    path("", include("orchestrator.protocols.stella.limits.urls")),
    path("", include("orchestrator.protocols.stella.sources.urls")),
    path("", include("orchestrator.protocols.stella.dashboard.urls")),
    path("", include("orchestrator.protocols.stella.graph.urls")),
]
