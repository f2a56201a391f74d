"""Identifies the client of a request, before the request is authenticated, so that clients can take turns."""

import hashlib
from collections.abc import Hashable
from typing import Any, Final

from django.conf import settings
from django.contrib.auth.base_user import AbstractBaseUser
from django.http import HttpRequest
from django.utils.functional import SimpleLazyObject

from orchestrator.core.principal_cache import Principal
from orchestrator.core.principals import ClientPrincipal, WorkerPrincipal
from orchestrator.http.api.calls import IdentifiedTokens
from orchestrator.http.client_ip import last_entry, network_of, parse_address

MAX_REMEMBERED: Final = 10_000  # digests of credentials, 32 bytes each, and the names of their principals

_TOKENS: Final = "_identified_tokens"  # attribute of a request


def identify_tokens(request: HttpRequest, identified: IdentifiedTokens) -> None:
    """Let the next requests with these bearer tokens count as those of one client.

    For a view whose callers authenticate otherwise than by `request.user`, such as by tokens of a single use. The view
    has verified the caller. Without this all such clients of one network take turns as one client.

    Args:
        request: The request, which Django or DRF has made.
        identified: The client and its tokens.
    """
    django_request = getattr(request, "_request", request)
    vars(django_request)[_TOKENS] = identified


class ClientIdentities:
    """Remembers credentials that a request has authenticated with, and their principals.

    A client is the principal of its credential once that was valid, and its network before. If credentials counted
    from the first request on, a client that invents a new token or cookie for each request would be a new client each
    time. For the same reason only the credential that was checked counts: not a cookie beside a token, and no other
    cookie beside a session's.
    """

    def __init__(self) -> None:
        self._known: dict[bytes | None, tuple[str, str]] = {}

    def identify(self, scope: Any) -> Hashable:
        """Return the identity of the client that sent the request."""
        for digest in (_token_digest(scope), _session_digest(scope)):
            if digest is not None and (principal := self._known.get(digest)) is not None:
                return principal
        return _network(scope)

    def remember(self, scope: Any, request: HttpRequest) -> None:
        """Count the credential of this request from now on, if Django authenticated the request. In any thread."""
        user = _authenticated_user(request)
        if isinstance(user, AbstractBaseUser):
            self._add(_session_digest(scope), f"user:{user.pk}")
        elif isinstance(user, ClientPrincipal | WorkerPrincipal):
            self.accept(scope, user)
        if identified := vars(request).get(_TOKENS):
            self.replace(scope, identified)

    def replace(self, scope: Any, identified: IdentifiedTokens) -> None:
        """Count the next tokens of a client from now on instead of the credential of this request. In any thread.

        The credential was of a single use, unless it is among the next ones.
        """
        self._known.pop(_token_digest(scope), None)
        for token in identified.tokens:
            self._add(_digest(b"Authorization ", f"Bearer {token}".encode()), identified.client)

    def accept(self, scope: Any, principal: Principal) -> None:
        """Count the credential that identified this principal from now on. In any thread.

        A worker with a client certificate and without a token remains its network.
        """
        is_person = isinstance(principal, ClientPrincipal) and principal.is_person
        self._add(_session_digest(scope) if is_person else _token_digest(scope), principal.key)

    def _add(self, digest: bytes | None, key: str) -> None:
        if digest is None or digest in self._known:
            return
        if len(self._known) >= MAX_REMEMBERED:
            self._known.clear()
        self._known[digest] = ("principal", key)  # a tuple, because a network is a string


def _network(scope: Any) -> str:
    """Return what `rate_limit_key` returns for the request."""
    text: str = (scope["client"] or ("",))[0]
    if settings.BEHIND_PROXY and (forwarded := _values(scope, settings.CLIENT_ADDRESS_HEADER.lower().encode())):
        text = last_entry(forwarded[-1].decode("latin-1"))
    return network_of(parse_address(text))


def _token_digest(scope: Any) -> bytes | None:
    return _digest(b"Authorization ", b",".join(_values(scope, b"authorization")))


def _session_digest(scope: Any) -> bytes | None:
    session = ""
    for pair in b";".join(_values(scope, b"cookie")).decode("latin-1").split(";"):
        name, _, value = pair.partition("=")
        if name.strip() == settings.SESSION_COOKIE_NAME:
            session = value.strip()  # the last one, as Django
    return _digest(b"session ", session.encode())


def _values(scope: Any, name: bytes) -> list[bytes]:
    return [value for header, value in scope["headers"] if header == name]


def _digest(kind: bytes, value: bytes) -> bytes | None:
    return hashlib.sha256(kind + value).digest() if value else None


def _authenticated_user(request: HttpRequest) -> Any:
    """Return whom a view has authenticated, without a query for a session that no view has read.

    A user whom a form has logged in is not lazy and does not count: the request came with no session of this user.
    """
    user = vars(request).get("user")
    if isinstance(user, SimpleLazyObject):
        user = vars(request).get("_cached_user")
        return user if getattr(user, "is_authenticated", False) else None
    return None if isinstance(user, AbstractBaseUser) else user
