"""The addresses of the reference ingest: `/v1/ingest/…` for clients, `/runs/…` for browsers."""

from django.urls import path

from orchestrator.protocols.ingest.pages import run_page, runs_page
from orchestrator.protocols.ingest.views import RunUploadView, RunView

urlpatterns = [
    path("v1/ingest/run", RunUploadView.as_view(), name="upload-run"),
    path("v1/ingest/runs/<slug:run_id>", RunView.as_view(), name="run"),
    path("runs/", runs_page, name="runs"),
    path("runs/<slug:run_id>/", run_page, name="run-page"),
]
