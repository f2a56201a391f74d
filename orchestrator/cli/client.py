"""The HTTP client: requests with a token, repeated while that is safe. Refusals become `ApiRefusal`."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, NoReturn
from urllib.parse import urljoin

import requests
from requests.auth import AuthBase

from orchestrator.cli.connection import ServerAccess
from orchestrator.cli.deadlines import Deadline
from orchestrator.cli.errors import ApiRefusal, ServerUnavailable

CONNECT_SECONDS: Final = 10.0
READ_SECONDS: Final = 60.0  # the server answers within less, and a stream has a sign of life every 15 seconds
PAUSES: Final = (0.5, 1.0, 2.0)  # seconds before the second, third and fourth try of a request
MAX_RETRY_AFTER_SECONDS: Final = 10.0
REPEATED_STATUSES: Final = frozenset({502, 503, 504})
USER_AGENT: Final = "stella"
# Raised while a request is sent or a response is read. Others, such as InvalidURL, are mistakes of the caller.
CONNECTION_LOST: Final = (
    requests.ConnectionError,
    requests.Timeout,
    requests.exceptions.ChunkedEncodingError,
    requests.exceptions.ContentDecodingError,
)


class TokenHeader(AuthBase):
    """Adds the token. As `auth` it wins over an entry of ~/.netrc, which requests would send instead."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._token}"
        return request


class WithoutToken(AuthBase):
    """Adds nothing, and keeps ~/.netrc out."""

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        return request


@dataclass(frozen=True)
class JsonReply:
    """A successful response."""

    status: int
    body: Any
    headers: Mapping[str, str]


class StellaClient:
    """Calls one server, until the deadline.

    Attributes:
        url: The address of the server.
        deadline: No request and no pause lasts longer. Then they raise `TimeUp`.
    """

    def __init__(
        self, access: ServerAccess, deadline: Deadline | None = None, *, pause: Callable[[float], None] = time.sleep
    ) -> None:
        self.url = access.url
        self.deadline = deadline or Deadline(None)
        self._pause = pause
        self._token = TokenHeader(access.token)
        self._session = requests.Session()
        self._session.headers.update({"User-Agent": USER_AGENT, "Accept": "application/json"})

    def get(self, path: str, query: Mapping[str, Any] | None = None) -> JsonReply:
        """Return the response to a GET. Parameters that are None are left out."""
        return self.call("GET", path, query=query, is_repeatable=True)

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        is_repeatable: bool = False,
    ) -> JsonReply:
        """Send a request and return its response.

        Args:
            method: The HTTP method.
            path: The path, which begins with a slash.
            body: A JSON value, or None for no body.
            query: Parameters; those that are None are left out.
            headers: Further headers.
            is_repeatable: Whether a second request does no harm after one of which no response has arrived.

        Raises:
            ApiRefusal: The server has refused the request.
            ServerUnavailable: There was no response.
            TimeUp: The deadline has come.
        """
        response = self._send(
            method,
            self.url + path,
            is_repeatable=is_repeatable,
            params=_present(query),
            json=body,
            headers=dict(headers or {}),
            auth=self._token,
        )
        _require_success(response)
        return JsonReply(response.status_code, self._json(response), response.headers)

    @contextmanager
    def stream(
        self, path: str, *, query: Mapping[str, Any] | None, headers: Mapping[str, str], read_seconds: float
    ) -> Iterator[requests.Response]:
        """Open a response that is read while it arrives, without a second try.

        Args:
            path: The path, which begins with a slash.
            query: Parameters; those that are None are left out.
            headers: Further headers.
            read_seconds: The longest silence. After it, a `requests.Timeout` or `requests.ConnectionError`.

        Raises:
            ApiRefusal: The server has refused the request.
            TimeUp: The deadline has come.
        """
        with self._session.get(
            self.url + path,
            params=_present(query),
            headers=dict(headers),
            auth=self._token,
            timeout=self._timeout(read_seconds),
            stream=True,
            allow_redirects=False,
        ) as response:
            _require_success(response)
            yield response

    @contextmanager
    def download(self, path: str) -> Iterator[Iterator[bytes]]:
        """Open the content of an artifact. The token is not sent to the signed address of a redirect.

        Raises:
            ApiRefusal: The server has refused the request.
            ServerUnavailable: The connection was lost.
        """
        options: dict[str, Any] = {
            "is_repeatable": True,
            "stream": True,
            "headers": {"Accept": "*/*", "Accept-Encoding": "identity"},
        }
        response = self._send("GET", self.url + path, auth=self._token, **options)
        if response.is_redirect:
            address = urljoin(response.url, response.headers["Location"])
            response.close()
            response = self._send("GET", address, auth=WithoutToken(), **options)
        try:
            with response:
                _require_success(response)
                yield response.iter_content(1 << 16)
        except CONNECTION_LOST as error:
            raise self.away(error) from None

    def _send(self, method: str, url: str, *, is_repeatable: bool, **options: Any) -> requests.Response:
        """Return the response to a request, whatever its status, after as many tries as permitted.

        Raises:
            ServerUnavailable: There was no response.
            TimeUp: The deadline has come.
        """
        for pause in PAUSES if is_repeatable else ():
            try:
                response = self._send_once(method, url, **options)
            except ServerUnavailable:
                self._pause(self.deadline.left(pause))
                continue
            if response.status_code not in REPEATED_STATUSES:
                return response
            response.close()
            self._pause(self.deadline.left(max(pause, _retry_after(response))))
        return self._send_once(method, url, **options)

    def _send_once(self, method: str, url: str, **options: Any) -> requests.Response:
        timeout = self._timeout(READ_SECONDS)
        try:
            return self._session.request(method, url, timeout=timeout, allow_redirects=False, **options)
        except CONNECTION_LOST as error:
            self.deadline.left(READ_SECONDS)
            raise self.away(error) from None

    def away(self, error: Exception) -> ServerUnavailable:
        """Return the error for a lost connection."""
        return ServerUnavailable(f"{self.url} does not answer: {_cause(error)}.")

    def _timeout(self, read_seconds: float) -> tuple[float, float]:
        """Return the longest times in which a connection begins, and in which a part of a response arrives."""
        return self.deadline.left(min(CONNECT_SECONDS, read_seconds)), self.deadline.left(read_seconds)

    def _json(self, response: requests.Response) -> Any:
        if not response.content:
            return None
        try:
            return response.json()
        except ValueError:
            raise ServerUnavailable(f"{self.url} has answered without JSON. Is it the right server?") from None


def _present(query: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: value for name, value in (query or {}).items() if value is not None}


def _retry_after(response: requests.Response) -> float:
    with suppress(ValueError):
        return min(float(response.headers.get("Retry-After", "0")), MAX_RETRY_AFTER_SECONDS)
    return 0.0


def _require_success(response: requests.Response) -> None:
    """Raise the refusal in a response that is no success. A redirect is none: no program is sent to a login page."""
    if response.status_code >= 300:
        _refuse(response)


def _refuse(response: requests.Response) -> NoReturn:
    problem: Any = None
    with suppress(ValueError):
        problem = response.json()
    raise ApiRefusal(response.status_code, problem if isinstance(problem, dict) else {})


def _cause(error: BaseException) -> str:
    """Return the innermost cause of a chain, which names what has happened: `Connection refused`."""
    while error.__context__ is not None:
        error = error.__context__
    return str(getattr(error, "strerror", None) or error or type(error).__name__)
