"""Classifies addresses, and matches hosts against the expected ones."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from functools import lru_cache

# Where clouds hand out credentials to whoever asks.
_METADATA = frozenset({"169.254.169.254", "169.254.170.2", "169.254.170.23", "fd00:ec2::254", "100.100.100.200"})
METADATA_NAMES = frozenset({"metadata", "metadata.google.internal", "metadata.goog", "instance-data.ec2.internal"})

# Not `is_private` of the standard library: that counts the addresses of documentation too.
_PRIVATE = tuple(
    ipaddress.ip_network(network)
    for network in (
        "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "169.254.0.0/16", "fc00::/7", "fe80::/10",
    )
)  # fmt: skip


@lru_cache(maxsize=1024)
def kind_of(host: str) -> str:
    """Return `metadata`, `loopback`, `private` or `public`. A name is `public`: it may resolve to anything."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return "public"
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    if str(address) in _METADATA:
        return "metadata"
    if address.is_loopback or address.is_unspecified:  # Linux connects 0.0.0.0 to itself
        return "loopback"
    return "private" if any(address in network for network in _PRIVATE) else "public"


def is_expected(host: str, port: int | None, expected: Sequence[str]) -> bool:
    """Report whether a host matches a pattern.

    Args:
        host: The name or address.
        port: The port, if known.
        expected: `host` or `*.suffix` (not the suffix itself), each also with `:port`; without one any port matches.
    """
    return any(_matches(host.lower().rstrip("."), port, pattern.lower()) for pattern in expected)


def _matches(host: str, port: int | None, pattern: str) -> bool:
    name, sign, wanted = pattern.rpartition(":")
    if sign and wanted.isdigit() and not name.endswith(":"):
        if port is not None and port != int(wanted):
            return False
    else:
        name = pattern
    return host.endswith(name[1:]) and len(host) > len(name) - 1 if name.startswith("*.") else host == name
