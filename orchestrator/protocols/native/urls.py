"""URLs of the native API under `/v1/`, one module per resource."""

from django.urls import include, path

urlpatterns = [
    path("", include("orchestrator.protocols.native.leases.urls")),
    path("", include("orchestrator.protocols.native.workflow_jobs.urls")),
    path("", include("orchestrator.protocols.native.jobs.urls")),
    path("", include("orchestrator.protocols.native.batches.urls")),
    path("", include("orchestrator.protocols.native.limits.urls")),
    path("", include("orchestrator.protocols.native.breakers.urls")),
    path("", include("orchestrator.protocols.native.incidents.urls")),
    path("", include("orchestrator.protocols.native.pools.urls")),
    path("", include("orchestrator.protocols.native.usage.urls")),
    path("", include("orchestrator.protocols.native.secrets.urls")),
    path("", include("orchestrator.protocols.native.artifacts.urls")),
    path("", include("orchestrator.protocols.native.identity.urls")),
    path("", include("orchestrator.protocols.native.signing_keys.urls")),
    path("", include("orchestrator.protocols.native.payload_schemas.urls")),
    path("", include("orchestrator.protocols.native.packs.urls")),
    path("", include("orchestrator.protocols.native.webhooks.urls")),
    path("", include("orchestrator.protocols.native.notification_rules.urls")),
    path("", include("orchestrator.protocols.native.schedules.urls")),
    path("", include("orchestrator.protocols.native.bulk_actions.urls")),
]
