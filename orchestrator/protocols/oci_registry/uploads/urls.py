"""`/v2/{repository}/blobs/uploads/`."""

from django.urls import path

from orchestrator.protocols.oci_registry.uploads import views

urlpatterns = [
    path("blobs/uploads/", views.UploadListView.as_view()),
    path("blobs/uploads", views.UploadListView.as_view()),
    path("blobs/uploads/<str:upload>", views.UploadDetailView.as_view()),
]
