"""Sends one message to a receiver, and says what happened. Uses no database.

The connection goes to an address that was checked immediately before, under the name of the URL for TLS. aiohttp
resolves no literal address, so the check is where sockets are made: no connection can avoid it.
"""

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Final, Self

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from orchestrator.webhooks.endpoints import is_free_port, is_opened, parse_endpoint
from orchestrator.webhooks.models import MAX_ANSWER_BYTES, MAX_SENTENCE_LENGTH
from orchestrator.webhooks.retry_schedule import parse_retry_after
from orchestrator.webhooks.signatures import signed_headers
from runtime_jobs.control_characters import escape_controls
from runtime_jobs.errors import BlockedUrl
from workers.engines.network.addresses import is_public, resolve

log = logging.getLogger(__name__)

ANSWER_SECONDS: Final = 15.0  # from the begin of the connection to the head of the answer
BODY_SECONDS: Final = 2.0  # for the body of an answer; its status counts without it
MAX_BODY_BYTES: Final = 64 << 10  # that are read of an answer; the connection is closed then
MAX_HEADER_BYTES: Final = 8190  # of one header of an answer
RESOLVER_THREADS: Final = 64  # a name that does not resolve occupies one for seconds
USER_AGENT: Final = "runtime-orchestrator-webhooks/1.0"


class BlockedAddress(OSError):
    """A connection to this address is not permitted."""


@dataclass(frozen=True)
class Message:
    """Contains what is sent in one try.

    Attributes:
        url: The URL of the webhook.
        keys: The keys of its signatures, the current one first.
        message_id: The id of the event.
        body: The body in UTF-8.
    """

    url: str
    keys: tuple[bytes, ...]
    message_id: str
    body: bytes


@dataclass(frozen=True)
class TryResult:
    """Describes the result of one try.

    Attributes:
        started_at: When it began.
        duration_ms: Milliseconds until its end.
        is_success: Whether the receiver answered 2xx in time.
        sentence: What happened, for people.
        status_code: The status of the answer, or None without one.
        answer: The begin of the answer's body, as text.
        retry_after: The time that the receiver has asked for.
        is_gone: Whether the receiver wants no further deliveries (410).
    """

    started_at: datetime
    duration_ms: int
    is_success: bool
    sentence: str
    status_code: int | None = None
    answer: str = ""
    retry_after: timedelta | None = None
    is_gone: bool = False


class Sender:
    """Sends messages over connections that it keeps. Use it as an asynchronous context manager."""

    def __init__(
        self,
        *,
        resolve_name: Callable[[str, int], list[str]] = resolve,
        ssl_context: ssl.SSLContext | None = None,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        """Prepare.

        Args:
            resolve_name: Returns the addresses of a name and port.
            ssl_context: Checks certificates; by default with the authorities of the system.
            answer_seconds: The time limit of an answer.
        """
        self._resolve_name = resolve_name
        self._ssl_context = ssl_context
        self._answer_seconds = answer_seconds
        self._sessions: dict[str, aiohttp.ClientSession] = {}
        self._threads: ThreadPoolExecutor | None = None

    async def __aenter__(self) -> Self:
        self._threads = ThreadPoolExecutor(RESOLVER_THREADS, thread_name_prefix="webhook-names")
        permitted = {"https": is_permitted_for_https, "http": is_permitted_for_http}
        self._sessions = {scheme: self._session(check, self._threads) for scheme, check in permitted.items()}
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for session in self._sessions.values():
            await session.close()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def send(self, message: Message) -> TryResult:
        """Send a message once. Never raises but for a cancellation."""
        started_at, began = datetime.now(UTC), time.monotonic()

        def result(sentence: str, *, is_success: bool = False, **facts: Any) -> TryResult:
            milliseconds = round((time.monotonic() - began) * 1000)
            text = escape_controls(sentence)[:MAX_SENTENCE_LENGTH]
            return TryResult(started_at, milliseconds, is_success, text, **facts)

        try:
            return await self._post(message, began, result)
        except TimeoutError:
            return result(f"The receiver did not answer within {self._answer_seconds:.0f} seconds.")
        except (aiohttp.ClientError, BlockedUrl, OSError, ValueError, asyncio.IncompleteReadError) as error:
            return result(_sentence_of(error))
        except Exception:
            log.exception("a delivery failed unexpectedly")
            return result("The delivery failed unexpectedly; the log of the dispatcher has the error.")

    async def _post(self, message: Message, began: float, result: Callable[..., TryResult]) -> TryResult:
        endpoint = parse_endpoint(message.url)
        url = URL(endpoint.url, encoded=True)
        if (url.scheme, url.host, url.port) != (endpoint.scheme, endpoint.host, endpoint.port):
            raise BlockedUrl("The host of the URL cannot be read.")  # the parser of the client reads another one
        headers = signed_headers(message.keys, message.message_id, int(time.time()), message.body)
        headers |= {"Content-Type": "application/json", "User-Agent": USER_AGENT, "Accept-Encoding": "identity"}
        async with asyncio.timeout(self._answer_seconds):
            response = await self._sessions[endpoint.scheme].post(
                url, data=message.body, headers=headers, allow_redirects=False
            )
        try:
            answer = await _read_answer(response)
        finally:
            response.release()
        status = response.status
        facts = {"status_code": status, "answer": answer}
        seconds = time.monotonic() - began
        if 200 <= status < 300:
            return result(f"The receiver answered {status} after {seconds:.1f} seconds.", is_success=True, **facts)
        if 300 <= status < 400:
            return result(f"The receiver answered {status}; redirects are not followed.", **facts)
        if status == 410:
            return result("The receiver answered 410: it wants no further deliveries.", is_gone=True, **facts)
        facts["retry_after"] = parse_retry_after(response.headers.get("Retry-After"), now=datetime.now(UTC))
        return result(f"The receiver answered {status} after {seconds:.1f} seconds.", **facts)

    def _session(self, is_permitted: Callable[[str, int], bool], threads: ThreadPoolExecutor) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            resolver=_CheckedResolver(self._resolve_name, is_permitted, threads),
            socket_factory=_checked_sockets(is_permitted),
            ssl=True if self._ssl_context is None else self._ssl_context,
            limit=0,  # the dispatcher limits what it sends at a time
            ttl_dns_cache=5,
            keepalive_timeout=30,
        )
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
            trust_env=False,  # a proxy of the environment would connect to addresses that were not checked
            max_line_size=MAX_HEADER_BYTES,
            max_field_size=MAX_HEADER_BYTES,
        )


def is_permitted_for_https(address: str, port: int) -> bool:
    """Return whether a delivery over TLS may connect to an address: a public one, or one of an opened network."""
    return is_opened(address) or (is_free_port(port) and is_public(address))


def is_permitted_for_http(address: str, port: int) -> bool:  # noqa: ARG001 the same parameters as its sibling
    """Return whether a delivery in plain text may connect to an address: one of an opened network only."""
    return is_opened(address)


class _CheckedResolver(AbstractResolver):
    """Resolves names in threads, and returns permitted addresses only."""

    def __init__(
        self,
        resolve_name: Callable[[str, int], list[str]],
        is_permitted: Callable[[str, int], bool],
        threads: ThreadPoolExecutor,
    ) -> None:
        self._resolve_name, self._is_permitted, self._threads = resolve_name, is_permitted, threads

    async def resolve(
        self,
        host: str,
        port: int = 0,
        family: socket.AddressFamily = socket.AF_UNSPEC,  # noqa: ARG002 signature of the base
    ) -> list[ResolveResult]:
        found = await asyncio.get_running_loop().run_in_executor(self._threads, self._resolve_name, host, port)
        permitted = [address for address in found if self._is_permitted(address, port)]
        if not permitted:
            raise BlockedAddress(f"{host} has no public address")
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST,
            )
            for address in permitted
        ]

    async def close(self) -> None:
        """Close nothing: the sender ends the threads."""


def _checked_sockets(is_permitted: Callable[[str, int], bool]) -> Callable[[Any], socket.socket]:
    def make_socket(address_info: Any) -> socket.socket:
        """Return a socket for a connection to exactly this address, unless it is not permitted."""
        family, kind, protocol, _, address = address_info
        if not is_permitted(address[0], address[1]):
            raise BlockedAddress(f"{address[0]} is not a public address")
        return socket.socket(family, kind, protocol)

    return make_socket


async def _read_answer(response: aiohttp.ClientResponse) -> str:
    """Return the begin of the body as text. A body that is long, slow or broken is cut off with its connection."""
    kept = bytearray()
    received = 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in response.content.iter_any():
                kept += chunk[: MAX_ANSWER_BYTES - len(kept)]
                received += len(chunk)
                if received > MAX_BODY_BYTES:
                    response.close()
                    break
    except (TimeoutError, aiohttp.ClientError, OSError):
        response.close()
    return escape_controls(bytes(kept).decode(errors="replace"))


# Subclasses before their bases.
_SENTENCES: Final[tuple[tuple[tuple[type[Exception], ...], str], ...]] = (
    (
        (aiohttp.ClientConnectorCertificateError,),
        "The certificate of the receiver is not valid for its name, or its issuer is unknown.",
    ),
    ((aiohttp.ClientSSLError, ssl.SSLError), "The receiver does not accept a TLS connection."),
    ((aiohttp.ClientConnectorDNSError,), "The host of the URL does not resolve to an address."),
    ((aiohttp.ClientConnectorError,), "The receiver cannot be reached."),
    (
        (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, ConnectionError),
        "The receiver closed the connection before it answered.",
    ),
    ((aiohttp.ClientResponseError, aiohttp.ClientPayloadError), "The answer of the receiver is not valid HTTP."),
)


def _sentence_of(error: Exception) -> str:
    """Return why no answer arrived, without the internals of the client."""
    if isinstance(error, BlockedUrl):
        return error.message
    cause = getattr(error, "os_error", None)
    if isinstance(cause, BlockedAddress):
        return "The host of the URL has no public address. Nothing was sent."
    if isinstance(cause, ConnectionRefusedError):
        return "The receiver refused the connection."
    found = (sentence for kinds, sentence in _SENTENCES if isinstance(error, kinds))
    return next(found, "The delivery failed before an answer arrived.")
