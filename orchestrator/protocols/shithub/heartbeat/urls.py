"""`/api/v1/runners/heartbeat`."""

from django.urls import path

from orchestrator.protocols.shithub.heartbeat import views

urlpatterns = [path("runners/heartbeat", views.RunnerHeartbeatView.as_view())]
