"""Ends an HTTP request by its total time."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Any, Self

import urllib3
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection


class RequestDeadline:
    """Ends the request of this thread after `seconds` by shutting its socket down.

    A timeout of `requests` restarts with every byte, so a server that sends one a second could block us for hours.
    `sent` is called between the last byte of the request and the first of the response.
    """

    _of_thread = threading.local()

    def __init__(self, seconds: float, sent: Callable[[], None] | None = None) -> None:
        self.passed = False
        self._sent = sent
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._timer = threading.Timer(max(seconds, 0.001), self.abort)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        self._of_thread.current = self
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self._of_thread.current = None

    @classmethod
    def watch(cls, connected: socket.socket | None) -> None:
        """Register the socket; the connection calls it before it waits for the response."""
        deadline: RequestDeadline | None = getattr(cls._of_thread, "current", None)
        if deadline is not None:
            deadline.on_request_sent(connected)

    def on_request_sent(self, connected: socket.socket | None) -> None:
        """Take note that the request was sent on this connection."""
        with self._lock:
            self._socket = connected
        if self.passed:
            self.abort()
        if self._sent is not None:
            self._sent()

    def abort(self) -> None:
        """End the request now. The waiting thread sees the end of the stream."""
        with self._lock:
            self.passed = True
            if self._socket is not None:
                with contextlib.suppress(OSError):  # it may be closed already
                    # Not SSLSocket.shutdown, which removes the TLS object that the waiting thread uses.
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


class _PlainConnection(HTTPConnection):
    def getresponse(self) -> Any:
        RequestDeadline.watch(self.sock)
        return super().getresponse()


class _SecureConnection(HTTPSConnection):
    def getresponse(self) -> Any:
        RequestDeadline.watch(self.sock)
        return super().getresponse()


class _PlainPool(urllib3.HTTPConnectionPool):
    ConnectionCls = _PlainConnection


class _SecurePool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _SecureConnection


POOLS = {"http": _PlainPool, "https": _SecurePool}


class TimedAdapter(HTTPAdapter):
    """An adapter for `requests` whose connections obey the RequestDeadline of their thread."""

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = POOLS

    def proxy_manager_for(self, *args: Any, **kwargs: Any) -> Any:
        manager = super().proxy_manager_for(*args, **kwargs)
        manager.pool_classes_by_scheme = POOLS
        return manager
