"""Puts an end to an HTTP request by its total time."""

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

    A timeout of `requests` counts anew with every byte, so a server that sends one a second could hold us for hours.
    `sent` is called between the last byte of the request and the first of the answer.
    """

    _of_thread = threading.local()

    def __init__(self, seconds: float, sent: Callable[[], None] | None = None) -> None:
        self.passed = False
        self._sent = sent
        self._guard = threading.Lock()
        self._socket: socket.socket | None = None
        self._timer = threading.Timer(max(seconds, 0.001), self.cut)
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
        """Called by the connection before it waits for the answer."""
        deadline: RequestDeadline | None = getattr(cls._of_thread, "current", None)
        if deadline is not None:
            deadline.ask(connected)

    def ask(self, connected: socket.socket | None) -> None:
        """The request has left on this connection."""
        with self._guard:
            self._socket = connected
        if self.passed:
            self.cut()
        if self._sent is not None:
            self._sent()

    def cut(self) -> None:
        """End the request now. The waiting thread sees the end of the stream."""
        with self._guard:
            self.passed = True
            if self._socket is not None:
                with contextlib.suppress(OSError):  # it may be closed by now
                    # Not SSLSocket.shutdown: that one would take the TLS object from under the waiting thread.
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
    """An adapter for `requests` whose connections obey the Deadline of their thread."""

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = POOLS

    def proxy_manager_for(self, *args: Any, **kwargs: Any) -> Any:
        manager = super().proxy_manager_for(*args, **kwargs)
        manager.pool_classes_by_scheme = POOLS
        return manager
