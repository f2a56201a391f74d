r"""Accepts connections in bursts, and opens those of different addresses in turn.

libuv accepts one connection for each listening descriptor and turn of the loop, in the order of arrival. Behind a burst
of 2,640 connections a client waited until all of them had a transport, a protocol and a parser. Here the accept queue
of the kernel is emptied at once. A connection is then only a descriptor in the queue of its address. The addresses take
turns for the few connections that are opened in one turn of the loop.

    kernel's queue --> refused: a prepared response, then closed
                  \-> queue of its address --> OPENED_PER_TURN of all addresses: transport, protocol, parser
"""

import asyncio
import ctypes
import errno
import logging
import os
import socket
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from ssl import SSLContext
from typing import Any, Final

from orchestrator.http.asgi.connections import REFUSED, SPARE_FILES, ConnectionTable, client_network
from orchestrator.http.asgi.raw_responses import connection_refusal

log = logging.getLogger(__name__)

OPENED_PER_TURN: Final = 16  # each is a transport and a protocol, and usually a request in the next turn
ACCEPTED_PER_TURN: Final = 1024  # each is a system call and an entry of a queue
RETRY_SECONDS: Final = 0.2  # after there was no descriptor or memory for one more connection
NO_RESOURCES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
QUEUE_IS_EMPTY: Final = errno.EAGAIN
ADDRESS_BYTES: Final = 128  # struct sockaddr_storage
ADDRESS_IN_STRUCT: Final = {socket.AF_INET: slice(4, 8), socket.AF_INET6: slice(8, 24)}
NO_ADDRESS: Final = slice(0)  # of a Unix socket
FLAGS: Final = socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
IPV4_MAPPED: Final = bytes(10) + b"\xff\xff"

# `socket.accept` gives the interpreter's lock away in each call. While request threads are busy it takes milliseconds
# to get the lock again. These sockets do not block, so the call keeps the lock.
_libc = ctypes.PyDLL(None, use_errno=True)


class Acceptor:
    """Accepts the connections of some listening sockets for one event loop.

    It replaces an `asyncio.Server` in a uvicorn server, which calls `close` and `wait_closed`.
    """

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        create_protocol: Callable[[], asyncio.Protocol],
        *,
        table: ConnectionTable,
        ssl: SSLContext | None = None,
        accepted_per_turn: int = ACCEPTED_PER_TURN,
    ) -> None:
        """Create an acceptor; `start` begins to accept.

        Args:
            sockets: Listening sockets, which the acceptor owns and closes.
            create_protocol: Makes the protocol of an opened connection.
            table: The open connections of the event loop, with their limits.
            ssl: The server's certificate, if it speaks TLS.
            accepted_per_turn: Limit of connections taken from the kernel in one turn of the loop. Processes that share
                a socket need a low one, because the first process would take a whole burst.
        """
        self.sockets = tuple(sockets)
        self.waiting = 0  # accepted and not opened
        self._create_protocol, self._table, self._ssl = create_protocol, table, ssl
        self._accepted_per_turn = accepted_per_turn
        self._queues: OrderedDict[bytes, deque[socket.socket]] = OrderedDict()  # by address; the next one is first
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_scheduled = self._is_closed = False
        self._address = ctypes.create_string_buffer(ADDRESS_BYTES)
        self._length = ctypes.c_int(ADDRESS_BYTES)

    def start(self) -> None:
        """Begin to accept in the running event loop."""
        self._loop = asyncio.get_running_loop()
        for listening in self.sockets:
            listening.settimeout(0)
            self._loop.add_reader(listening.fileno(), self._accept, listening)

    @property
    def is_opening(self) -> bool:
        """Return whether there are accepted connections that have no protocol yet."""
        return bool(self._queues or self._tasks)

    def stop_accepting(self) -> None:
        """Leave further connections in the queue of the kernel. Those that were accepted are opened."""
        self._is_closed = True
        for listening in self.sockets:
            if listening.fileno() >= 0:
                self._loop.remove_reader(listening.fileno())
                listening.close()

    def close(self) -> None:
        """Stop accepting, and close the connections that were not opened yet."""
        self.stop_accepting()
        while (connection := self._next()) is not None:
            connection.close()

    async def wait_closed(self) -> None:
        """Return at once. The connections that are open belong to their protocols."""

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(self._accepted_per_turn):
            self._length.value = ADDRESS_BYTES
            found = _libc.accept4(listening.fileno(), self._address, ctypes.byref(self._length), FLAGS)
            if found >= 0:
                connection = socket.socket(listening.family, socket.SOCK_STREAM, 0, fileno=found)
                self._receive(connection, self._address.raw[ADDRESS_IN_STRUCT.get(listening.family, NO_ADDRESS)])
                continue
            error = ctypes.get_errno()
            if error in NO_RESOURCES:
                log.error("cannot accept connections: %s", os.strerror(error))
                self._loop.remove_reader(listening.fileno())
                self._loop.call_later(RETRY_SECONDS, self._resume, listening)
            if error in NO_RESOURCES or error == QUEUE_IS_EMPTY:
                return

    def _resume(self, listening: socket.socket) -> None:
        if not self._is_closed:
            self._loop.add_reader(listening.fileno(), self._accept, listening)

    def _receive(self, connection: socket.socket, address: bytes) -> None:
        """Refuse a new connection, or queue it. The address is in network byte order."""
        source, network = _source(address)
        queue = self._queues.get(source)
        reason = self._table.refusal(network, waiting=len(queue) if queue else 0)
        if reason is None and self.waiting >= self._table.max_connections - len(self._table) + SPARE_FILES // 2:
            if queue:
                reason = "connection_limit"
            else:
                self._refuse(self._take_from_longest_queue(), "connection_limit")
        if reason is not None:
            self._refuse(connection, reason)
            return
        self._queues.setdefault(source, deque()).append(connection)
        self.waiting += 1
        self._schedule()

    def _refuse(self, connection: socket.socket, reason: str) -> None:
        REFUSED.labels(reason).inc()
        with suppress(OSError):
            connection.send(connection_refusal(reason, self._table))
        connection.close()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._open_some)

    def _open_some(self) -> None:
        self._is_scheduled = False
        for _ in range(OPENED_PER_TURN):
            connection = self._next()
            if connection is None:
                return
            self._open(connection)
        if self._queues:
            self._schedule()

    def _open(self, connection: socket.socket) -> None:
        connection.settimeout(0)
        opening = self._loop.connect_accepted_socket(self._create_protocol, connection, ssl=self._ssl)
        task = self._loop.create_task(opening)
        self._tasks.add(task)
        task.add_done_callback(self._on_opened)

    def _on_opened(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.debug("a connection was lost before it was opened: %s", type(error).__name__)

    def _next(self) -> socket.socket | None:
        """Take the oldest connection of the next address; that address is the last one afterwards."""
        if not self._queues:
            return None
        source, queue = self._queues.popitem(last=False)
        if len(queue) > 1:
            self._queues[source] = queue
        self.waiting -= 1
        return queue.popleft()

    def _take_from_longest_queue(self) -> socket.socket:
        source = max(self._queues, key=lambda source: len(self._queues[source]))
        connection = self._queues[source].pop()
        if not self._queues[source]:
            del self._queues[source]
        self.waiting -= 1
        return connection


@lru_cache(4096)
def _source(address: bytes) -> tuple[bytes, str | None]:
    """Return what takes turns, the IPv4 address or IPv6 /64, and the network to which the limit applies."""
    if not address:
        return address, None
    if len(address) == len(IPV4_MAPPED) + 4 and address.startswith(IPV4_MAPPED):
        address = address[len(IPV4_MAPPED) :]
    if len(address) == 4:
        return address, client_network(socket.inet_ntop(socket.AF_INET, address))
    return address[:8], client_network(socket.inet_ntop(socket.AF_INET6, address))
