"""Open connections of one server process: a bound on all of them, and a bound per client address."""

from collections import Counter
from dataclasses import dataclass, field
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


class Evictable(Protocol):
    """A connection that can be closed while no request of it is in progress."""

    def evict(self) -> None: ...


@dataclass(eq=False)
class ConnectionTable:
    """Counts connections of one event loop and closes an idle one when a new client finds no room.

    Args:
        max_connections: connections that may be open at a time.
        max_per_address: connections of one client network at a time; None: not bounded.
    """

    max_connections: int
    max_per_address: int | None
    _network_of: dict[Evictable, str | None] = field(default_factory=dict)
    _per_network: Counter[str] = field(default_factory=Counter)
    _idle: dict[Evictable, None] = field(default_factory=dict)  # without a request in progress; the oldest first

    def __len__(self) -> int:
        return len(self._network_of)

    def admit(self, connection: Evictable, address: str | None) -> str | None:
        """Registers a new connection, which is idle at first.

        Returns:
            None, or why the connection is refused: `address_limit` or `connection_limit`.
        """
        network = client_network(address)
        limit = self.max_per_address
        if network is not None and limit is not None and self._per_network[network] >= limit:
            return "address_limit"
        while len(self) >= self.max_connections:
            # Half-open and idle keep-alive connections give way: a client repeats nothing when one of them is closed.
            oldest = next(iter(self._idle), None)
            if oldest is None:
                return "connection_limit"
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
        """Forgets a connection. A second call changes nothing."""
        self._idle.pop(connection, None)
        network = self._network_of.pop(connection, None)
        if network is not None:
            self._per_network[network] -= 1
            if not self._per_network[network]:
                del self._per_network[network]
        CONNECTIONS.set(len(self))

    def begin_request(self, connection: Evictable) -> None:
        """Protects the connection from eviction until `end_request`."""
        self._idle.pop(connection, None)

    def end_request(self, connection: Evictable) -> None:
        """Allows eviction again."""
        if connection in self._network_of:
            self._idle[connection] = None


def client_network(address: str | None) -> str | None:
    """Returns the address, or its /64 for IPv6, of which each client has a whole one.

    None where a bound per address makes no sense: loopback, Unix sockets.
    """
    try:
        found = ip_address(address or "")
    except ValueError:
        return None
    found = getattr(found, "ipv4_mapped", None) or found
    if found.is_loopback:
        return None
    return found.exploded[:19] if isinstance(found, IPv6Address) else str(found)
