"""`/api/v1/jobs/{job_id}/cancel` and `/api/v1/runs/{run_id}/rerun`. Document 001 has runs with ids of another form."""

from django.urls import path

from orchestrator.protocols.shithub.clients import views

urlpatterns = [
    path("jobs/<str:job_id>/cancel", views.CancelJobView.as_view()),
    path("runs/<int:run_id>/rerun", views.RerunView.as_view()),
]
