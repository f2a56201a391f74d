"""URLs of Bencher's API under `/v0/` (document 002)."""

from django.urls import include, path

urlpatterns = [
    path("", include("orchestrator.protocols.bencher.channel.urls")),
    path("", include("orchestrator.protocols.bencher.jobs.urls")),
    path("", include("orchestrator.protocols.bencher.organizations.urls")),
    path("", include("orchestrator.protocols.bencher.registry_tokens.urls")),
    path("", include("orchestrator.protocols.bencher.reports.urls")),
    path("", include("orchestrator.protocols.bencher.resources.urls")),
    path("", include("orchestrator.protocols.bencher.runners.urls")),
    path("", include("orchestrator.protocols.bencher.runs.urls")),
    path("", include("orchestrator.protocols.bencher.server.urls")),
    path("", include("orchestrator.protocols.bencher.specs.urls")),
]
