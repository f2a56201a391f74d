"""Rules about addresses, names and sockets. Each returns what to say about its fact, or None."""

from __future__ import annotations

import re

from workers.report.addresses import METADATA_NAMES, is_expected, kind_of
from workers.report.events import AttemptEvent, ContactEvent, Listening, LookupEvent, Proxied
from workers.report.rules.context import RuleContext

_CONTROL = re.compile(r"/(?:docker|podman/podman|containerd/containerd|crio/crio|libvirt/.*)(?:\.sock|$)")
_REVERSE = (".in-addr.arpa", ".ip6.arpa")
DNS_PORT = 53
_LONG_LABEL = 48  # an ordinary name's parts are words


def metadata_address(case: RuleContext[ContactEvent]) -> str | None:
    return spoken_to(case.fact) if _kind(case.fact) == "metadata" else None


def metadata_name(case: RuleContext[LookupEvent]) -> str | None:
    return case.fact.name if case.fact.name in METADATA_NAMES else None


def private_address(case: RuleContext[ContactEvent]) -> str | None:
    """Not the way to a resolver: what is asked there is a lookup, and judged as one."""
    is_resolver = case.fact.port == DNS_PORT
    return (
        spoken_to(case.fact) if _kind(case.fact) == "private" and not is_resolver and not _is_expected(case) else None
    )


def connection_outside(case: RuleContext[ContactEvent]) -> str | None:
    return spoken_to(case.fact) if _kind(case.fact) == "public" and not _is_expected(case) else None


def proxied_outside(case: RuleContext[Proxied]) -> str | None:
    return with_port(case.fact.name, case.fact.port) if case.fact.verdict == "refused" else None


def lookup_outside(case: RuleContext[LookupEvent]) -> str | None:
    name = case.fact.name
    is_own = "." not in name or name.startswith("localhost.")  # git and others ask for the name of their own host
    if is_own or name.endswith(_REVERSE) or is_expected(name, None, case.expected):
        return None
    return name


def encoded_lookup(case: RuleContext[LookupEvent]) -> str | None:
    name = case.fact.name
    return name if max(map(len, name.split("."))) >= _LONG_LABEL else None


def host_socket(case: RuleContext[ContactEvent]) -> str | None:
    contact = case.fact
    return contact.host if contact.family == "unix" and _CONTROL.search(contact.host) else None


def unusual_socket(case: RuleContext[AttemptEvent]) -> str | None:
    attempt = case.fact
    return f"{attempt.words[0]} ({attempt.errno or 'granted'})" if attempt.call == "socket" else None


def listening_socket(case: RuleContext[Listening]) -> str | None:
    return with_port(case.fact.host, case.fact.port)


def spoken_to(contact: ContactEvent) -> str:
    return with_port(contact.host, contact.port)


def with_port(host: str, port: int | None) -> str:
    if port is None:
        return host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _kind(contact: ContactEvent) -> str | None:
    return kind_of(contact.host) if contact.family in {"inet", "inet6"} else None


def _is_expected(case: RuleContext[ContactEvent]) -> bool:
    return is_expected(case.fact.host, case.fact.port, case.expected)
