"""Names that may be asked for, and addresses that no name may lead to."""

import ipaddress
import socket

import pytest

from workers.engines.network import addresses
from workers.engines.network.addresses import Target, allows, is_public, target


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("pypi.example:443", Target("pypi.example", 443)),
        ("PyPI.Example.:8443", Target("pypi.example", 8443)),
        ("93.184.216.34:443", Target("93.184.216.34", 443)),
        ("[2606:2800:0220:1::1]:443", Target("2606:2800:220:1::1", 443)),
        ("_service.under_score.example:1", Target("_service.under_score.example", 1)),
    ],
)
def test_an_authority_is_read_in_one_spelling(text, wanted):
    assert target(text) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "", "example", "example:", "example:0", "example:65536", "example:443:443", "user@example:443", "a b:443",
        "-x.example:443", "x-.example:443", "a..b:443", "[::1:443", "[nonsense]:443", "::1:443", "exämple:443",
        "x" * 64 + ".example:443", "a." * 127 + "a.b:443", "example:443\r\nHost: b", "example/x:443", "%00:443",
    ],
)  # fmt: skip
def test_what_is_no_authority_is_refused(text):
    assert target(text) is None


@pytest.mark.parametrize(
    ("pattern", "wanted", "verdict"),
    [
        ("pypi.example", "pypi.example:443", True),
        ("pypi.example", "pypi.example:80", False),
        ("pypi.example:80", "pypi.example:80", True),
        ("PyPI.Example.", "pypi.example:443", True),
        ("*.example", "files.pypi.example:443", True),
        ("*.example", "example:443", False),
        ("*.example", "badexample:443", False),
        ("*.example:8443", "a.example:8443", True),
        ("*.example:8443", "a.example:443", False),
        ("pypi.example", "pypi.example.evil:443", False),
        ("pypi.example", "xpypi.example:443", False),
        ("*", "anything.example:443", True),
        ("*", "anything.example:22", False),
        ("*", "93.184.216.34:443", False),
        ("93.184.216.34", "93.184.216.34:443", True),
        ("[2606::1]:443", "[2606:0::1]:443", True),
        ("", "example:443", False),
        ("not a pattern:x", "example:443", False),
    ],
)
def test_a_pattern_covers_what_it_says(pattern, wanted, verdict):
    assert allows([pattern], target(wanted)) is verdict


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.1.2.3", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",
        "100.127.255.255", "192.0.0.1", "192.0.2.1", "198.18.0.1", "198.51.100.1", "203.0.113.1", "224.0.0.1",
        "240.0.0.1", "255.255.255.255", "168.63.129.16", "192.0.0.192", "::", "::1", "::ffff:8.8.8.8", "::ffff:127.0.0.1", "::8.8.8.8",
        "64:ff9b::7f00:1", "64:ff9b:1::1", "2002:7f00:1::", "2001:0:1::1", "2001:db8::1", "fc00::1", "fd00:ec2::254",
        "fe80::1", "fe80::1%lo", "fec0::1", "ff02::1", "not an address", "8.8.8.8.8", "",
        "3fff::1", "192.88.99.1", "2606:4700::5efe:a00:1", "2606:4700::200:5efe:808:808", "64:ff9b::808:808", "::ffff:0:7f00:1",
    ],
)  # fmt: skip
def test_what_is_not_the_open_internet_is_refused(address):
    assert not is_public(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "93.184.216.34", "2606:2800:220:1::1", "100.63.255.255", "100.128.0.1"])
def test_the_open_internet_is_not(address):
    assert is_public(address)


def test_a_public_address_of_this_machine_is_refused(monkeypatch):
    monkeypatch.setattr(addresses, "_is_ours", lambda address: str(address) == "93.184.216.34")
    assert not is_public("93.184.216.34")
    assert is_public("93.184.216.35")


def test_an_address_of_this_machine_is_known_as_such():
    assert addresses._is_ours(ipaddress.ip_address("127.0.0.1"))
    assert not addresses._is_ours(ipaddress.ip_address("8.8.8.8"))


def test_a_literal_resolves_to_itself():
    assert addresses.resolve("127.0.0.1", 443) == ["127.0.0.1"]
    with pytest.raises(socket.gaierror):
        addresses.resolve("name.invalid.", 443)
