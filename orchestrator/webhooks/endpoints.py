"""The addresses that webhooks may have: https to the open internet, or a network that the operator has opened.

A name is checked twice. When a webhook is set, so that its owner learns of a mistake. And at each connection, because
the addresses of a name change: `orchestrator.webhooks.sender` connects to the very address that was checked.
"""

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Final
from urllib.parse import urlsplit

from django.conf import settings

from orchestrator.webhooks.models import MAX_URL_LENGTH
from runtime_jobs.errors import BlockedUrl
from workers.engines.network.addresses import is_public, resolve, target

DEFAULT_PORTS: Final = {"https": 443, "http": 80}
FIRST_FREE_PORT: Final = 1024  # below it are ports of other protocols, such as 22 and 25
RESOLVE_SECONDS: Final = 3.0  # a request waits no longer for the addresses of a name
_PRINTABLE: Final = re.compile(r"[!-~]+")  # ASCII without spaces
_AUTHORITY: Final = re.compile(r"(?P<host>\[[^\[\]]*\]|[^:\[\]]*)(?::(?P<port>[0-9]{1,5}))?")
_resolvers = ThreadPoolExecutor(max_workers=4, thread_name_prefix="webhook-names")


@dataclass(frozen=True)
class WebhookEndpoint:
    """The URL of a webhook in parts.

    Attributes:
        scheme: `https`, or `http`, which only an opened network may have.
        host: The name or address in one spelling, without brackets.
        port: The port.
        path: The path and the query, as they are sent.
    """

    scheme: str
    host: str
    port: int
    path: str

    @property
    def url(self) -> str:
        """The URL in the form that is stored and requested."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == DEFAULT_PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}{self.path}"


def parse_endpoint(url: str) -> WebhookEndpoint:
    """Return the parts of a URL. No name is resolved.

    Raises:
        BlockedUrl: No webhook may have such a URL, whatever its addresses are.
    """
    if len(url) > MAX_URL_LENGTH:
        raise BlockedUrl(f"The URL has {len(url)} characters; at most {MAX_URL_LENGTH} are allowed.")
    # Two parsers may read other characters differently.
    if not _PRINTABLE.fullmatch(url) or "\\" in url:
        raise BlockedUrl("The URL may contain printable ASCII characters only, without spaces and backslashes.")
    try:
        parts = urlsplit(url)
    except ValueError:
        raise BlockedUrl("The URL cannot be read.") from None
    if parts.scheme not in DEFAULT_PORTS or not parts.netloc:
        raise BlockedUrl("The URL must begin with https://.")
    if "@" in parts.netloc:
        raise BlockedUrl("The URL must not contain a user name or password.")
    if "#" in url:
        raise BlockedUrl("The URL must not contain a fragment (#).")
    found = _AUTHORITY.fullmatch(parts.netloc)
    port = (found and found["port"]) or str(DEFAULT_PORTS[parts.scheme])
    host_and_port = target(f"{found['host']}:{port}") if found else None
    if host_and_port is None:
        raise BlockedUrl("The host or port of the URL cannot be read.")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return WebhookEndpoint(parts.scheme, host_and_port.name, host_and_port.port, path)


def check_endpoint(url: str) -> str:
    """Check the URL of a webhook with the present addresses of its host, and return the form that is stored.

    Raises:
        BlockedUrl: No webhook may have this URL; the message says why.
    """
    endpoint = parse_endpoint(url)
    try:
        addresses = _resolvers.submit(resolve, endpoint.host, endpoint.port).result(RESOLVE_SECONDS)
    except TimeoutError:
        raise BlockedUrl(f"The host {endpoint.host} did not resolve within {RESOLVE_SECONDS:.0f} seconds.") from None
    except (OSError, UnicodeError):
        raise BlockedUrl(f"The host {endpoint.host} does not resolve to an address.") from None
    if addresses and all(is_opened(address) for address in addresses):
        return endpoint.url
    if endpoint.scheme != "https":
        raise BlockedUrl("The URL must begin with https://.")
    if not is_free_port(endpoint.port):
        raise BlockedUrl(f"The port {endpoint.port} is not allowed. Use 443, or one from {FIRST_FREE_PORT}.")
    # One private address among public ones is enough: a later connection may take it.
    if not addresses or not all(is_public(address) or is_opened(address) for address in addresses):
        raise BlockedUrl(f"The host {endpoint.host} has an address that is not public.")
    return endpoint.url


def is_free_port(port: int) -> bool:
    """Return whether a public host may be reached at a port: that of https, or one that no other protocol owns."""
    return port == DEFAULT_PORTS["https"] or port >= FIRST_FREE_PORT


def is_opened(address: str) -> bool:
    """Return whether the operator has opened the network of an address (`WEBHOOK_NETWORKS`)."""
    networks = _networks(tuple(settings.WEBHOOK_NETWORKS))
    if not networks:
        return False
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    return any(found.version == network.version and found in network for network in networks)


@lru_cache(maxsize=8)
def _networks(texts: tuple[str, ...]) -> tuple[IPv4Network | IPv6Network, ...]:
    return tuple(ip_network(text) for text in texts)
