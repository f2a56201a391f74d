"""Open connections of one server process: a limit for all of them, and a limit per client address.

The limit of open files bounds the connections before any setting does; this module raises it as far as allowed.
"""

import resource
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Protocol

from prometheus_client import Counter as Metric
from prometheus_client import Gauge

CONNECTIONS = Gauge("orchestrator_connections", "Client connections that this process has open.", registry=None)
REFUSED = Metric(
    "orchestrator_refused_connections",
    "Connections that this process refused or cut off before a view saw a request, by reason.",
    ["reason"],
    registry=None,
)


SPARE_FILES = 256  # beside client connections: database, log, spooled bodies


class Evictable(Protocol):
    """A connection that can be closed while it serves no request."""

    def evict(self) -> None:
        """Close the connection to make room for another client."""


@dataclass(eq=False)
class ConnectionTable:
    """Counts the connections of one event loop, and closes an idle one for a new client when the limit is reached.

    Attributes:
        max_connections: Number of connections that may be open at a time.
        max_per_address: Number of connections of one client network at a time; None: no limit.
    """

    max_connections: int
    max_per_address: int | None
    _network_of: dict[Evictable, str | None] = field(default_factory=dict)
    _per_network: Counter[str] = field(default_factory=Counter)
    _idle: dict[Evictable, None] = field(default_factory=dict)  # no request in progress; oldest first

    def __len__(self) -> int:
        return len(self._network_of)

    def admit(self, connection: Evictable, address: str | None) -> str | None:
        """Register a new connection, which is idle at first.

        Args:
            connection: The connection.
            address: The IP address of the client; None for a Unix socket.

        Returns:
            None, or the reason for a refusal: `address_limit` or `connection_limit`.
        """
        network, limit = client_network(address), self.max_per_address
        if network is not None and limit is not None and self._per_network[network] >= limit:
            return "address_limit"
        if len(self) >= self.max_connections and not self._idle:
            return "connection_limit"
        while len(self) >= self.max_connections:
            # Half-open and idle keep-alive connections are closed first: no request is lost with them.
            oldest = next(iter(self._idle))
            self.remove(oldest)
            REFUSED.labels("evicted").inc()
            oldest.evict()
        self._network_of[connection] = network
        if network is not None:
            self._per_network[network] += 1
        self._idle[connection] = None
        CONNECTIONS.set(len(self))
        return None

    def remove(self, connection: Evictable) -> None:
        """Remove a connection. A second call has no effect."""
        self._idle.pop(connection, None)
        network = self._network_of.pop(connection, None)
        if network is not None:
            self._per_network[network] -= 1
            if not self._per_network[network]:
                del self._per_network[network]
        CONNECTIONS.set(len(self))

    def begin_request(self, connection: Evictable) -> None:
        """Protect the connection from eviction until `end_request`."""
        self._idle.pop(connection, None)

    def end_request(self, connection: Evictable) -> None:
        """Allow eviction again."""
        if connection in self._network_of:
            self._idle[connection] = None


@lru_cache(4096)
def client_network(address: str | None) -> str | None:
    """Return the address, or its /64 network for IPv6, because each IPv6 client has a whole /64.

    Returns:
        None for loopback and Unix sockets, to which the limit per address does not apply.
    """
    try:
        found = ip_address(address or "")
    except ValueError:
        return None
    found = getattr(found, "ipv4_mapped", None) or found
    if found.is_loopback:
        return None
    return found.exploded[:19] if isinstance(found, IPv6Address) else str(found)


def raise_file_limit(connections: int) -> None:
    """Raise the soft limit of open files to the need of `connections`, as far as the hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + SPARE_FILES if hard == resource.RLIM_INFINITY else min(connections + SPARE_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def connections_within_file_limit(connections: int) -> int:
    """Return how many of `connections` fit into the soft limit of open files.

    A process without a free descriptor accepts no connection for a second, and cannot open a file either.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return connections
    return max(1, min(connections, soft - min(SPARE_FILES, soft // 4)))
