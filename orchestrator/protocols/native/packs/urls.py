"""`/v1/packs`."""

from django.urls import path, re_path

from orchestrator.protocols.native.packs.views import PackViewSet
from runtime_jobs.specs.packs import PACK_ID, PACK_VERSION

_VERSION = rf"^packs/(?P<pack_id>{PACK_ID.pattern})/versions/(?P<version>{PACK_VERSION.pattern})\Z"

urlpatterns = [
    path("packs", PackViewSet.as_view({"get": "list"})),
    re_path(_VERSION, PackViewSet.as_view({"get": "retrieve", "put": "update"})),
]
