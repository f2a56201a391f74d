"""`/api/jobs/{id}/replay` and `/api/jobs/{id}/manifest`."""

from django.urls import re_path

from orchestrator.protocols.stella.replays.views import OrchestrationReplayViewSet
from orchestrator.protocols.stella.visible_jobs import UUID_PATTERN

JOB = rf"^jobs/(?P<job_id>{UUID_PATTERN})"

urlpatterns = [
    re_path(rf"{JOB}/replay\Z", OrchestrationReplayViewSet.as_view({"post": "create", "get": "retrieve"})),
    re_path(rf"{JOB}/manifest\Z", OrchestrationReplayViewSet.as_view({"get": "manifest"})),
]
