"""The base of all views of the registry: its errors, its headers, and no authentication but its own tokens."""

from typing import Any
from urllib.parse import quote

from django.http import HttpResponse
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.parsers import JSONParser
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.views import APIView

from orchestrator.images.digests import Digest, InvalidDigest
from orchestrator.images.errors import INVALID_DIGEST, RegistryError
from orchestrator.protocols.oci_registry import errors
from orchestrator.protocols.oci_registry.errors import API_VERSION, VERSION


class IgnoredAccept(BaseContentNegotiation):
    """Chooses the only parser and renderer: manifests have the type with which they were pushed."""

    def select_parser(self, _request: Request, parsers: Any) -> Any:
        return parsers[0]

    def select_renderer(self, _request: Request, renderers: Any, _format_suffix: str | None = None) -> Any:
        return renderers[0], renderers[0].media_type


class RegistryView(APIView):
    """Base of the views. Each method authorizes by `access.authorize`."""

    authentication_classes: Any = ()
    permission_classes: Any = ()
    parser_classes = (JSONParser,)
    renderer_classes = (JSONRenderer,)
    content_negotiation_class = IgnoredAccept
    http_method_names = ("get", "head", "post", "put", "patch", "delete")
    schema: Any = None

    def get_exception_handler(self) -> Any:
        return errors.exception_handler

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        final = super().finalize_response(request, response, *args, **kwargs)
        final.headers.setdefault(API_VERSION, VERSION)
        return final


def empty_response(status: int, headers: dict[str, str] | None = None) -> HttpResponse:
    """Return a response without a body, and so without a type."""
    response = HttpResponse(status=status, headers=headers)
    del response["Content-Type"]
    return response


def parse_digest(text: str) -> Digest:
    """Return the digest in a path or query.

    Raises:
        RegistryError: 400 DIGEST_INVALID.
    """
    try:
        return Digest.parse(text)
    except InvalidDigest as error:
        raise RegistryError(400, INVALID_DIGEST, str(error)) from None


def location(*segments: str) -> str:
    """Return a path of the registry. A client resolves it against the URL that it used, also behind a proxy."""
    return "/v2/" + "/".join(quote(segment, safe=":") for segment in segments)
