"""`/v2/{repository}/blobs/{digest}`."""

from django.urls import path

from orchestrator.protocols.oci_registry.blobs import views

urlpatterns = [path("blobs/<str:digest>", views.BlobView.as_view())]
