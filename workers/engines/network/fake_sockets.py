"""Sockets that lead nowhere, for jobs without a network namespace: no network, but every name and address is recorded.

A program that opens an internet socket gets one end of a connected unix pair in its place; the other end is here. A
connect is recorded and refused. For datagrams it seems to work, so that a resolver sends its query, which is then in
the trace. Only a connection to the egress proxy's address really leads there.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import re
import selectors
import socket
import threading
from dataclasses import dataclass
from pathlib import Path

from workers.engines.network.egress import PORT, EgressProxy
from workers.engines.tracing.seccomp_notify import SyscallHandler, SyscallRequest, SyscallResponse
from workers.engines.tracing.strace_format import destination

_TYPE = 0xF
MAX_ENDPOINTS = 512  # of each job at a time: they use the worker's descriptors
_DNS = 53
_IN_PLACE_OF = {socket.SOCK_STREAM: socket.SOCK_STREAM, socket.SOCK_DGRAM: socket.SOCK_SEQPACKET}


@dataclass
class Endpoint:
    """Our end of a fake socket, and the port to which the job believes it is connected."""

    socket: socket.socket
    port: int = 0

    @property
    def is_stream(self) -> bool:
        return self.socket.type == socket.SOCK_STREAM


class FakeSockets:
    """The fake sockets of one job: `handlers` for `NotifyHandler`; `close` when the job has ended."""

    def __init__(self, proxy: EgressProxy | None) -> None:
        self.proxy = proxy
        self._endpoints: dict[int, Endpoint] = {}  # by the inode of the other end, which /proc shows for a descriptor
        self._lock = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._stop_reader, self._stop_writer = os.pipe()
        self._selector.register(self._stop_reader, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._drain, name="fake-sockets", daemon=True)
        self._thread.start()

    def handlers(self) -> dict[str, SyscallHandler]:
        return {"socket": self.open, "connect": self.connect, "bind": self.bind}

    def open(self, request: SyscallRequest) -> SyscallResponse:
        family, kind = request.word(0), request.word(1)
        if family == socket.AF_UNIX:
            return SyscallResponse(error=errno.EACCES)
        if family not in (socket.AF_INET, socket.AF_INET6):
            return SyscallResponse(error=errno.EAFNOSUPPORT)
        if kind & _TYPE not in _IN_PLACE_OF:
            return SyscallResponse(error=errno.EPERM)
        if len(self._endpoints) >= MAX_ENDPOINTS:
            return SyscallResponse(error=errno.EMFILE)
        theirs, ours = socket.socketpair(socket.AF_UNIX, _IN_PLACE_OF[socket.SocketKind(kind & _TYPE)])
        theirs.setblocking(not kind & socket.SOCK_NONBLOCK)
        ours.settimeout(0)
        inode = os.fstat(theirs.fileno()).st_ino
        with self._lock:
            self._endpoints[inode] = Endpoint(ours)
            self._selector.register(ours, selectors.EVENT_READ, inode)
        return SyscallResponse(descriptor=theirs.detach(), flags=os.O_CLOEXEC if kind & socket.SOCK_CLOEXEC else 0)

    def connect(self, request: SyscallRequest) -> SyscallResponse:
        target, inode = destination(request), _inode(request)
        endpoint = self._endpoints.get(inode)
        if target is None or endpoint is None:
            return SyscallResponse(error=errno.EACCES)  # a unix socket outside of the job
        _family, endpoint.port, address = target
        if not endpoint.is_stream:
            return SyscallResponse()
        if self.proxy and (address, endpoint.port) == ("127.0.0.1", PORT):
            try:
                client = self._detach(inode)
            except KeyError:  # the job has just shut it down, and `_drain` was faster
                return SyscallResponse(error=errno.EPIPE)
            self.proxy.serve(client)
            return SyscallResponse()
        is_loopback = ipaddress.ip_address(address).is_loopback
        return SyscallResponse(error=errno.ECONNREFUSED if is_loopback else errno.ENETUNREACH)

    def bind(self, _: SyscallRequest) -> SyscallResponse:
        return SyscallResponse(error=errno.EACCES)

    def close(self) -> None:
        os.close(self._stop_writer)
        self._thread.join()
        for inode in list(self._endpoints):
            self._detach(inode).close()
        self._selector.close()
        os.close(self._stop_reader)

    def _detach(self, inode: int) -> socket.socket:
        with self._lock:
            endpoint = self._endpoints.pop(inode)
            self._selector.unregister(endpoint.socket)
        endpoint.socket.settimeout(None)
        return endpoint.socket

    def _drain(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fd == self._stop_reader:
                    return
                with contextlib.suppress(KeyError):  # just handed to the proxy
                    self._take(key.data, self._endpoints[key.data])

    def _take(self, inode: int, endpoint: Endpoint) -> None:
        """Drop what was sent. A resolver gets an error at once, because nothing listens; others may continue."""
        try:
            data = endpoint.socket.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data or endpoint.port == _DNS:
            self._detach(inode).close()


def _inode(request: SyscallRequest) -> int:
    try:
        target = Path(f"/proc/{request.pid}/fd/{request.word(0)}").readlink()
    except OSError:
        return 0
    match = re.fullmatch(r"socket:\[(\d+)\]", str(target))
    return int(match[1]) if match else 0
