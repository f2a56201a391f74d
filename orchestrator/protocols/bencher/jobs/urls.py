"""`/v0/projects/{project}/jobs`."""

from django.urls import path

from orchestrator.protocols.bencher.jobs import views

urlpatterns = [
    path("projects/<str:project>/jobs", views.ProjectJobListView.as_view()),
    path("projects/<str:project>/jobs/<str:job>", views.ProjectJobDetailView.as_view()),
]
