"""`/v0/auth/oci/token`."""

from django.urls import path

from orchestrator.protocols.bencher.registry_tokens import views

urlpatterns = [path("auth/oci/token", views.RegistryTokenView.as_view())]
