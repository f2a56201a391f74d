"""The egress proxy: CONNECT to allowed names at public addresses, with a byte limit and a record of each attempt."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from workers.engines.contract import EgressPolicy, NetworkRecord
from workers.engines.network import addresses
from workers.engines.network.addresses import Target

PORT = 3128
MAX_CONNECTIONS = 128  # at a time
MAX_RECORDS = 2000
_MAX_REQUEST = 8192
_REQUEST_SECONDS, _CONNECT_SECONDS = 10.0, 15.0
_LAST_SECONDS = 2.0  # for connections to end after the job
_CHUNK = 1 << 16
NO_TARGET = Target("", 0)


@dataclass(frozen=True)
class EgressResolver:
    """Resolves names, and decides which addresses may be connected. Only tests change the defaults."""

    resolve: Callable[[str, int], list[str]] = addresses.resolve
    is_public: Callable[[str], bool] = addresses.is_public


class EgressDenied(Exception):  # a verdict, not an error
    """A refused request. `status` is for the client, `reason` for the record."""

    def __init__(self, status: str, reason: str, text: str, *, target: Target | None = None) -> None:
        super().__init__(text)
        self.status, self.reason, self.target = status, reason, target

    @property
    def verdict(self) -> str:
        return "unreachable" if self.reason in ("name_not_found", "no_connection") else "refused"

    def answer(self) -> bytes:
        body = f"{self}\n".encode()
        head = f"HTTP/1.1 {self.status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
        return (head + "Connection: close\r\n\r\n").encode() + body


def read_request(client: socket.socket) -> tuple[Target, bytes]:
    """Return the target of a CONNECT, and the bytes that came behind it. Raises EgressDenied, OSError."""
    client.settimeout(_REQUEST_SECONDS)
    end, data = time.monotonic() + _REQUEST_SECONDS, b""
    while b"\r\n\r\n" not in data:
        chunk = client.recv(_CHUNK)
        data += chunk
        if not chunk or len(data) > _MAX_REQUEST or time.monotonic() > end:
            raise EgressDenied(
                "400 Bad Request",
                "bad_request",
                f"A request must end within {_REQUEST_SECONDS:.0f} s and {_MAX_REQUEST} bytes.",
            )
    head, _, early_data = data.partition(b"\r\n\r\n")
    return parse_request(head.split(b"\r\n", 1)[0].decode("latin-1")), early_data


def parse_request(line: str) -> Target:
    """Return the target of a request line. Raises EgressDenied for anything but CONNECT to a host and a port."""
    method, _, rest = line.partition(" ")
    authority, _, version = rest.partition(" ")
    if method != "CONNECT":
        host = authority.removeprefix("http://").split("/", 1)[0]
        wanted = addresses.target(host if host.rpartition(":")[2].isdigit() else f"{host}:80")
        text = "Only CONNECT is supported: use https, through the proxy in https_proxy."
        raise EgressDenied("405 Method Not Allowed\r\nAllow: CONNECT", "not_connect", text, target=wanted)
    wanted = addresses.target(authority)
    if wanted is None or not version.startswith("HTTP/1."):
        raise EgressDenied("400 Bad Request", "bad_request", "CONNECT needs host:port, with a name or an address.")
    return wanted


@dataclass(eq=False)
class EgressConnection:
    """One client, its target, and the bytes that were relayed."""

    client: socket.socket
    upstream: socket.socket | None = None
    target: Target = NO_TARGET
    address: str | None = None
    sent: int = 0
    received: int = 0

    def shut_down(self) -> None:
        for end in (self.client, self.upstream):
            with contextlib.suppress(OSError):
                if end:
                    end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for end in (self.client, self.upstream):
            if end:
                end.close()

    def record(self, verdict: str, reason: str | None = None) -> NetworkRecord:
        wanted = self.target
        return NetworkRecord(wanted.name, wanted.port, verdict, self.address, self.sent, self.received, reason)


@dataclass
class EgressProxy:
    """The proxy of one job. `listen_on` a socket of its network namespace, or `serve` single connections."""

    egress: EgressPolicy
    resolver: EgressResolver = field(default_factory=EgressResolver)

    def __post_init__(self) -> None:
        self._left = self.egress.max_bytes
        self._lock = threading.Lock()
        self._closed = False
        self._listeners: list[socket.socket] = []
        self._live: dict[EgressConnection, threading.Thread] = {}
        self._records: list[NetworkRecord] = []

    def listen_on(self, listener: socket.socket) -> None:
        self._listeners.append(listener)
        threading.Thread(target=self._accept, args=(listener,), name="egress", daemon=True).start()

    def serve(self, client: socket.socket) -> None:
        """Serve a client in a thread. Beyond `MAX_CONNECTIONS` it is closed: each takes a thread of the worker."""
        connection = EgressConnection(client)
        thread = threading.Thread(target=self._serve, args=(connection,), name="egress", daemon=True)
        with self._lock:
            if self._closed or len(self._live) >= MAX_CONNECTIONS:
                client.close()
                return
            self._live[connection] = thread
            thread.start()  # under the lock: `finish` must not join a thread that has not started

    def finish(self) -> tuple[NetworkRecord, ...]:
        """End every connection and return the records. Nothing is relayed after this."""
        with self._lock:
            self._closed = True
            live = dict(self._live)
        for listener in self._listeners:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
        for connection in live:
            connection.shut_down()
        end = time.monotonic() + _LAST_SECONDS
        for thread in live.values():
            thread.join(max(end - time.monotonic(), 0))
        return tuple(self._records)

    def _accept(self, listener: socket.socket) -> None:
        with listener, contextlib.suppress(OSError):
            while not self._closed:
                client, _ = listener.accept()
                self.serve(client)

    def _serve(self, connection: EgressConnection) -> None:
        try:
            self._record(self._attempt(connection))
        except OSError:
            pass  # the client closed before its request was complete
        finally:
            connection.close()
            with self._lock:
                del self._live[connection]

    def _attempt(self, connection: EgressConnection) -> NetworkRecord:
        try:
            connection.target, early_data = read_request(connection.client)
            connection.address, upstream = self._reach(connection.target)
            connection.upstream = upstream
        except EgressDenied as refusal:
            connection.target = refusal.target or connection.target
            connection.client.sendall(refusal.answer())
            return connection.record(refusal.verdict, refusal.reason)
        return self._relay(connection, upstream, early_data)

    def _reach(self, wanted: Target) -> tuple[str, socket.socket]:
        """Check, resolve once, and connect to an address of that response."""
        authority = f"{wanted.name}:{wanted.port}"
        if not addresses.allows(self.egress.allow, wanted):
            raise EgressDenied(
                "403 Forbidden", "not_on_the_list", f"{authority} is not on this organization's egress list."
            )
        if self._left <= 0:
            raise EgressDenied(
                "403 Forbidden",
                "byte_limit",
                f"The egress limit of this job, {self.egress.max_bytes} bytes, is used up.",
            )
        try:
            resolved = self.resolver.resolve(wanted.name, wanted.port)
        except OSError as error:
            raise EgressDenied("502 Bad Gateway", "name_not_found", f"{wanted.name} could not be resolved.") from error
        if not resolved or not all(self.resolver.is_public(address) for address in resolved):
            raise EgressDenied(
                "403 Forbidden", "private_address", f"{wanted.name} resolves to an address that is not public."
            )
        for address in resolved:
            with contextlib.suppress(OSError):
                return address, socket.create_connection((address, wanted.port), _CONNECT_SECONDS)
        raise EgressDenied("502 Bad Gateway", "no_connection", f"{authority} could not be connected.")

    def _relay(self, connection: EgressConnection, upstream: socket.socket, early_data: bytes) -> NetworkRecord:
        for end in (connection.client, upstream):
            end.settimeout(None)
            with contextlib.suppress(OSError):  # a fake socket of the restricted engine is no TCP socket
                end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        with self._lock:
            if self._closed:
                return connection.record("allowed", "job_ended")
        back = threading.Thread(target=self._copy, args=(connection, upstream, "received"), name="egress", daemon=True)
        with contextlib.suppress(OSError):
            connection.client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            back.start()
            self._copy(connection, upstream, "sent", early_data)
            back.join()
        return connection.record("allowed", "byte_limit" if self._left < 0 else None)

    def _copy(self, connection: EgressConnection, upstream: socket.socket, way: str, data: bytes = b"") -> None:
        client = connection.client
        source, sink = (client, upstream) if way == "sent" else (upstream, client)
        try:
            data = data or source.recv(_CHUNK)
            while data and self._count(len(data)):
                sink.sendall(data)
                setattr(connection, way, getattr(connection, way) + len(data))
                data = source.recv(_CHUNK)
            sink.shutdown(socket.SHUT_WR)
            if data:  # over the cap
                connection.shut_down()
        except OSError:
            connection.shut_down()

    def _count(self, count: int) -> bool:
        with self._lock:
            self._left -= count
            return self._left >= 0

    def _record(self, record: NetworkRecord) -> None:
        with self._lock:
            if record.name and len(self._records) < MAX_RECORDS:
                self._records.append(record)
