"""`/v0/projects`, `/v0/organizations/{organization}/projects`, and lists below a project."""

from django.urls import path

from orchestrator.protocols.bencher.resources import views

urlpatterns = [
    path("projects", views.ProjectListView.as_view()),
    path("organizations/<str:organization>/projects", views.OrganizationProjectListView.as_view()),
    path("projects/<str:project>", views.ProjectDetailView.as_view()),
    path("projects/<str:project>/branches", views.BranchListView.as_view()),
    path("projects/<str:project>/branches/<str:branch>", views.BranchDetailView.as_view()),
    path("projects/<str:project>/benchmarks", views.BenchmarkListView.as_view()),
    path("projects/<str:project>/benchmarks/<str:benchmark>", views.BenchmarkDetailView.as_view()),
    path("projects/<str:project>/measures", views.MeasureListView.as_view()),
    path("projects/<str:project>/measures/<str:measure>", views.MeasureDetailView.as_view()),
]
