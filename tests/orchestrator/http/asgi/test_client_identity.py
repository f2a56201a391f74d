"""Tests the identity of a client before its request is authenticated."""

import io

import pytest
from django.contrib.auth import login
from django.contrib.auth.models import AnonymousUser, User
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest
from django.utils.functional import SimpleLazyObject

from orchestrator.core.principals import ClientPrincipal, WorkerPrincipal
from orchestrator.http.api.calls import IdentifiedTokens
from orchestrator.http.asgi.client_identity import MAX_REMEMBERED, ClientIdentities, identify_tokens
from orchestrator.http.client_ip import client_address
from runtime_jobs.events import Actor
from workers.models import Worker

ADDRESS = "192.0.2.1"
SESSION = (b"cookie", b"sessionid=valid")


def scope(*headers, address=ADDRESS):
    return {"headers": list(headers), "client": (address, 1234)}


def token(name):
    return (b"authorization", f"Bearer {name}".encode())


def client(key="token:1"):
    return ClientPrincipal(key, Actor("client", "a"), ("acme",), frozenset())


def authenticated(user):
    """A request that DRF has authenticated."""
    request = HttpRequest()
    request.user = user
    return request


def of_session(user):
    """A request of a page that has read the user of its session."""
    request = authenticated(SimpleLazyObject(lambda: user))
    request._cached_user = user
    return request


def test_a_token_is_a_client_once_it_was_valid():
    identities = ClientIdentities()
    first, second = scope(token("a")), scope(token("b"))
    assert identities.identify(first) == identities.identify(second) == ADDRESS
    identities.remember(first, authenticated(client()))
    identities.remember(second, authenticated(AnonymousUser()))
    assert identities.identify(second) == identities.identify(scope()) == ADDRESS
    assert identities.identify(first) not in {ADDRESS, "Bearer a", b"Bearer a"}
    assert identities.identify(first | {"client": ("192.0.2.9", 1)}) == identities.identify(first)


def test_principals_are_clients_of_their_own():
    identities = ClientIdentities()
    callers = {"a": client("token:1"), "b": client("token:2"), "c": WorkerPrincipal(Worker(worker_id="w"))}
    for name, caller in callers.items():
        identities.accept(scope(token(name)), caller)
    identities.remember(scope(SESSION), authenticated(client("user:1")))
    sent = [*(scope(token(name)) for name in callers), scope(SESSION), scope()]
    assert len({identities.identify(one) for one in sent}) == 5


def test_a_view_names_the_client_of_tokens_that_it_has_verified_or_issued():
    identities = ClientIdentities()
    first, second = HttpRequest(), HttpRequest()
    identify_tokens(first, IdentifiedTokens("runner:7", ("registration", "next")))
    identities.remember(scope(token("registration")), first)
    runner = identities.identify(scope(token("registration")))
    assert identities.identify(scope(token("next"))) == runner != ADDRESS
    identify_tokens(second, IdentifiedTokens("runner:7", ("later",)))
    identities.remember(scope(token("next")), second)
    assert identities.identify(scope(token("later"))) == runner
    assert identities.identify(scope(token("next"))) == ADDRESS, "a token of a single use is forgotten with its use"
    identify_tokens(second, IdentifiedTokens("runner:8", ("other",)))
    identities.remember(scope(), second)
    assert identities.identify(scope(token("other"))) not in {runner, ADDRESS}


def test_a_session_counts_only_if_a_view_has_read_its_user():
    identities = ClientIdentities()

    def query():
        raise AssertionError

    identities.remember(scope(SESSION), authenticated(SimpleLazyObject(query)))
    identities.remember(scope(SESSION), of_session(AnonymousUser()))
    assert identities.identify(scope(SESSION)) == ADDRESS
    identities.remember(scope(SESSION), of_session(User(pk=7)))
    assert identities.identify(scope(SESSION)) != ADDRESS


@pytest.mark.parametrize("by_fast_path", [False, True])
def test_cookies_beside_a_token_are_not_clients(by_fast_path):
    identities = ClientIdentities()
    invented = [(b"cookie", b"sessionid=%d" % number) for number in range(50)]
    for cookie in invented:
        if by_fast_path:
            identities.accept(scope(cookie, token("a")), client())
        else:
            identities.remember(scope(cookie, token("a")), authenticated(client()))
    assert {identities.identify(scope(cookie)) for cookie in invented} == {ADDRESS}
    assert len({identities.identify(scope(cookie, token("a"))) for cookie in invented} - {ADDRESS}) == 1


@pytest.mark.parametrize("is_page", [False, True])
def test_junk_beside_a_session_is_not_a_client(is_page):
    identities = ClientIdentities()
    request = of_session(User(pk=7)) if is_page else authenticated(client("user:7"))
    junk = [((b"cookie", b"junk=%d" % number), token(f"junk {number}")) for number in range(50)]
    for cookie, header in junk:
        identities.remember(scope((b"cookie", cookie[1] + b"; sessionid=valid"), header), request)
    assert {identities.identify(scope(cookie, header)) for cookie, header in junk} == {ADDRESS}
    in_one_header = (scope((b"cookie", cookie[1] + b"; sessionid=valid")) for cookie, _ in junk)
    in_two_headers = (scope(cookie, SESSION) for cookie, _ in junk)
    assert len({identities.identify(sent) for sent in [*in_one_header, *in_two_headers]} - {ADDRESS}) == 1


def test_forms_of_one_credential_are_one_client():
    identities = ClientIdentities()
    sent = [scope((b"authorization", scheme + b" a")) for scheme in (b"Bearer", b"bearer", b"BEARER")]
    for one in sent:
        identities.accept(one, client())
    assert len({identities.identify(one) for one in sent}) == 1


def test_credentials_that_were_not_checked_are_not_clients(db, rf):
    identities = ClientIdentities()
    sent = scope(SESSION, token("junk"))

    class VerifiedDelivery:
        """Its signature was checked, no token and no session."""

        is_authenticated = True

    identities.remember(sent, authenticated(VerifiedDelivery()))
    assert identities.identify(sent) == ADDRESS
    # A client certificate was checked: a request with a token is never authenticated by it.
    identities.remember(scope(SESSION), authenticated(WorkerPrincipal(Worker(worker_id="w"))))
    assert identities.identify(scope(SESSION)) == ADDRESS
    # A form has logged the user in; the cookie is that of the time before.
    request = rf.post("/login/")
    request.session = type("Session", (dict,), {"cycle_key": lambda self: None})()
    request.user = SimpleLazyObject(AnonymousUser)
    login(request, User.objects.create_user("alice"), backend="django.contrib.auth.backends.ModelBackend")
    identities.remember(sent, request)
    assert identities.identify(sent) == ADDRESS


def test_an_address_is_never_a_principal():
    identities = ClientIdentities()
    identities.accept(scope(token("a")), client("token:1"))
    assert identities.identify(scope(address="token:1")) != identities.identify(scope(token("a")))


def test_a_unix_socket_without_an_address_is_one_client():
    assert ClientIdentities().identify({"headers": [], "client": None}) == "unknown"


def test_addresses_of_one_network_are_one_client():
    identify = ClientIdentities().identify
    assert identify(scope(address="2001:db8::1")) == identify(scope(address="2001:db8::2:1"))
    assert identify(scope(address="2001:db8::1")) != identify(scope(address="2001:db8:0:1::1"))
    assert identify(scope(address=f"::ffff:{ADDRESS}")) == ADDRESS


@pytest.mark.parametrize("proxied", [False, True])
def test_clients_of_a_proxy_are_distinguished_only_behind_the_operator_s(settings, proxied):
    settings.BEHIND_PROXY = proxied
    identify = ClientIdentities().identify
    forwarded = [[b"9.9.9.9, 198.51.100.1"], [b"9.9.9.9", b"198.51.100.1"], [b"198.51.100.2"], []]
    sent = [identify(scope(*((b"x-forwarded-for", value) for value in values))) for values in forwarded]
    assert sent == (["198.51.100.1", "198.51.100.1", "198.51.100.2", ADDRESS] if proxied else [ADDRESS] * 4)


def test_the_operator_names_the_header_of_the_proxy(settings):
    settings.BEHIND_PROXY, settings.CLIENT_ADDRESS_HEADER = True, "Fly-Client-IP"
    headers = [(b"x-forwarded-for", b"198.51.100.1"), (b"fly-client-ip", b"198.51.100.2")]
    assert ClientIdentities().identify(scope(*headers)) == "198.51.100.2"


def test_a_header_with_underscores_is_not_the_one_of_the_proxy(settings):
    """A proxy replaces the header that it knows. Django before 5.2.13 took the other one for the same."""
    settings.BEHIND_PROXY, settings.SECURE_PROXY_SSL_HEADER = True, ("HTTP_X_FORWARDED_PROTO", "https")
    invented = [(b"x_forwarded_for", b"9.9.9.9"), (b"x_forwarded_proto", b"https")]
    for own, address in (([(b"x-forwarded-for", b"198.51.100.1")], "198.51.100.1"), ([], ADDRESS)):
        for headers in (own + invented, invented + own):
            sent = scope(*headers) | {"type": "http", "method": "GET", "path": "/", "scheme": "http"}
            request = ASGIRequest(sent, io.BytesIO())
            assert {client_address(request), ClientIdentities().identify(sent)} == {address}
            assert not request.is_secure()


def test_the_memory_is_bounded():
    identities = ClientIdentities()
    for number in range(MAX_REMEMBERED + 1):
        identities.accept(scope(token(str(number))), client())
    assert len(identities._known) == 1
