"""URLs that a webhook may have, and all the ways to write one that it may not have (attack 82)."""

import threading

import pytest

from orchestrator.webhooks import endpoints
from orchestrator.webhooks.endpoints import check_endpoint, parse_endpoint
from runtime_jobs.errors import BlockedUrl

NAMES = {
    "hooks.example.com": ["93.184.216.34"],
    "both.example.com": ["93.184.216.34", "2606:2800:220:1::1"],
    "private.example.com": ["10.0.0.1"],
    "mixed.example.com": ["93.184.216.34", "192.168.1.1"],
    "localhost": ["127.0.0.1"],
    "empty.example.com": [],
}


@pytest.fixture(autouse=True)
def names(monkeypatch):
    """Resolve known names without a network. Numbers are resolved by the system, as ever."""
    resolve = endpoints.resolve

    def resolve_known(name, port):
        if name in NAMES:
            return NAMES[name]
        if any(character.isalpha() and character not in "abcdefx" for character in name):
            raise OSError("no such name")
        return resolve(name, port)

    monkeypatch.setattr(endpoints, "resolve", resolve_known)


@pytest.mark.parametrize(
    ("url", "stored"),
    [
        ("https://hooks.example.com", "https://hooks.example.com/"),
        ("https://HOOKS.example.com./a%2Fb?c=d&e", "https://hooks.example.com/a%2Fb?c=d&e"),
        ("https://hooks.example.com:443/x", "https://hooks.example.com/x"),
        ("https://both.example.com:8443/x", "https://both.example.com:8443/x"),
        ("https://93.184.216.34/", "https://93.184.216.34/"),
        ("https://[2606:2800:220:1::1]:1024/", "https://[2606:2800:220:1::1]:1024/"),
    ],
)
def test_a_public_url_is_stored_in_one_spelling(url, stored):
    assert check_endpoint(url) == stored
    assert check_endpoint(stored) == stored


@pytest.mark.parametrize(
    "url",
    [
        *("http://hooks.example.com/", "ftp://hooks.example.com/", "hooks.example.com", "//hooks.example.com/", ""),
        *(
            "https://",
            "https:///x",
            "https://:443/",
            "https://hooks.example.com:0/",
            "https://hooks.example.com:65536/",
        ),
        *("https://user@hooks.example.com/", "https://user:password@hooks.example.com/", "https://@hooks.example.com/"),
        *("https://hooks.example.com:22/", "https://hooks.example.com:25/", "https://hooks.example.com:80/"),
        *("https://hooks.example.com/#top", "https://hooks.example.com/ x", "https://hooks.example.com\\@10.0.0.1/"),
        *("https://hooks.example.com/\r\nX: y", "https://hooks.example.com/é", "https://höoks.example.com/"),
        *("http://127.0.0.1", "https://127.0.0.1/", "https://127.1/", "https://2130706433", "https://0x7f000001/"),
        *("https://0177.0.0.1/", "https://0/", "https://0.0.0.0/", "https://localhost/", "https://localhost./"),
        *("https://[::1]/", "https://[::]/", "https://[::ffff:10.0.0.1]", "https://[::ffff:93.184.216.34]/"),
        *("https://[2002:a00:1::]/", "https://[64:ff9b::a00:1]/", "https://[fe80::1]/", "https://[fd00::1]/"),
        *("https://[fe80::1%25eth0]/", "https://[::1/", "https://::1/", "https://[hooks.example.com]/"),
        *("https://169.254.169.254", "https://10.0.0.1/", "https://172.16.0.1/", "https://192.168.0.1/"),
        *("https://100.64.0.1/", "https://192.0.0.192/", "https://168.63.129.16/", "https://224.0.0.1/"),
        *("https://private.example.com/", "https://mixed.example.com/", "https://empty.example.com/"),
        *("https://unknown.example.com/", "https://hooks.example.com/" + "x" * 2048),
    ],
)
def test_any_other_url_is_blocked(url):
    with pytest.raises(BlockedUrl) as refusal:
        check_endpoint(url)
    assert refusal.value.code == "blocked_url"
    assert list(refusal.value.errors) == ["url"]


def test_the_operator_opens_a_network(settings):
    settings.WEBHOOK_NETWORKS = ["127.0.0.0/8", "fd00::/8"]
    for url in ("http://127.0.0.1:80/", "https://127.0.0.1:22/", "http://localhost:9000/x", "https://[fd00::1]/"):
        assert check_endpoint(url)
    for url in ("http://10.0.0.1/", "https://10.0.0.1/", "http://hooks.example.com/", "https://[::1]/"):
        with pytest.raises(BlockedUrl):
            check_endpoint(url)


def test_a_name_that_does_not_resolve_in_time_is_refused(monkeypatch):
    monkeypatch.setattr(endpoints, "RESOLVE_SECONDS", 0.05)
    is_over = threading.Event()
    monkeypatch.setattr(endpoints, "resolve", lambda *_: is_over.wait(60))
    with pytest.raises(BlockedUrl, match="within"):
        check_endpoint("https://slow.example.com/")
    is_over.set()


def test_parts_are_those_that_are_requested():
    parts = parse_endpoint("https://[2606:2800:220:1:0::1]:8443?x=1")
    assert (parts.scheme, parts.host, parts.port, parts.path) == ("https", "2606:2800:220:1::1", 8443, "/?x=1")
