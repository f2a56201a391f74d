"""The base of all views of this protocol: strict JSON whatever the headers say, and this protocol's errors."""

from collections.abc import Mapping
from typing import Any

from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.parsers import BaseParser
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request
from rest_framework.views import APIView

from orchestrator.http.api.json_parser import loads, require_uncompressed
from orchestrator.http.errors.problems import ApiError
from orchestrator.protocols.shithub import errors
from orchestrator.protocols.shithub.openapi import ShithubSchema

NO_CONTENT = 204


class ShithubJSONRenderer(BaseRenderer):
    """Renders one JSON value and a line break; nothing for a response without a body."""

    media_type = "application/json"
    format = "json"
    charset = "utf-8"

    def render(
        self, data: Any, accepted_media_type: str | None = None, renderer_context: Mapping[str, Any] | None = None
    ) -> bytes:
        response = (renderer_context or {}).get("response")
        if response is not None and response.status_code == NO_CONTENT:
            return b""
        return errors.render(data)


class UnparsedBody(BaseParser):
    """Marks every media type as JSON: views read the body themselves, after the token is used."""

    media_type = "application/json"


class IgnoredMediaTypes(BaseContentNegotiation):
    """Chooses the only parser and renderer, whatever `Content-Type` and `Accept` say."""

    def select_parser(self, _request: Request, parsers: Any) -> Any:
        return parsers[0]

    def select_renderer(self, _request: Request, renderers: Any, _format_suffix: str | None = None) -> Any:
        return renderers[0], renderers[0].media_type


class ShithubView(APIView):
    """Base of the views. Each method authenticates itself: an unknown method is 405 without credentials, too."""

    authentication_classes: Any = ()
    permission_classes: Any = ()
    parser_classes = (UnparsedBody,)
    renderer_classes = (ShithubJSONRenderer,)
    content_negotiation_class = IgnoredMediaTypes
    http_method_names = ("post",)
    schema = ShithubSchema()

    def get_exception_handler(self) -> Any:
        return errors.exception_handler

    def header(self) -> str | None:
        """Return the value of `Authorization`."""
        return self.request.META.get("HTTP_AUTHORIZATION")

    def body(self) -> bytes:
        """Return the body.

        Raises:
            ApiError: 400; it is compressed. No other status for it is in the contract.
        """
        try:
            require_uncompressed(self.request)
        except ApiError as error:
            raise errors.bad_request(error.detail) from None
        raw: bytes = self.request.body
        return raw


def read_object(raw: bytes) -> dict[str, Any]:
    """Return the JSON object of a body.

    Raises:
        ApiError: 400; the body is empty or no JSON object.
    """
    if not raw.strip():
        raise errors.bad_request("The body must be a JSON object.")
    return loads(raw)
