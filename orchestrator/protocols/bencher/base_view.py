"""The base of all views of this protocol: JSON whatever the headers say, CORS, `X-Total-Count`, and OPTIONS."""

from collections.abc import Mapping
from typing import IO, Any, ClassVar

from django.http import HttpRequest
from django.utils.http import parse_header_parameters
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from orchestrator.core.cause import Cause
from orchestrator.http.api.json_parser import StrictJSONParser
from orchestrator.http.client_ip import client_address
from orchestrator.protocols.bencher import errors
from orchestrator.protocols.bencher.authentication import (
    BencherCaller,
    OptionalCallerAuthentication,
    PersonAuthentication,
)
from orchestrator.protocols.bencher.errors import bad_request, cors_headers
from orchestrator.protocols.bencher.openapi import BencherSchema
from orchestrator.protocols.bencher.permissions import IsServerAdmin, caller_of
from orchestrator.protocols.bencher.request_rates import register_request

JSON = "application/json"
NO_CONTENT = 204
TOTAL_COUNT = "X-Total-Count"


class BencherJSONParser(StrictJSONParser):
    """Parses a body of media type JSON, or without any media type."""

    def parse(
        self, stream: IO[bytes], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        kind, _ = parse_header_parameters(media_type or JSON)
        if kind != JSON:
            raise bad_request(f"Content-Type: Must be {JSON}.")
        return super().parse(stream, media_type or JSON, parser_context)


class BencherJSONRenderer(JSONRenderer):
    """Renders None as `null`, except for a response without a body."""

    def render(
        self, data: Any, accepted_media_type: str | None = None, renderer_context: Mapping[str, Any] | None = None
    ) -> Any:
        if data is None:
            response = (renderer_context or {}).get("response")
            return b"" if response is not None and response.status_code == NO_CONTENT else b"null"
        return super().render(data, accepted_media_type, renderer_context)


class AlwaysJSON(BaseContentNegotiation):
    """Chooses the only parser and renderer, whatever `Content-Type` and `Accept` say."""

    def select_parser(self, _request: Request, parsers: Any) -> Any:
        return parsers[0]

    def select_renderer(self, _request: Request, renderers: Any, _format_suffix: str | None = None) -> Any:
        return renderers[0], renderers[0].media_type


class BencherView(APIView):
    """Base of the views. By default only server admins are admitted.

    Attributes:
        is_public: Whether the endpoint can be called without credentials.
    """

    authentication_classes: Any = (PersonAuthentication,)
    permission_classes: Any = (IsServerAdmin,)
    parser_classes = (BencherJSONParser,)
    renderer_classes = (BencherJSONRenderer,)
    content_negotiation_class = AlwaysJSON
    http_method_names = ("get", "post", "put", "patch", "delete", "options")
    schema = BencherSchema()
    is_public: ClassVar[bool] = False

    def get_exception_handler(self) -> Any:
        return errors.exception_handler

    def perform_authentication(self, request: Request) -> None:
        """Authenticate, except for OPTIONS: browsers send it without credentials. The request counts for its caller."""
        if request.method != "OPTIONS":
            super().perform_authentication(request)
            caller: Any = request.user
            if isinstance(caller, BencherCaller):
                register_request(caller)

    def check_permissions(self, request: Request) -> None:
        if request.method != "OPTIONS":
            super().check_permissions(request)

    def options(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Response:
        """Return the methods of this path in `Access-Control-Allow-Methods`, and the body `null`."""
        return Response(None, headers=cors_headers(", ".join(self.allowed_methods)))

    def finalize_response(self, request: Request, response: Response, *args: Any, **kwargs: Any) -> Response:
        """Add the headers of a success. An error has its own."""
        final = super().finalize_response(request, response, *args, **kwargs)
        if final.status_code < 400:
            headers = "Content-Type" if self.is_public else errors.ALLOWED_HEADERS
            for name, value in cors_headers(str(request.method), headers).items():
                final.headers.setdefault(name, value)
            final.headers.setdefault(TOTAL_COUNT, "0" if final.status_code == NO_CONTENT else "1")
        return final

    def cause_of(self, request: Request) -> Cause:
        """Return who acts and from which address, as the operations of operators take them."""
        return Cause(caller_of(request).actor, source_address=client_address(request))


class PublicView(BencherView):
    """Base of views that admit callers without credentials; the project decides what they may read."""

    authentication_classes = (OptionalCallerAuthentication,)
    permission_classes = ()
    is_public = True


def list_response(rows: list[Any], total: int) -> Response:
    """Return a page of a list, with the number of all rows in `X-Total-Count`."""
    return Response(rows, headers={TOTAL_COUNT: str(total)})
