"""The names that a job may request from the egress proxy, and the addresses that no name may resolve to."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_NAME = re.compile(r"(?=.{1,253}$)[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)*")
_AUTHORITY = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([^\[\]:/@\s]+)):(\d{1,5})")
_PATTERN = re.compile(r"(?:\[(?P<six>[0-9a-fA-F:.]+)\]|(?P<name>[^\[\]:]+))(?::(?P<port>\d{1,5}))?")

# Forms that carry a second, hidden IPv4 address, relays to them, examples for documents, control ports of clouds with a
# public number. Python counts most of 192.0.0.0/24 as global, also the metadata service of one cloud (192.0.0.192).
_FORBIDDEN = tuple(
    ipaddress.ip_network(network)
    for network in (
        "64:ff9b::/96",
        "64:ff9b:1::/48",
        "2002::/16",
        "2001::/32",
        "::/96",
        "3fff::/20",
        "192.88.99.0/24",
        "168.63.129.16/32",
        "192.0.0.0/24",
    )
)
_ISATAP, _NOT_LOCAL_BIT = 0x0000_5EFE, 0xFDFF_FFFF  # of an interface, before the IPv4 address (RFC 5214)


@dataclass(frozen=True)
class Target:
    """A host, in one spelling, and a port."""

    name: str
    port: int


def target(authority: str) -> Target | None:
    """Parse `host:port` or `[v6]:port` of a CONNECT. None: it is neither."""
    match = _AUTHORITY.fullmatch(authority)
    port = int(match[3]) if match else 0
    if not match or not 0 < port < 65536:
        return None
    if match[1]:
        six = _literal(match[1])
        return Target(str(six), port) if six else None
    name = match[2].lower().removesuffix(".")
    return Target(name, port) if _NAME.fullmatch(name) else None


def allows(patterns: Sequence[str], wanted: Target) -> bool:
    """Report whether a pattern of the list matches the target."""
    return any(_matches(pattern, wanted) for pattern in patterns)


def _matches(pattern: str, wanted: Target) -> bool:
    """Match `name`, `*.suffix` (not the suffix itself) or `*`, each with `:port`; port 443 unless named."""
    match = _PATTERN.fullmatch(pattern.strip().lower())
    if not match or int(match["port"] or 443) != wanted.port:
        return False
    name = str(_literal(match["six"])) if match["six"] else match["name"].removesuffix(".")
    if name == "*":
        return _literal(wanted.name) is None
    if name.startswith("*."):
        return wanted.name.endswith(name[1:]) and wanted.name != name[1:]
    return wanted.name == name


def _literal(text: str) -> Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def is_public(text: str) -> bool:
    """Report whether the address is in the open internet: not private, shared, local, mapped, or this machine's."""
    address = _literal(text.partition("%")[0])
    if address is None or not address.is_global or address.is_multicast or address.is_reserved:
        return False
    if isinstance(address, ipaddress.IPv6Address) and (
        address.ipv4_mapped or address.is_site_local or int(address) >> 32 & _NOT_LOCAL_BIT == _ISATAP
    ):
        return False
    if any(address.version == network.version and address in network for network in _FORBIDDEN):
        return False
    return not _is_ours(address)


def _is_ours(address: Address) -> bool:
    """Report whether the address can be bound, which only those of this machine can: its services may listen there."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True


def resolve(name: str, port: int) -> list[str]:
    """Return all addresses of a name, in the system's order. Raises OSError."""
    found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))
