"""Determines the address of a client. Headers count only behind the operator's own proxy."""

from functools import lru_cache
from ipaddress import IPv6Address, ip_address

from django.conf import settings
from django.http import HttpRequest
from rest_framework.request import Request


def client_address(request: HttpRequest | Request) -> str | None:
    """Return the client's address, or None where it is not known.

    With BEHIND_PROXY this is the last entry of CLIENT_ADDRESS_HEADER, which the operator's proxy wrote. The client may
    have invented all entries before it.
    """
    text = request.META.get("REMOTE_ADDR", "")
    if settings.BEHIND_PROXY:
        name = settings.CLIENT_ADDRESS_HEADER.upper().replace("-", "_")
        text = last_entry(request.META.get(f"HTTP_{name}", text))
    return parse_address(text)


def last_entry(header: str) -> str:
    """Return the last entry of a header with a list of addresses."""
    return header.rpartition(",")[2].strip()


@lru_cache(maxsize=1024)
def parse_address(text: str) -> str | None:
    """Return the one spelling of an address, however the listener writes it; None for any other text."""
    try:
        found = ip_address(text)
    except ValueError:
        return None
    return str(getattr(found, "ipv4_mapped", None) or found)


def rate_limit_key(request: HttpRequest | Request) -> str:
    """Return the network of a client."""
    return network_of(client_address(request))


@lru_cache(maxsize=1024)
def network_of(address: str | None) -> str:
    """Return the network that a limit counts: the address, or for IPv6 its /64, which one client often owns."""
    if address is None:
        return "unknown"
    found = ip_address(address)
    if isinstance(found, IPv6Address):
        return found.exploded[:19]
    return address


def is_direct_loopback(request: HttpRequest | Request) -> bool:
    """Return whether a request comes from this machine without a proxy. Behind a local proxy all clients look local."""
    relayed = settings.BEHIND_PROXY or "HTTP_X_FORWARDED_FOR" in request.META or "HTTP_FORWARDED" in request.META
    address = client_address(request)
    return not relayed and address is not None and ip_address(address).is_loopback
