"""Authorizes requests by the tokens of the registry, and names the endpoint of tokens to other clients."""

from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlsplit

from django.conf import settings
from django.http import HttpRequest
from rest_framework.request import Request

from orchestrator.http.asgi.body_limit import upload_repository
from orchestrator.http.errors.problems import ApiError
from orchestrator.images.errors import RegistryError
from orchestrator.images.repositories import ImageRepository, InsufficientScope, denied, open_repository, require_name
from orchestrator.images.tokens import (
    PULL,
    PUSH,
    AccessGrant,
    InvalidPullToken,
    PullGrant,
    RepositoryAccess,
    read_token,
)
from orchestrator.protocols.oci_registry.errors import UNAUTHORIZED
from runtime_jobs.resource_names import is_slug

AUTHORIZED_AT: Final = "orchestrator.upload_authorized_at"  # key of the scope: when its token was verified
_SERVER_CODES: Final = {400: "invalid", 401: "unauthenticated", 403: "forbidden"}


def token_of(header: str | None) -> str | None:
    """Return the token of an `Authorization` header with the scheme Bearer, or None."""
    scheme, _, value = (header or "").partition(" ")
    return value.strip() or None if scheme.lower() == "bearer" else None


def challenge(*scopes: str, error: str = "") -> RegistryError:
    """Return the 401 that names the endpoint of tokens.

    Args:
        scopes: What the client must request there, such as `repository:name:pull`.
        error: The reason, if the request had a token.
    """
    service = urlsplit(settings.PUBLIC_URL).netloc
    parts = [f'realm="{settings.PUBLIC_URL}/v0/auth/oci/token"', f'service="{service}"']
    parts += [f'scope="{" ".join(scopes)}"'] if scopes else []
    parts += [f'error="{error}"'] if error else []
    headers = {"WWW-Authenticate": f"Bearer {','.join(parts)}"}
    return RegistryError(401, UNAUTHORIZED, "A token of the registry is needed.", headers=headers)


def authorize(request: Request | HttpRequest, name: str, action: str, *, mounted: str = "") -> ImageRepository:
    """Return the repository in the path, if the token permits the action.

    Args:
        request: The request.
        name: The repository in the path.
        action: `pull` or `push`.
        mounted: A repository from which a blob is requested, for the challenge.

    Raises:
        RegistryError: 400 NAME_INVALID, 401 UNAUTHORIZED, 403 DENIED or 404 NAME_UNKNOWN.
    """
    require_name(name)
    scopes = [f"repository:{name}:{'pull' if action == PULL else 'pull,push'}"]
    if mounted != name and is_slug(mounted):  # any other text could leave the header
        scopes.append(f"repository:{mounted}:pull")
    token = token_of(request.META.get("HTTP_AUTHORIZATION"))
    if token is None:
        raise challenge(*scopes)
    try:
        return open_repository(name, read_token(token, now=_request_time(request)), action)
    except InvalidPullToken:
        raise challenge(*scopes, error="invalid_token") from None
    except InsufficientScope:
        raise challenge(*scopes, error="insufficient_scope") from None


def authorize_base(request: Request) -> None:
    """Refuse a request for `/v2/` without a token of a person or project. A runner has no use for it (contract 1.5).

    Raises:
        RegistryError: 401 UNAUTHORIZED.
    """
    token = token_of(request.META.get("HTTP_AUTHORIZATION"))
    if token is None:
        raise challenge()
    try:
        grant = read_token(token)
    except InvalidPullToken:
        raise challenge(error="invalid_token") from None
    if isinstance(grant, PullGrant):
        raise challenge(error="invalid_token")


def sources_of(request: Request, names: list[str]) -> list[ImageRepository]:
    """Return the repositories of these names that the token permits to pull; without names all of the token."""
    token = token_of(request.META.get("HTTP_AUTHORIZATION"))
    grant = read_token(token or "", now=_request_time(request))
    if not isinstance(grant, AccessGrant):
        return []
    found = []
    for name in names or [entry.name for entry in grant.access]:
        try:
            found.append(open_repository(name, grant, PULL))
        except (InsufficientScope, RegistryError):
            continue
    return found


def share_of_upload(scope: Any) -> str | ApiError | None:
    """Return the organization for which an upload under ASGI is counted; None for every other request.

    This is called in the event loop before the body is received, and asks no database. The view decides again, but
    compares the end of the token with the present time: a large body may arrive for longer than a token is valid.

    Returns:
        The UUID of the organization; or the refusal of a large body, if the token does not permit the upload.
    """
    name = upload_repository(scope["method"], scope["path"])
    if name is None:
        return None
    header = next((value for key, value in scope["headers"] if key == b"authorization"), b"")
    now = datetime.now(UTC)
    try:
        entry = _upload_entry(require_name(name), token_of(header.decode("latin-1")), now)
    except RegistryError as error:
        return ApiError(error.status, _SERVER_CODES[error.status], error.message, headers=error.headers)
    scope[AUTHORIZED_AT] = now
    return str(entry.organization or entry.project)


def _upload_entry(name: str, token: str | None, now: datetime) -> RepositoryAccess:
    """Return the entry of a token that permits an upload.

    Raises:
        RegistryError: 401 or 403. The view may refuse with 404 instead, for which it asks the database.
    """
    scope = f"repository:{name}:pull,push"
    if token is None:
        raise challenge(scope)
    try:
        grant = read_token(token, now=now)
    except InvalidPullToken:
        raise challenge(scope, error="invalid_token") from None
    entry = grant.find(name) if isinstance(grant, AccessGrant) else None
    if isinstance(grant, AccessGrant) and (entry is None or PUSH not in entry.requested):
        raise challenge(scope, error="insufficient_scope")
    if entry is None or entry.project is None or PUSH not in entry.actions:
        raise denied(f"You may not push images of the repository {name}, or it does not exist.")
    return entry


def _request_time(request: Request | HttpRequest) -> datetime:
    """Return when the server decided to receive the body of an upload, else the present time."""
    authorized_at: datetime | None = getattr(request, "scope", {}).get(AUTHORIZED_AT)
    return authorized_at or datetime.now(UTC)
