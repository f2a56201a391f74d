"""Tests the identity of a client before its request is authenticated."""

from types import SimpleNamespace

from django.http import HttpRequest
from django.utils.functional import SimpleLazyObject

from orchestrator.http.asgi.client_identity import MAX_REMEMBERED, ClientIdentities


def scope(*headers, address="192.0.2.1"):
    return {"headers": list(headers), "client": (address, 1234)}


def authenticated(*, is_authenticated=True):
    request = HttpRequest()
    request.user = SimpleNamespace(is_authenticated=is_authenticated)
    return request


def test_a_token_is_a_client_once_it_was_valid():
    identities = ClientIdentities()
    first, second = (scope((b"authorization", f"Bearer {name}".encode())) for name in ("a", "b"))
    assert identities.identify(first) == identities.identify(second) == "192.0.2.1"
    identities.remember(first, authenticated())
    identities.remember(second, authenticated(is_authenticated=False))
    assert identities.identify(second) == identities.identify(scope()) == "192.0.2.1"
    assert identities.identify(first) not in {"192.0.2.1", "Bearer a", b"Bearer a"}
    assert identities.identify(first | {"client": ("192.0.2.9", 1)}) == identities.identify(first)


def test_a_session_counts_only_if_a_view_has_read_its_user():
    identities = ClientIdentities()
    sent = scope((b"cookie", b"sessionid=1"))

    def query():
        raise AssertionError

    request = HttpRequest()
    request.user = SimpleLazyObject(query)
    identities.remember(sent, request)
    assert identities.identify(sent) == "192.0.2.1"
    request._cached_user = SimpleNamespace(is_authenticated=True)
    identities.remember(sent, request)
    assert identities.identify(sent) != "192.0.2.1"


def test_a_unix_socket_without_an_address_is_one_client():
    assert ClientIdentities().identify({"headers": [], "client": None}) == ""


def test_the_memory_is_bounded():
    identities = ClientIdentities()
    for number in range(MAX_REMEMBERED + 1):
        identities.remember(scope((b"cookie", str(number).encode())), authenticated())
    assert len(identities._known) == 1
