"""`/api/v1/jobs/{job_id}/…` for runners."""

from django.urls import path

from orchestrator.protocols.shithub.jobs import views

urlpatterns = [
    path("jobs/<str:job_id>/status", views.JobStatusView.as_view()),
    path("jobs/<str:job_id>/steps/<str:step_id>/status", views.StepStatusView.as_view()),
    path("jobs/<str:job_id>/logs", views.LogView.as_view()),
    path("jobs/<str:job_id>/artifacts/upload", views.ArtifactUploadView.as_view()),
    path("jobs/<str:job_id>/cancel-check", views.CancelCheckView.as_view()),
    path("jobs/<str:job_id>/token", views.TokenView.as_view()),
]
