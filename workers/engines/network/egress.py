"""The way out of a sandbox: CONNECT to names on the list, at public addresses, counted and written down."""

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
_LAST_SECONDS = 2.0  # for connections to notice that the job is over
_CHUNK = 1 << 16
NOBODY = Target("", 0)


@dataclass(frozen=True)
class EgressResolver:
    """How names become addresses and which addresses may be spoken to. Only tests pass anything but the defaults."""

    resolve: Callable[[str, int], list[str]] = addresses.resolve
    is_public: Callable[[str], bool] = addresses.is_public


class EgressDenied(Exception):  # a verdict, not a fault
    """The request gets an answer and no connection. `status` is for the client, `reason` for the record."""

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
    """Whom a CONNECT is for, and the bytes that came right behind it. Raises Refused, OSError."""
    client.settimeout(_REQUEST_SECONDS)
    end, data = time.monotonic() + _REQUEST_SECONDS, b""
    while b"\r\n\r\n" not in data:
        chunk = client.recv(_CHUNK)
        data += chunk
        if not chunk or len(data) > _MAX_REQUEST or time.monotonic() > end:
            raise EgressDenied("400 Bad Request", "bad_request", "This is not a request that ends in time and size.")
    head, _, early = data.partition(b"\r\n\r\n")
    return parse_request(head.split(b"\r\n", 1)[0].decode("latin-1")), early


def parse_request(line: str) -> Target:
    method, _, rest = line.partition(" ")
    authority, _, version = rest.partition(" ")
    if method != "CONNECT":
        host = authority.removeprefix("http://").split("/", 1)[0]
        wanted = addresses.target(host if host.rpartition(":")[2].isdigit() else f"{host}:80")
        text = "Only CONNECT goes out of this sandbox: use https, through the proxy that https_proxy names."
        raise EgressDenied("405 Method Not Allowed\r\nAllow: CONNECT", "not_connect", text, target=wanted)
    wanted = addresses.target(authority)
    if wanted is None or not version.startswith("HTTP/1."):
        raise EgressDenied("400 Bad Request", "bad_request", "CONNECT takes host:port, with a name or an address.")
    return wanted


@dataclass(eq=False)
class EgressConnection:
    """One client, whom it asked for, and what came of it."""

    client: socket.socket
    upstream: socket.socket | None = None
    target: Target = NOBODY
    address: str | None = None
    sent: int = 0
    received: int = 0

    def cut(self) -> None:
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
    """One per job. `listen_on` a socket made in the job's network namespace, or `serve` single connections."""

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
        """Take the socket over. Beyond `MAX_CONNECTIONS` it is closed at once: each takes a thread of the worker."""
        connection = EgressConnection(client)
        thread = threading.Thread(target=self._serve, args=(connection,), name="egress", daemon=True)
        with self._lock:
            if self._closed or len(self._live) >= MAX_CONNECTIONS:
                client.close()
                return
            self._live[connection] = thread
            thread.start()  # under the lock: `finish` must not join a thread that has not started

    def finish(self) -> tuple[NetworkRecord, ...]:
        """End every connection, and tell what there was. Nothing is relayed after this."""
        with self._lock:
            self._closed = True
            live = dict(self._live)
        for listener in self._listeners:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
        for connection in live:
            connection.cut()
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
            self._note(self._attempt(connection))
        except OSError:
            pass  # the client went away before it had said what it wanted
        finally:
            connection.close()
            with self._lock:
                del self._live[connection]

    def _attempt(self, connection: EgressConnection) -> NetworkRecord:
        try:
            connection.target, early = read_request(connection.client)
            connection.address, upstream = self._reach(connection.target)
            connection.upstream = upstream
        except EgressDenied as refusal:
            connection.target = refusal.target or connection.target
            connection.client.sendall(refusal.answer())
            return connection.record(refusal.verdict, refusal.reason)
        return self._relay(connection, upstream, early)

    def _reach(self, wanted: Target) -> tuple[str, socket.socket]:
        """Check, resolve once, and connect to an address from that very answer."""
        shown = f"{wanted.name}:{wanted.port}"
        if not addresses.allows(self.egress.allow, wanted):
            raise EgressDenied("403 Forbidden", "not_on_the_list", f"{shown} is not on this organization's list.")
        if self._left <= 0:
            raise EgressDenied("403 Forbidden", "byte_limit", "This job has moved all the bytes that it may.")
        try:
            found = self.resolver.resolve(wanted.name, wanted.port)
        except OSError as error:
            raise EgressDenied("502 Bad Gateway", "name_not_found", f"{wanted.name} was not found.") from error
        if not found or not all(self.resolver.is_public(address) for address in found):
            raise EgressDenied(
                "403 Forbidden", "private_address", f"{wanted.name} leads to an address that is not public."
            )
        for address in found:
            with contextlib.suppress(OSError):
                return address, socket.create_connection((address, wanted.port), _CONNECT_SECONDS)
        raise EgressDenied("502 Bad Gateway", "no_connection", f"{shown} does not answer.")

    def _relay(self, connection: EgressConnection, upstream: socket.socket, early: bytes) -> NetworkRecord:
        for end in (connection.client, upstream):
            end.settimeout(None)
            with contextlib.suppress(OSError):  # a dummy of the restricted engine is no TCP socket
                end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        with self._lock:
            if self._closed:
                return connection.record("allowed", "job_ended")
        back = threading.Thread(target=self._copy, args=(connection, upstream, "received"), name="egress", daemon=True)
        with contextlib.suppress(OSError):
            connection.client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            back.start()
            self._copy(connection, upstream, "sent", early)
            back.join()
        return connection.record("allowed", "byte_limit" if self._left < 0 else None)

    def _copy(self, connection: EgressConnection, upstream: socket.socket, way: str, data: bytes = b"") -> None:
        client = connection.client
        source, sink = (client, upstream) if way == "sent" else (upstream, client)
        try:
            data = data or source.recv(_CHUNK)
            while data and self._may_move(len(data)):
                sink.sendall(data)
                setattr(connection, way, getattr(connection, way) + len(data))
                data = source.recv(_CHUNK)
            sink.shutdown(socket.SHUT_WR)
            if data:  # over the cap
                connection.cut()
        except OSError:
            connection.cut()

    def _may_move(self, count: int) -> bool:
        with self._lock:
            self._left -= count
            return self._left >= 0

    def _note(self, record: NetworkRecord) -> None:
        with self._lock:
            if record.name and len(self._records) < MAX_RECORDS:
                self._records.append(record)
