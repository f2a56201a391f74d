"""From where a request comes. What a header says about that counts only behind the operator's own proxy."""

from ipaddress import IPv6Address, ip_address

from django.conf import settings
from django.http import HttpRequest
from rest_framework.request import Request


def client_address(request: HttpRequest | Request) -> str | None:
    """The caller's address. With BEHIND_PROXY it is the last entry of X-Forwarded-For: the one that our proxy wrote;
    whatever stands before it the caller may have invented."""
    text = request.META.get("REMOTE_ADDR", "")
    if settings.BEHIND_PROXY:
        text = request.META.get("HTTP_X_FORWARDED_FOR", text).rpartition(",")[2].strip()
    try:
        found = ip_address(text)
    except ValueError:
        return None
    return str(getattr(found, "ipv4_mapped", None) or found)  # one address, however the listener writes it


def rate_limit_key(request: HttpRequest | Request) -> str:
    """What one caller can easily be in: the address, or for IPv6 its /64, of which anybody has a whole one."""
    address = client_address(request)
    if address is None:
        return "unknown"
    found = ip_address(address)
    if isinstance(found, IPv6Address):
        return found.exploded[:19]
    return address


def is_direct_loopback(request: HttpRequest | Request) -> bool:
    """From this machine itself, and by no proxy that says so. A proxy here would make everybody look local."""
    relayed = settings.BEHIND_PROXY or "HTTP_X_FORWARDED_FOR" in request.META or "HTTP_FORWARDED" in request.META
    address = client_address(request)
    return not relayed and address is not None and ip_address(address).is_loopback
