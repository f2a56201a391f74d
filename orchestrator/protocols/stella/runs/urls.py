"""`/runs/{runId}/…` for programs. The pages of runs for browsers are `/runs/` and `/runs/{id}/`."""

from django.urls import re_path

from orchestrator.protocols.stella.runs.views import OrchestrationRunLogViewSet, OrchestrationRunViewSet
from orchestrator.protocols.stella.visible_jobs import UUID_PATTERN

_RUN = rf"^runs/(?P<run_id>{UUID_PATTERN})"

urlpatterns = [
    re_path(rf"{_RUN}/logs\Z", OrchestrationRunLogViewSet.as_view({"get": "follow_log"})),
    re_path(rf"{_RUN}/artifacts\Z", OrchestrationRunViewSet.as_view({"get": "list_artifacts"})),
    re_path(
        rf"{_RUN}/artifacts/(?P<name>[^\x00]{{1,1024}})\Z",
        OrchestrationRunViewSet.as_view({"get": "download_artifact"}),
    ),
    re_path(rf"{_RUN}/heartbeat\Z", OrchestrationRunViewSet.as_view({"post": "heartbeat"})),
]
