"""`/v0/projects/{project}/reports`, `…/testbeds` and `…/metrics`."""

from django.urls import path

from orchestrator.protocols.bencher.reports import views

urlpatterns = [
    path("projects/<str:project>/reports", views.ReportListView.as_view()),
    path("projects/<str:project>/reports/<str:report>", views.ReportDetailView.as_view()),
    path("projects/<str:project>/testbeds", views.TestbedListView.as_view()),
    path("projects/<str:project>/testbeds/<str:testbed>", views.TestbedDetailView.as_view()),
    path("projects/<str:project>/perf", views.PerfView.as_view()),
    path("projects/<str:project>/metrics/<str:metric>", views.MetricDetailView.as_view()),
]
