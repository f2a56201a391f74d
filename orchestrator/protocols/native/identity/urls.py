"""`/v1/identity`. The documents of OpenID Connect are at the root: see `config/urls.py`."""

from django.urls import path

from orchestrator.protocols.native.identity.views import IdentityTokenView

urlpatterns = [path("identity/token", IdentityTokenView.as_view())]
