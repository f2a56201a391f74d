"""`/v0/run`."""

from django.urls import path

from orchestrator.protocols.bencher.runs import views

urlpatterns = [path("run", views.BenchmarkRunView.as_view())]
