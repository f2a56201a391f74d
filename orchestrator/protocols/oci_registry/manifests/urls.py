"""`/v2/{repository}/manifests/{reference}`, `…/tags/list` and `…/referrers/{digest}`."""

from django.urls import path

from orchestrator.protocols.oci_registry.manifests import views

urlpatterns = [
    path("manifests/<str:reference>", views.ManifestView.as_view()),
    path("tags/list", views.TagListView.as_view()),
    path("referrers/<str:digest>", views.ReferrerListView.as_view()),
]
