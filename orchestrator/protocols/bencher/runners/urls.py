"""`/v0/runners`."""

from django.urls import path

from orchestrator.protocols.bencher.runners import views

urlpatterns = [
    path("runners", views.RunnerListView.as_view()),
    path("runners/<str:runner>", views.RunnerDetailView.as_view()),
    path("runners/<str:runner>/key", views.RotateKeyView.as_view()),
    path("runners/<str:runner>/token", views.RotateTokenView.as_view()),
    path("runners/<str:runner>/specs", views.RunnerSpecListView.as_view()),
    path("runners/<str:runner>/specs/<str:spec>", views.RunnerSpecDetailView.as_view()),
]
