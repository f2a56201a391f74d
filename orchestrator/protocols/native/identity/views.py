"""Views of identity tokens and of the documents of OpenID Connect."""

from datetime import UTC, datetime
from typing import Any

from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from orchestrator.http.api.query_parameters import StrictQueryMixin, invalid_query
from orchestrator.http.errors.problems import ApiError
from orchestrator.identity.request_tokens import InvalidRequestToken, read_request_token
from orchestrator.identity.tokens import (
    MAX_AUDIENCE_LENGTH,
    IdentityRefused,
    discovery_document,
    identity_token,
    key_set,
)
from orchestrator.protocols.native.identity import openapi

CACHE_SECONDS = 3600  # much less than a new key is published before it signs


class PublicDocumentView(StrictQueryMixin, APIView):
    """Base of the views that read no credentials of people or programs."""

    authentication_classes: list[Any] = []
    permission_classes = [AllowAny]
    http_method_names = ["get", "head"]


class IdentityTokenView(PublicDocumentView):
    """`GET /v1/identity/token`, with the token from the environment of the job."""

    def query_parameters(self) -> frozenset[str]:
        return frozenset({"audience", "api-version"})

    @openapi.IDENTITY_TOKEN
    def get(self, request: Request) -> Response:
        """Return an identity token of the calling job."""
        audience = request.query_params.get("audience")
        try:
            token = _bearer_token(request)
            read_request_token(token, now=datetime.now(UTC))  # before a query of the database
            if audience is not None and (len(audience) > MAX_AUDIENCE_LENGTH or not audience.isprintable()):
                raise invalid_query("audience", f"Must have 1 to {MAX_AUDIENCE_LENGTH} printable characters.")
            value = identity_token(token, audience)
        except InvalidRequestToken:
            challenge = {"WWW-Authenticate": 'Bearer realm="runtime-orchestrator"'}
            detail = "The token of the job is missing, is not valid, or has expired."
            raise ApiError(401, "unauthenticated", detail, headers=challenge) from None
        except IdentityRefused as refusal:
            raise ApiError(403, "identity_refused", str(refusal)) from None
        return Response({"value": value}, headers={"Cache-Control": "no-store"})


def _bearer_token(request: Request) -> str:
    scheme, _, token = request.META.get("HTTP_AUTHORIZATION", "").partition(" ")
    if scheme.lower() != "bearer":
        raise InvalidRequestToken
    return str(token)


class KeySetView(PublicDocumentView):
    """`GET /.well-known/jwks.json`."""

    @openapi.KEY_SET
    def get(self, _request: Request) -> Response:
        """Return the keys that verify identity tokens."""
        return Response(key_set(), headers={"Cache-Control": f"public, max-age={CACHE_SECONDS}"})


class DiscoveryView(PublicDocumentView):
    """`GET /.well-known/openid-configuration`."""

    @openapi.DISCOVERY
    def get(self, _request: Request) -> Response:
        """Return the issuer and the address of its keys."""
        return Response(discovery_document(), headers={"Cache-Control": f"public, max-age={CACHE_SECONDS}"})
