"""Rules about addresses, names and sockets. Each returns the detail of the finding, or None."""

from __future__ import annotations

import re

from workers.report.addresses import METADATA_NAMES, is_expected, kind_of
from workers.report.events import AttemptEvent, ContactEvent, ListenEvent, LookupEvent, ProxyEvent
from workers.report.rules.context import RuleContext

_CONTROL = re.compile(r"/(?:docker|podman/podman|containerd/containerd|crio/crio|libvirt/.*)(?:\.sock|$)")
_REVERSE = (".in-addr.arpa", ".ip6.arpa")
DNS_PORT = 53
_LONG_LABEL = 48  # an ordinary name's parts are words


def metadata_address(context: RuleContext[ContactEvent]) -> str | None:
    """Find contacts with the metadata service of a cloud."""
    return host_and_port(context.event) if _kind(context.event) == "metadata" else None


def metadata_name(context: RuleContext[LookupEvent]) -> str | None:
    """Find lookups of the metadata service of a cloud."""
    return context.event.name if context.event.name in METADATA_NAMES else None


def private_address(context: RuleContext[ContactEvent]) -> str | None:
    """Find contacts with private addresses. A query to a resolver is a lookup, for which there is a rule."""
    is_resolver = context.event.port == DNS_PORT
    return (
        host_and_port(context.event)
        if _kind(context.event) == "private" and not is_resolver and not _is_expected(context)
        else None
    )


def connection_outside(context: RuleContext[ContactEvent]) -> str | None:
    """Find contacts with public addresses that are not expected."""
    return host_and_port(context.event) if _kind(context.event) == "public" and not _is_expected(context) else None


def proxied_outside(context: RuleContext[ProxyEvent]) -> str | None:
    """Find hosts that the egress proxy refused."""
    return with_port(context.event.name, context.event.port) if context.event.verdict == "refused" else None


def lookup_outside(context: RuleContext[LookupEvent]) -> str | None:
    """Find lookups of names that are not expected."""
    name = context.event.name
    is_own = "." not in name or name.startswith("localhost.")  # git and others ask for the name of their own host
    if is_own or name.endswith(_REVERSE) or is_expected(name, None, context.expected):
        return None
    return name


def encoded_lookup(context: RuleContext[LookupEvent]) -> str | None:
    """Find names long enough to carry data."""
    name = context.event.name
    return name if max(map(len, name.split("."))) >= _LONG_LABEL else None


def host_socket(context: RuleContext[ContactEvent]) -> str | None:
    """Find contacts with the control sockets of the machine."""
    contact = context.event
    return contact.host if contact.family == "unix" and _CONTROL.search(contact.host) else None


def unusual_socket(context: RuleContext[AttemptEvent]) -> str | None:
    """Find sockets of unusual families."""
    attempt = context.event
    return f"{attempt.words[0]} ({attempt.errno or 'granted'})" if attempt.call == "socket" else None


def listening_socket(context: RuleContext[ListenEvent]) -> str | None:
    """Find sockets that listen."""
    return with_port(context.event.host, context.event.port)


def host_and_port(contact: ContactEvent) -> str:
    """Return the address of a contact with its port."""
    return with_port(contact.host, contact.port)


def with_port(host: str, port: int | None) -> str:
    """Return `host:port`, or `[host]:port` for IPv6."""
    if port is None:
        return host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _kind(contact: ContactEvent) -> str | None:
    return kind_of(contact.host) if contact.family in {"inet", "inet6"} else None


def _is_expected(context: RuleContext[ContactEvent]) -> bool:
    return is_expected(context.event.host, context.event.port, context.expected)
