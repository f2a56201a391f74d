"""Authenticates users by an API token: `Bearer` or `token`, or the password of Basic (contract 2.7)."""

import base64
import binascii
from typing import Final

from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from orchestrator.core.principals import ClientPrincipal
from orchestrator.http.auth.authentication import authenticate_bearer
from orchestrator.http.client_ip import rate_limit_key
from orchestrator.http.errors.problems import ApiError
from orchestrator.protocols.shithub.errors import REALM
from runtime_jobs.models.tenants import Scope

SCOPE: Final = "repo:write"  # the name in this protocol of the scope jobs:write
SCOPES_HEADER: Final = "X-OAuth-Scopes"
ACCEPTED_HEADER: Final = "X-Accepted-OAuth-Scopes"
_INVALID: Final = (
    f'{REALM}, error="invalid_token", error_description="The token is malformed, unknown, expired or revoked."'
)


def authenticate_user(request: Request) -> ClientPrincipal:
    """Return the client that an API token identifies.

    Raises:
        ApiError: 401; there is no token, or it is not valid. 429; the network has sent too many invalid tokens.
    """
    header = request.META.get("HTTP_AUTHORIZATION")
    if header is None:
        text = "Send an API token as `Authorization: Bearer TOKEN`."
        raise ApiError(401, "unauthenticated", text, headers={"WWW-Authenticate": REALM})
    try:
        principal = authenticate_bearer(f"Bearer {_token_of(header)}", network=rate_limit_key(request))
    except AuthenticationFailed:
        raise _invalid_token() from None
    if not isinstance(principal, ClientPrincipal):
        raise _invalid_token()
    return principal


def require_scope(client: ClientPrincipal) -> None:
    """Check that a client may change runs.

    Raises:
        ApiError: 403.
    """
    if Scope.JOBS_WRITE not in client.scopes:
        headers = scope_headers(client) | {ACCEPTED_HEADER: SCOPE}
        text = f"The token lacks the scope {SCOPE}, which is jobs:write here."
        raise ApiError(403, "insufficient_scope", text, headers=headers)


def scope_headers(client: ClientPrincipal) -> dict[str, str]:
    """Return the header that every response to an API token has: its scopes."""
    names = {str(scope) for scope in client.scopes}
    if Scope.JOBS_WRITE in client.scopes:
        names.add(SCOPE)
    return {SCOPES_HEADER: ", ".join(sorted(names))}


def _token_of(header: str) -> str:
    scheme, _, value = header.partition(" ")
    if scheme.lower() in {"bearer", "token"}:
        return value.strip()
    if scheme.lower() != "basic":
        raise _invalid_token()
    try:
        text = base64.b64decode(value.strip(), validate=True).decode()
    except (binascii.Error, ValueError):
        raise _invalid_token() from None
    return text.partition(":")[2]


def _invalid_token() -> ApiError:
    text = "The token is malformed, unknown, expired or revoked."
    return ApiError(401, "unauthenticated", text, headers={"WWW-Authenticate": _INVALID})
