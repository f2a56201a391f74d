"""`/v0/specs`."""

from django.urls import path

from orchestrator.protocols.bencher.specs import views

urlpatterns = [
    path("specs", views.SpecListView.as_view()),
    path("specs/<str:spec>", views.SpecDetailView.as_view()),
]
