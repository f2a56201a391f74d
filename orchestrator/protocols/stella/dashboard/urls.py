"""`/api/dashboard`."""

from django.urls import path

from orchestrator.protocols.stella.dashboard.views import DashboardMetricsView

urlpatterns = [path("dashboard/metrics", DashboardMetricsView.as_view())]
