"""Sends and receives the content of stored objects at the signed addresses that the server names.

An address is a permission, so no message and no log line contains one. It leads to the server or to a bucket. No
credentials are sent, no redirect is followed, and no byte beyond the announced size is sent or kept.
"""

from __future__ import annotations

import hashlib
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

import requests

from workers.agent.errors import AgentError, RequestRefused, ServerUnreachable
from workers.agent.http.transport import LOOPBACK, NETWORK_ERRORS
from workers.agent.retry import RetryBudget, retry

BLOCK_BYTES = 256 << 10
ATTEMPT_SECONDS = 60.0  # in which an unreachable server is tried again
CONNECT_SECONDS, SILENCE_SECONDS = 5.0, 60.0


class TransferStopped(AgentError):
    """The job was stopped, or its time for transfers is up."""


class TransferFailed(AgentError):
    """The received content could not be kept, or is not the announced one."""


class ObjectTransfer:
    """The transfers of one job, with a common time limit."""

    def __init__(self, over: threading.Event, is_stopped: Callable[[], bool], seconds: float) -> None:
        self.over = over
        self._is_stopped = is_stopped
        self._until = time.monotonic() + seconds

    def seconds_left(self) -> float:
        """Return the rest of the time, in seconds."""
        return max(0.0, self._until - time.monotonic())

    def require_time(self) -> None:
        """Raise TransferStopped if the job was stopped, or its time for transfers is up."""
        if self._is_over():
            raise TransferStopped("The job was stopped, or its time for transfers is up.")

    def put(self, url: str, file: IO[bytes], size: int) -> None:
        """PUT the first `size` bytes of a file. An unreachable server is tried again for a while."""
        self._retry(lambda: self._put(url, file, size))

    def get(self, url: str, file: IO[bytes], size: int, sha256: str | None) -> None:
        """GET an object into an empty file. An unreachable server is tried again for a while.

        Args:
            url: The address.
            file: Receives the content.
            size: The size of the object, in bytes.
            sha256: Its digest, if it is known.

        Raises:
            TransferFailed: The file cannot be written, or the content is not the announced one.
        """
        self._retry(lambda: self._get(url, file, size, sha256))

    def _retry(self, call: Callable[[], None]) -> None:
        retry(call, budget=RetryBudget(self.over, min(ATTEMPT_SECONDS, self.seconds_left())))

    def _put(self, url: str, file: IO[bytes], size: int) -> None:
        file.seek(0)
        body = _Body(file, size, self._check_read)
        with _session(url) as session:
            try:
                answer = session.put(
                    url,
                    data=body,
                    headers={"Content-Type": "application/octet-stream"},
                    timeout=(CONNECT_SECONDS, SILENCE_SECONDS),
                    allow_redirects=False,
                )
            except NETWORK_ERRORS as error:
                raise self._network_error(url, error) from None
        _require_success(url, answer.status_code)

    def _get(self, url: str, file: IO[bytes], size: int, sha256: str | None) -> None:
        with _session(url) as session:
            try:
                answer = session.get(
                    url,
                    headers={"Accept-Encoding": "identity"},
                    timeout=(CONNECT_SECONDS, SILENCE_SECONDS),
                    allow_redirects=False,
                    stream=True,
                )
                _require_success(url, answer.status_code)
                received = self._receive(answer, file, size, sha256)
            except NETWORK_ERRORS as error:
                raise self._network_error(url, error) from None
        if received < size:
            raise ServerUnreachable(f"{_host(url)}: the content ended after {received} of {size} bytes")

    def _receive(self, answer: requests.Response, file: IO[bytes], size: int, sha256: str | None) -> int:
        received, digest = 0, hashlib.sha256()
        file.seek(0)
        for block in answer.iter_content(BLOCK_BYTES):
            self.require_time()
            received += len(block)
            if received > size:
                raise TransferFailed(f"the object has more than the announced {size} bytes")
            digest.update(block)
            _write(file, block)
        if received == size and sha256 is not None and digest.hexdigest() != sha256:
            raise TransferFailed("the object has another digest than the announced one")
        return received

    def _check_read(self) -> None:
        if self._is_over():
            raise OSError("stopped")

    def _network_error(self, url: str, error: Exception) -> AgentError:
        if self._is_over():
            return TransferStopped("The transfer was stopped.")
        return ServerUnreachable(f"{_host(url)}: {type(error).__name__}")

    def _is_over(self) -> bool:
        return self._is_stopped() or self.over.is_set() or time.monotonic() > self._until


class _Body:
    """The first bytes of a file as the body of a request. It has a length: a bucket accepts no chunked body."""

    def __init__(self, file: IO[bytes], size: int, check: Callable[[], None]) -> None:
        self._file, self._size, self._left, self._check = file, size, size, check

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[bytes]:
        return iter(lambda: self.read(BLOCK_BYTES), b"")

    def read(self, size: int = -1) -> bytes:
        self._check()
        found = self._file.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(found)
        return found


def _session(url: str) -> requests.Session:
    """Return a session for one request to an address.

    Raises:
        RequestRefused: The address is neither https nor http to this machine, or has credentials.
    """
    parts = urlsplit(url)
    is_private = parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOOPBACK)
    if not is_private or not parts.hostname or parts.username or parts.password:
        raise RequestRefused(0, "insecure_address", "The address of the object is neither https nor local.")
    session = requests.Session()
    session.trust_env = parts.hostname not in LOOPBACK  # a proxy of the environment is for other machines
    session.auth = _no_credentials
    return session


def _no_credentials(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Prevent `requests` from reading credentials in ~/.netrc: a bucket refuses a request with two signatures."""
    return request


def _host(url: str) -> str:
    return urlsplit(url).hostname or ""


def _require_success(url: str, status: int) -> None:
    if status in {408, 429} or status >= 500:
        raise ServerUnreachable(f"{_host(url)}: HTTP status {status}")
    if not 200 <= status < 300:
        raise RequestRefused(status, "transfer_refused", "")


def _write(file: IO[bytes], block: bytes) -> None:
    try:
        file.write(block)
    except OSError as error:  # not a network error: another attempt would fail as well
        raise TransferFailed(f"the content cannot be kept: {error.strerror}") from None


def open_below(folder: Path, path: str) -> IO[bytes]:
    """Open a regular file below a folder, without following a link in any part of the path.

    Raises:
        OSError: There is no such file, a part is a link, or it is no regular file.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    *parents, name = path.split("/")
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for parent in parents:
            below = os.open(parent, flags | os.O_DIRECTORY, dir_fd=handle)
            os.close(handle)
            handle = below
        file = os.open(name, flags, dir_fd=handle)
    finally:
        os.close(handle)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError("it is no regular file")
    return os.fdopen(file, "rb")
