"""`/v1/keys`."""

from django.urls import path

from orchestrator.protocols.native.signing_keys.views import SigningKeySetView

urlpatterns = [path("keys", SigningKeySetView.as_view())]
