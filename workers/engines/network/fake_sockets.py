"""Sockets that lead nowhere, for jobs without a network namespace: no network, and every name and address seen.

A program that asks for an internet socket gets one end of a connected unix pair in its place, whose other end is here.
A connect is written down and refused; for datagrams it seems to work, so that a resolver goes on to send its question,
which then stands in the trace. Only a connection to the egress proxy's address really leads there.
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
MAX_ENDS = 512  # held here at a time, for each job: the worker's own descriptors are at stake
_DNS = 53
_IN_PLACE_OF = {socket.SOCK_STREAM: socket.SOCK_STREAM, socket.SOCK_DGRAM: socket.SOCK_SEQPACKET}


@dataclass
class Endpoint:
    """Our end of a dummy, and the port that the other side thinks it is connected to."""

    socket: socket.socket
    port: int = 0

    @property
    def is_stream(self) -> bool:
        return self.socket.type == socket.SOCK_STREAM


class FakeSockets:
    """One per job. `answers` for `Notices`; `close` when the job is over."""

    def __init__(self, proxy: EgressProxy | None) -> None:
        self.proxy = proxy
        self._ends: dict[int, Endpoint] = {}  # by the inode of the other end: what /proc shows of a descriptor
        self._lock = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._stop_reader, self._stop_writer = os.pipe()
        self._selector.register(self._stop_reader, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._empty, name="dummies", daemon=True)
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
        if len(self._ends) >= MAX_ENDS:
            return SyscallResponse(error=errno.EMFILE)
        theirs, ours = socket.socketpair(socket.AF_UNIX, _IN_PLACE_OF[socket.SocketKind(kind & _TYPE)])
        theirs.setblocking(not kind & socket.SOCK_NONBLOCK)
        ours.settimeout(0)
        inode = os.fstat(theirs.fileno()).st_ino
        with self._lock:
            self._ends[inode] = Endpoint(ours)
            self._selector.register(ours, selectors.EVENT_READ, inode)
        return SyscallResponse(descriptor=theirs.detach(), flags=os.O_CLOEXEC if kind & socket.SOCK_CLOEXEC else 0)

    def connect(self, request: SyscallRequest) -> SyscallResponse:
        where, inode = destination(request), _inode(request)
        end = self._ends.get(inode)
        if where is None or end is None:
            return SyscallResponse(error=errno.EACCES)  # unix sockets of others: no way to know whose they will be
        _family, end.port, address = where
        if not end.is_stream:
            return SyscallResponse()
        if self.proxy and (address, end.port) == ("127.0.0.1", PORT):
            try:
                client = self._let_go(inode)
            except KeyError:  # the job has just shut it down, and `_empty` was faster
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
        for inode in list(self._ends):
            self._let_go(inode).close()
        self._selector.close()
        os.close(self._stop_reader)

    def _let_go(self, inode: int) -> socket.socket:
        with self._lock:
            end = self._ends.pop(inode)
            self._selector.unregister(end.socket)
        end.socket.settimeout(None)
        return end.socket

    def _empty(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fd == self._stop_reader:
                    return
                with contextlib.suppress(KeyError):  # just handed to the proxy
                    self._take(key.data, self._ends[key.data])

    def _take(self, inode: int, end: Endpoint) -> None:
        """Throw away what was sent. A resolver hears at once that nobody is there; others may go on."""
        try:
            data = end.socket.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data or end.port == _DNS:
            self._let_go(inode).close()


def _inode(request: SyscallRequest) -> int:
    try:
        target = Path(f"/proc/{request.pid}/fd/{request.word(0)}").readlink()
    except OSError:
        return 0
    match = re.fullmatch(r"socket:\[(\d+)\]", str(target))
    return int(match[1]) if match else 0
