"""The addresses of the pages of workflow runs, for browsers."""

from django.urls import path

from orchestrator.protocols.workflow_pages.pages import workflow_run_page, workflow_runs_page

urlpatterns = [
    path("workflow-runs/", workflow_runs_page, name="workflow-runs"),
    path("workflow-runs/<int:run_id>/", workflow_run_page, name="workflow-run-page"),
]
