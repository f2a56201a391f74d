"""`/v2/`: the OCI distribution API."""

from django.urls import include, path
from rest_framework.request import Request
from rest_framework.response import Response

from orchestrator.protocols.oci_registry.access import authorize_base
from orchestrator.protocols.oci_registry.base_view import RegistryView


class BaseView(RegistryView):
    """`/v2/`."""

    def get(self, request: Request) -> Response:
        """Answer that this is a registry, to clients with a token of it."""
        authorize_base(request)
        return Response({})


urlpatterns = [
    path("", BaseView.as_view()),
    path("<str:repository>/", include("orchestrator.protocols.oci_registry.uploads.urls")),
    path("<str:repository>/", include("orchestrator.protocols.oci_registry.blobs.urls")),
    path("<str:repository>/", include("orchestrator.protocols.oci_registry.manifests.urls")),
]
