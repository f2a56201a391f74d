"""Sends one JSON request and returns one response: within a total time, of a limited size, without redirects.

Raises ServerUnreachable for every network error, with a text without the path: lease ids are part of paths.
"""

from __future__ import annotations

import http.client
import http.cookiejar
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import urlsplit

import requests
import urllib3
from requests import PreparedRequest, Response

from workers.agent.errors import ServerUnreachable, WorkerStartError
from workers.agent.http.deadline import RequestDeadline, TimedAdapter

ANSWER_BYTES = 1 << 20
_PIECE_BYTES = 256 << 10  # of a body that is not kept in memory
NETWORK_ERRORS = (
    requests.RequestException,
    urllib3.exceptions.HTTPError,
    http.client.HTTPException,
    OSError,
    ValueError,  # a TLS stream that was shut while it was read
)
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
# Its debug and warning lines hold whole URLs, and a lease id is part of some.
logging.getLogger("urllib3").setLevel(logging.CRITICAL)


@dataclass(frozen=True)
class Timeouts:
    """The timeouts of one attempt, in seconds: to connect, between two bytes, and in total."""

    connect: float = 5.0
    read: float = 30.0
    total: float = 120.0

    def capped(self, seconds: float) -> Timeouts:
        """Return the same timeouts, limited to `seconds`."""
        return Timeouts(min(self.connect, seconds), min(self.read, seconds), min(self.total, seconds))


@dataclass(frozen=True)
class HttpResponseData:
    """A response. `oversize`: the body was longer than allowed and was not read to its end."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    oversize: bool = False


class _Bearer(requests.auth.AuthBase):
    """Adds the token, and prevents `requests` from reading credentials in ~/.netrc."""

    def __init__(self, token: Callable[[], str]) -> None:
        self._token = token

    def __call__(self, request: PreparedRequest) -> PreparedRequest:
        if token := self._token():
            request.headers["Authorization"] = f"Bearer {token}"
        return request


class Transport:
    """The connections to one origin, shared by all threads. `token` is called before every request."""

    def __init__(self, origin: str, token: Callable[[], str], headers: Mapping[str, str] | None = None) -> None:
        self.origin = trusted_origin(origin)
        self._session = requests.Session()
        self._session.auth = _Bearer(token)
        self._session.headers.update({"Accept": "application/json", "Accept-Encoding": "identity", **(headers or {})})
        self._session.cookies.set_policy(http.cookiejar.DefaultCookiePolicy(allowed_domains=[]))
        # A proxy of the environment is for other machines, never for this one.
        self._session.trust_env = urlsplit(self.origin).hostname not in LOOPBACK
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, TimedAdapter(pool_maxsize=256, max_retries=0))

    def post(
        self,
        path: str,
        body: bytes,
        *,
        timeouts: Timeouts,
        headers: Mapping[str, str] | None = None,
        on_sent: Callable[[], None] | None = None,
        limit: int = ANSWER_BYTES,
    ) -> HttpResponseData:
        """POST a JSON body and return the response, whatever its status.

        Args:
            path: Below the origin.
            body: The JSON.
            timeouts: The timeouts.
            headers: Further headers.
            on_sent: Called when the request was sent.
            limit: The maximum of the response, in bytes.

        Raises:
            ServerUnreachable: There was no response.
        """
        sent = {"Content-Type": "application/json; charset=utf-8", **(headers or {})}
        with RequestDeadline(timeouts.total, on_sent) as deadline:
            try:
                response = self._session.post(
                    self.origin + path,
                    data=body,
                    headers=sent,
                    timeout=(timeouts.connect, timeouts.read),
                    allow_redirects=False,
                    stream=True,
                )
                answer = _read(response, limit)
            except NETWORK_ERRORS as error:
                reason = f"no response within {timeouts.total:g} s" if deadline.passed else type(error).__name__
                # The cause's text holds the URL: it must not be chained.
                raise ServerUnreachable(f"{self.origin}: {reason}") from None
        if deadline.passed:
            raise ServerUnreachable(f"{self.origin}: no response within {timeouts.total:g} s")
        return answer

    def get(
        self,
        path: str,
        *,
        timeouts: Timeouts,
        sink: Callable[[bytes], None],
        headers: Mapping[str, str],
        token: str,
    ) -> HttpResponseData:
        """GET a body of any size; that of a response with status 200 goes to `sink`, and the response has none.

        Args:
            path: Below the origin.
            timeouts: The timeouts.
            sink: Receives the body in pieces. What it raises must be an AgentError.
            headers: Further headers.
            token: The token of this request, instead of that of all others.

        Raises:
            ServerUnreachable: There was no response, or it ended early.
        """
        with RequestDeadline(timeouts.total) as deadline:
            try:
                response = self._session.get(
                    self.origin + path,
                    headers=dict(headers),
                    auth=_Bearer(lambda: token),
                    timeout=(timeouts.connect, timeouts.read),
                    allow_redirects=False,
                    stream=True,
                )
                if response.status_code != HTTPStatus.OK:
                    return _read(response, ANSWER_BYTES)
                with response:
                    for piece in response.iter_content(_PIECE_BYTES):
                        sink(piece)
            except NETWORK_ERRORS as error:
                reason = f"no response within {timeouts.total:g} s" if deadline.passed else type(error).__name__
                raise ServerUnreachable(f"{self.origin}: {reason}") from None
        if deadline.passed:
            raise ServerUnreachable(f"{self.origin}: no response within {timeouts.total:g} s")
        return HttpResponseData(response.status_code, response.headers, b"")

    def close(self) -> None:
        self._session.close()


def trusted_origin(url: str) -> str:
    """Return scheme, host and path prefix of a URL.

    Raises:
        WorkerStartError: The URL is neither https nor http to this machine.
    """
    parts = urlsplit(url)
    plain_here = parts.scheme == "http" and parts.hostname in LOOPBACK
    if not (parts.scheme == "https" or plain_here) or not parts.hostname:
        raise WorkerStartError(
            f"{parts.scheme}://{parts.hostname}: must be https, or http to this machine, because tokens are sent there"
        )
    if parts.username or parts.password or parts.query or parts.fragment:
        raise WorkerStartError("the server's URL must not carry user, password, query or fragment")
    return url.rstrip("/")


def _read(response: Response, limit: int) -> HttpResponseData:
    body = bytearray()
    with response:
        for piece in response.iter_content(1 << 16):
            body += piece
            if len(body) > limit:
                return HttpResponseData(response.status_code, response.headers, bytes(body[:limit]), oversize=True)
    return HttpResponseData(response.status_code, response.headers, bytes(body))
