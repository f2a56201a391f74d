"""Views of `/v2/{repository}/blobs/{digest}`."""

from django.http import HttpResponse
from django.http.response import HttpResponseBase
from rest_framework.request import Request

from orchestrator.images.blobs import delete_blob, find_blob, touch_blob
from orchestrator.images.tokens import PULL, PUSH
from orchestrator.protocols.oci_registry.access import authorize
from orchestrator.protocols.oci_registry.base_view import RegistryView, empty_response, parse_digest
from orchestrator.protocols.oci_registry.blobs.content import blob_response


class BlobView(RegistryView):
    """`/v2/{repository}/blobs/{digest}`."""

    def get(self, request: Request, repository: str, digest: str) -> HttpResponseBase:
        """Read a blob of the repository, or a range of it."""
        found = authorize(request, repository, PULL)
        blob = find_blob(found.project, parse_digest(digest))
        return blob_response(request._request, blob)  # noqa: SLF001 - distinguishes ASGI and WSGI

    def head(self, request: Request, repository: str, digest: str) -> HttpResponseBase:
        """Answer whether the repository has a blob. A client that may push relies on it, so it is kept for a while."""
        found = authorize(request, repository, PULL)
        parsed = parse_digest(digest)
        blob = find_blob(found.project, parsed)
        if found.can_push:
            touch_blob(found.project, parsed)
        return blob_response(request._request, blob)  # noqa: SLF001 - distinguishes ASGI and WSGI

    def delete(self, request: Request, repository: str, digest: str) -> HttpResponse:
        """Delete a blob from the repository."""
        found = authorize(request, repository, PUSH)
        delete_blob(found.project, parse_digest(digest))
        return empty_response(202)
