"""`/v0/server`."""

from django.urls import path

from orchestrator.protocols.bencher.server import views

urlpatterns = [
    path("server/version", views.ServerVersionView.as_view()),
    path("server/config/console", views.ConsoleConfigView.as_view()),
]
