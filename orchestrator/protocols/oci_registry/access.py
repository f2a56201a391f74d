"""Authorizes requests by the tokens of the registry, and names the endpoint of tokens to other clients."""

from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.http import HttpRequest
from rest_framework.request import Request

from orchestrator.http.asgi.body_limit import upload_repository
from orchestrator.images.errors import RegistryError
from orchestrator.images.repositories import InsufficientScope, Repository, open_repository, require_name
from orchestrator.images.tokens import PULL, PUSH, AccessGrant, InvalidPullToken, PullGrant, read_token
from orchestrator.protocols.oci_registry.errors import UNAUTHORIZED
from runtime_jobs.resource_names import is_slug


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


def authorize(request: Request | HttpRequest, name: str, action: str, *, mounted: str = "") -> Repository:
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
        return open_repository(name, read_token(token), action)
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


def sources_of(request: Request, names: list[str]) -> list[Repository]:
    """Return the repositories of these names that the token permits to pull; without names all of the token."""
    token = token_of(request.META.get("HTTP_AUTHORIZATION"))
    grant = read_token(token or "")
    if not isinstance(grant, AccessGrant):
        return []
    found = []
    for name in names or [entry.name for entry in grant.access]:
        try:
            found.append(open_repository(name, grant, PULL))
        except (InsufficientScope, RegistryError):
            continue
    return found


def share_of_upload(scope: Any) -> str | None:
    """Return the project for which an upload under ASGI is counted, or None if its token does not permit it.

    This is called in the event loop, and asks no database. The view decides again.
    """
    name = upload_repository(scope["method"], scope["path"])
    if name is None:
        return None
    header = next((value for key, value in scope["headers"] if key == b"authorization"), b"")
    token = token_of(header.decode("latin-1"))
    try:
        grant = read_token(token) if token else None
    except InvalidPullToken:
        return None
    entry = grant.find(name) if isinstance(grant, AccessGrant) else None
    if entry is None or entry.project is None or PUSH not in entry.actions:
        return None
    return str(entry.project)
