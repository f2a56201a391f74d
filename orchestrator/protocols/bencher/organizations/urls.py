"""`/v0/organizations/{organization}`."""

from django.urls import path

from orchestrator.protocols.bencher.organizations import views

urlpatterns = [path("organizations/<str:organization>/claim", views.ClaimOrganizationView.as_view())]
