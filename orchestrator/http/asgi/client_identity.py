"""Identifies the client of a request, before the request is authenticated, so that clients can take turns."""

import hashlib
from collections.abc import Hashable
from typing import Any, Final

from django.http import HttpRequest
from django.utils.functional import SimpleLazyObject

MAX_REMEMBERED: Final = 10_000  # digests of credentials; 32 bytes each
_CREDENTIALS: Final = (b"authorization", b"cookie")


class ClientIdentities:
    """Remembers credentials that a request has authenticated with.

    A client is its credentials once they were valid, and its address before. If the credentials counted from the first
    request on, a client that invents a new token or cookie for each request would be a new client each time.
    """

    def __init__(self) -> None:
        self._known: set[bytes] = set()

    def identify(self, scope: Any) -> Hashable:
        """Return the identity of the client that sent the request."""
        for digest in _digests(scope):
            if digest in self._known:
                return digest
        return (scope["client"] or ("",))[0]

    def remember(self, scope: Any, request: HttpRequest) -> None:
        """Count the credentials of this request from now on, if Django authenticated the request. In any thread."""
        if _is_authenticated(request):
            self.accept(scope)

    def accept(self, scope: Any) -> None:
        """Count the credentials of this request, which were valid, from now on. In any thread."""
        if len(self._known) >= MAX_REMEMBERED:
            self._known.clear()
        self._known.update(_digests(scope))


def _digests(scope: Any) -> list[bytes]:
    return [hashlib.sha256(value).digest() for name, value in scope["headers"] if name in _CREDENTIALS]


def _is_authenticated(request: HttpRequest) -> bool:
    """Return whether a view has authenticated the request, without a query for a session that no view has read."""
    user = vars(request).get("user")
    if isinstance(user, SimpleLazyObject):
        user = vars(request).get("_cached_user")
    return bool(getattr(user, "is_authenticated", False))
