"""The calls of runners that `orchestrator.http.fast_path` may answer."""

from orchestrator.http.fast_path import DocumentFormat, FastRoute
from orchestrator.protocols.shithub.errors import CONTENT_TYPE, answer_to, render
from orchestrator.protocols.shithub.heartbeat.views import RunnerHeartbeatView
from orchestrator.protocols.shithub.jobs.views import CancelCheckView, LogView

_FORMAT = DocumentFormat(render, answer_to, CONTENT_TYPE, CONTENT_TYPE)

ROUTES = (
    FastRoute("/api/v1/runners/heartbeat", RunnerHeartbeatView.answer_call, None, format=_FORMAT),
    FastRoute("/api/v1/jobs/<job_id>/logs", LogView.answer_call, None, format=_FORMAT),
    FastRoute("/api/v1/jobs/<job_id>/cancel-check", CancelCheckView.answer_call, None, format=_FORMAT),
)
