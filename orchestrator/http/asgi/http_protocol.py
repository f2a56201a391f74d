"""uvicorn's HTTP protocol with the limits that uvicorn lacks: heads, trailers, framing, pipelines, slow clients.

With httptools, uvicorn limits neither the size of a request's head nor the time in which it arrives. An endless header
line made httptools copy all previous bytes with each packet, which stopped the event loop for seconds.

Position of the parser, and the timer of a request:

    IDLE --first byte--> HEAD --headers complete--> BODY --message complete--> IDLE
      |                    |                          |
      |                    +-- HEADER_SECONDS: 408    +-- read by `asgi.body_limit` within BODY_SECONDS
      +-- HEADER_SECONDS without a first request: closed; 75 s between two requests: closed
"""

import re
import socket
import struct
from asyncio import TimerHandle, Transport
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import httptools
from django.conf import settings
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from orchestrator.http.asgi.connections import REFUSED, ConnectionTable, connections_within_file_limit
from orchestrator.http.asgi.raw_responses import connection_refusal, raw_response
from orchestrator.http.asgi.websocket_protocol import LimitedWebSocketProtocol
from orchestrator.http.errors.problems import ApiError

MAX_HEAD_BYTES = 64 << 10  # request line and headers; also framing beyond the body's own size (chunk sizes, trailers)
MAX_HEADERS = 100  # trailers included
MAX_PIPELINED = 8  # requests that wait for the response to an earlier one of the same connection
MAX_DRAINED_BYTES = 16 << 20  # of a body whose request has been answered already
LINGER_SECONDS = 2.0  # a refused client may finish sending: an immediate close would destroy the response in transit
LINGER_BYTES = 1 << 20
RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # value of SO_LINGER
WRITE_BUFFER_BYTES = 64 << 10  # above it `send` waits; one message more may be in the buffer
UNSENT_BYTES = 128 << 10  # in the kernel, which otherwise accepts up to 4 MiB for a client that reads nothing
# Name, IPv4 address or IPv6 address in brackets, and a port. Which hosts are served, ALLOWED_HOSTS decides.
HOST = re.compile(rb"(?:[\w.~!$&'()*+;=%-]*|\[[\w.:%]+\])(?::\d*)?")
EXTENSION = "orchestrator.connection"  # in the extensions of the scope: a ClientConnection

_table: ConnectionTable | None = None


def connection_table() -> ConnectionTable:
    """Return the process's table. Behind a proxy, which limits its own clients, addresses are not counted."""
    global _table  # noqa: PLW0603 - one per process, made after the settings are loaded
    if _table is None:
        per_address = None if settings.BEHIND_PROXY else settings.MAX_CONNECTIONS_PER_ADDRESS
        _table = ConnectionTable(connections_within_file_limit(settings.MAX_CONNECTIONS), per_address)
    return _table


@dataclass(frozen=True)
class ClientConnection:
    """The connection of a request, for an application that must drop it."""

    transport: Transport

    def drop(self) -> None:
        """Close the connection without sending what is buffered.

        `close` of a transport waits for a client that does not read. The reset makes the kernel free its buffers.
        """
        with suppress(OSError, ValueError):  # the client has disconnected meanwhile, and the socket is closed
            _set_socket_option(self.transport, socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        self.transport.abort()


def _set_socket_option(transport: Transport, level: int, option: int, value: int | bytes) -> None:
    """Set an option of a TCP connection. A Unix socket has none of these options."""
    found = transport.get_extra_info("socket")
    if found is not None and found.family in {socket.AF_INET, socket.AF_INET6}:
        found.setsockopt(level, option, value)


class LimitExceeded(Exception):
    """A parser callback found a violation; `refusal` is the response."""

    def __init__(self, refusal: ApiError) -> None:
        super().__init__(refusal.detail)
        self.refusal = refusal


def sender_without_chunks(cycle: RequestResponseCycle) -> Callable[[Any], Coroutine[Any, Any, None]]:
    """Return a `send` for HTTP/1.0: the end of a response without a length is the end of the connection.

    uvicorn sends chunks, which such a client takes for content.
    """
    send = cycle.send
    is_delimited = True  # by its Content-Length

    async def send_without_chunks(message: Any) -> None:
        nonlocal is_delimited
        if message["type"] == "http.response.start":
            is_delimited = any(name.lower() == b"content-length" for name, _ in message.get("headers", []))
            if not is_delimited:
                cycle.chunked_encoding = False
        elif not is_delimited:
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    return send_without_chunks


def head_too_large() -> ApiError:
    """Return the refusal of a request line and headers above the limits."""
    detail = f"The request line and headers may have at most {MAX_HEAD_BYTES} bytes and {MAX_HEADERS} headers."
    return ApiError(431, "headers_too_large", detail, max_bytes=MAX_HEAD_BYTES, max_headers=MAX_HEADERS)


class LimitedHttpProtocol(HttpToolsProtocol):
    """Parses HTTP/1.1 within limits, and answers a violation with a problem document before closing the connection.

    A head usually arrives in one packet. No timer is created for it then.
    """

    IDLE, HEAD, BODY = range(3)  # where the parser is: between two messages, in a head, in a body or its trailers

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._limit_unsent_bytes(transport)
        self._position = self.IDLE
        self._is_discarding = self._is_ending = False
        self._discarded = 0
        self._head_bytes = self._header_count = 0
        self._wire_bytes = self._body_bytes = self._messages = 0
        self._deadline: TimerHandle | None = None  # of the head, of a body that is discarded, or of a lingering close
        self._stall_check: TimerHandle | None = None
        self._violation: ApiError | None = None
        self._receiving: Any = None  # the request whose body the parser is in
        self.table = connection_table()
        reason = self.table.admit(self, self.client[0] if self.client else None)
        if reason is not None:
            self._refuse_connection(reason)
            return
        self._set_deadline(settings.HEADER_SECONDS, self._head_is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._clear_deadline()
        if self._stall_check is not None:
            self._stall_check.cancel()
        # uvicorn cancels its timer only if the connection ended without an error. After a reset the timer would keep
        # the protocol and its buffers in memory for another 75 seconds.
        self._unset_keepalive_if_required()
        self.table.remove(self)
        super().connection_lost(exc)

    def _limit_unsent_bytes(self, transport: Transport) -> None:
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        _set_socket_option(transport, socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        # A response that does not stream is buffered as a whole, and no `send` waits for its client: the kernel limits
        # that time. It is twice as long as a stream's, so that a stream is ended by the application, which logs why.
        stall = int(2000 * settings.STREAM_STALL_SECONDS)
        _set_socket_option(transport, socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, stall)

    def evict(self) -> None:
        """Close the connection, which has no request in progress, to make room for another client."""
        self.transport.abort()

    def end_after_response(self) -> None:
        """Close the connection after the response that is due, else after that to the next request.

        The response has `Connection: close`. Without that a client might send the next request meanwhile.
        """
        self._is_ending = True
        if self._is_response_due and not self.cycle.response_started:
            self.cycle.keep_alive = False

    # --- Bytes in -----------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._is_discarding:
            self._discard(len(data))
            return
        self._unset_keepalive_if_required()
        try:
            self._parse(data)
        except LimitExceeded as violation:
            self._violate(violation.refusal)
        except httptools.HttpParserUpgrade:
            if self._should_upgrade():
                self._clear_deadline()
                self.handle_websocket_upgrade()
            else:
                self._ignore_upgrade()
        except httptools.HttpParserError:
            self._violate(self._violation or ApiError(400, "invalid", "The request is not valid HTTP/1.1."))

    def _parse(self, data: bytes) -> None:
        while data:
            piece = data
            if self._position != self.BODY:
                # No more than the rest of the head's allowance, so that its end is seen before the limit is applied.
                piece = data[: MAX_HEAD_BYTES + 1 - self._head_bytes]
            else:
                self._wire_bytes += len(piece)
            messages, position = self._messages, self._position
            self.parser.feed_data(piece)
            data = data[len(piece) :]
            if self._position == self.BODY:
                self._check_framing()
            elif self._messages != messages or position == self.BODY:
                self._head_bytes = 0  # of a head that begins in this piece: counted from the next one
            else:
                self._head_bytes += len(piece)
                if self._head_bytes > MAX_HEAD_BYTES:
                    raise LimitExceeded(head_too_large())
        self._schedule()

    def _check_framing(self) -> None:
        """Limit chunk sizes, chunk extensions and trailers relative to the body that they carry."""
        if self._wire_bytes - self._body_bytes > MAX_HEAD_BYTES + self._body_bytes:
            detail = f"Chunk sizes, extensions and trailers may have {MAX_HEAD_BYTES} bytes more than the body."
            raise LimitExceeded(ApiError(400, "invalid", detail, max_bytes=MAX_HEAD_BYTES))

    def _schedule(self) -> None:
        """Start the head's timer if a head has begun and not ended; stop it if none is awaited."""
        if self._position == self.HEAD or (self._position == self.IDLE and self._head_bytes):
            if self._deadline is None:
                self._set_deadline(settings.HEADER_SECONDS, self._head_is_late)
        elif self._deadline is not None and not self._is_answered_early:
            self._clear_deadline()

    @property
    def _is_answered_early(self) -> bool:
        return self._position == self.BODY and self.cycle is not None and self.cycle.response_complete

    # --- What the parser found ----------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._position = self.HEAD
        self._receiving = None
        self._header_count = 0
        super().on_message_begin()
        extensions: dict[str, Any] = {EXTENSION: ClientConnection(self.transport)}
        self.scope["extensions"] = extensions

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_count += 1
        if self._header_count > MAX_HEADERS:
            self._stop_parsing(head_too_large())
        if self._position == self.BODY:
            return  # a trailer: uvicorn would add it to the headers, although no proxy has checked it as one
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._position = self.BODY
        self._messages += 1
        self._wire_bytes = self._body_bytes = 0
        if len(self.pipeline) >= MAX_PIPELINED:
            detail = f"At most {MAX_PIPELINED} requests of a connection may wait for the response to another."
            self._stop_parsing(ApiError(400, "invalid", detail))
        self._require_supported_framing()
        self._require_one_host()
        if self.parser.should_upgrade() and self._should_upgrade():
            self._require_handshake()
        super().on_headers_complete()
        if self._is_ending:
            self.cycle.keep_alive = False
        self._receiving = self.cycle
        self.table.begin_request(self)

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._is_answered_early and self._body_bytes > MAX_DRAINED_BYTES:
            self._cut_off("body_after_response")
            return
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._position = self.IDLE
        self._head_bytes = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            return
        if not self.pipeline and self.cycle.response_complete:
            self.table.end_request(self)
        if self._is_answered_early and self._deadline is None:
            self._set_deadline(settings.BODY_SECONDS, lambda: self._cut_off("body_after_response"))

    def _require_supported_framing(self) -> None:
        """Refuse what httptools accepts: request lines without a version, and transfer codings beside `chunked`.

        HTTP/1.0 has no transfer codings (RFC 9112, section 6.1).

        A proxy and this server would otherwise disagree about the content of the body.
        """
        version = self.parser.get_http_version()
        if version not in {"1.0", "1.1"}:
            self._stop_parsing(ApiError(400, "invalid", "The request line must end with HTTP/1.1 or HTTP/1.0."))
        for name, value in self.headers:
            if name == b"transfer-encoding" and (value.strip().lower() != b"chunked" or version == "1.0"):
                detail = "`chunked` is the only supported Transfer-Encoding, and needs HTTP/1.1."
                self._stop_parsing(ApiError(400, "invalid", detail))
        if version == "1.0":
            self.expect_100_continue = False  # its client does not know the response 100

    def _require_one_host(self) -> None:
        """Refuse a request whose host a proxy may understand differently (RFC 9112, section 3.2)."""
        hosts = [value for name, value in self.headers if name == b"host"]
        if len(hosts) > 1 or (not hosts and self.parser.get_http_version() == "1.1"):
            self._stop_parsing(ApiError(400, "invalid", "A request of HTTP/1.1 has exactly one header Host."))
        if hosts and not HOST.fullmatch(hosts[0]):
            self._stop_parsing(ApiError(400, "invalid", "The header Host is no host with an optional port."))

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if cycle.scope["http_version"] == "1.0":
            cycle.send = sender_without_chunks(cycle)  # type: ignore[assignment, method-assign]
        super()._start_asgi_task(cycle, app)

    def _require_handshake(self) -> None:
        """Refuse a handshake that the WebSocket protocol would wait for without a time limit, or answer out of order.

        The WebSocket protocol reads no body. Without this check such a connection stayed open, and protected from
        eviction, until its client disconnected.
        """
        has_body = any(
            name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0"))
            for name, value in self.headers
        )
        if self.parser.get_method() != b"GET" or has_body:
            self._stop_parsing(ApiError(400, "invalid", "A WebSocket handshake is a GET request without a body."))
        if self.pipeline or self._is_response_due:
            detail = "A WebSocket handshake must wait for the response to the request before it."
            self._stop_parsing(ApiError(400, "invalid", detail))

    def _stop_parsing(self, refusal: ApiError) -> None:
        """End `feed_data`, which reports only that a callback failed."""
        self._violation = refusal
        raise LimitExceeded(refusal)

    def handle_websocket_upgrade(self) -> None:
        """Hand the transport over. The connection stays in the table until the WebSocket protocol loses it."""
        self.table.begin_request(self)
        super().handle_websocket_upgrade()
        upgraded = self.transport.get_protocol()
        if isinstance(upgraded, LimitedWebSocketProtocol):
            upgraded.on_lost = partial(self.table.remove, self)

    def _ignore_upgrade(self) -> None:
        """Answer the request as if it requested no upgrade. The parser accepts no request after it."""
        if self.cycle is not None:
            self.cycle.keep_alive = False
        self._clear_deadline()
        self._is_discarding = True

    # --- Refusing -----------------------------------------------------------------------------------------------------

    def _violate(self, refusal: ApiError) -> None:
        """Answer and close. If responses to earlier requests are due, the last of them closes the connection."""
        REFUSED.labels(refusal.code).inc()
        self._clear_deadline()
        self._is_discarding = True
        if self.pipeline or self._is_response_due:
            if self.pipeline or self._receiving is None or self.cycle.response_started:
                self.cycle.keep_alive = False  # of the newest request, whose response is the last
                return
            self._abandon_request()  # the violation is in its own body
        self._answer(refusal)

    @property
    def _is_response_due(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _abandon_request(self) -> None:
        """Report a disconnect to the application."""
        self.cycle.disconnected = True
        self.cycle.message_event.set()

    def _answer(self, refusal: ApiError) -> None:
        self.transport.write(raw_response(refusal))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._set_deadline(LINGER_SECONDS, self.transport.abort)

    def _refuse_connection(self, reason: str) -> None:
        REFUSED.labels(reason).inc()
        self._is_discarding = True
        self.transport.write(connection_refusal(reason, self.table))
        self.transport.close()

    def _discard(self, size: int) -> None:
        self._discarded += size
        if self._discarded > LINGER_BYTES:
            self.transport.abort()

    def _cut_off(self, reason: str) -> None:
        """Reset the connection. Otherwise the kernel would keep megabytes that the client does not read."""
        REFUSED.labels(reason).inc()
        ClientConnection(self.transport).drop()

    # --- Time ---------------------------------------------------------------------------------------------------------

    def _head_is_late(self) -> None:
        self._deadline = None
        if self.flow.read_paused:  # by this server, while an earlier request is answered: the client is not late
            self._set_deadline(settings.HEADER_SECONDS, self._head_is_late)
            return
        if self._is_response_due:
            self._violate(_late())
            return
        if not self._head_bytes and self._position == self.IDLE:
            REFUSED.labels("silent").inc()
            self.transport.close()  # the client has sent nothing, so there is no request to answer
            return
        self._violate(_late())

    def _set_deadline(self, seconds: float, action: Any) -> None:
        self._clear_deadline()
        self._deadline = self.loop.call_later(seconds, action)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stall_check is None:
            self._check_progress(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stall_check is not None:
            self._stall_check.cancel()
            self._stall_check = None

    def _check_progress(self, unsent: int) -> None:
        def compare() -> None:
            unsent_now = self.transport.get_write_buffer_size()
            if unsent_now >= unsent:
                self._cut_off("response_not_read")
            else:
                self._check_progress(unsent_now)

        self._stall_check = self.loop.call_later(settings.RESPONSE_STALL_SECONDS, compare)

    def timeout_keep_alive_handler(self) -> None:
        """Cut off a client that has not read all of its last response and would keep the connection open for ever."""
        if self.transport.get_write_buffer_size():
            self._cut_off("response_not_read")
        else:
            super().timeout_keep_alive_handler()


def _late() -> ApiError:
    seconds = settings.HEADER_SECONDS
    return ApiError(408, "request_timeout", f"The request line and headers must arrive within {seconds:g} seconds.")
