"""uvicorn's protocol classes with the limits that uvicorn lacks: heads, trailers, framing, pipelines, slow clients.

Where httptools parses, uvicorn bounds neither the size of a request's head nor the time in which it arrives. An endless
header line made httptools copy what it had so far with each packet, which stopped the event loop for seconds.
"""

import json
import socket
import struct
from asyncio import TimerHandle, Transport
from typing import Any

import httptools
from django.conf import settings
from uvicorn.protocols.http.httptools_impl import STATUS_LINE
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from orchestrator.http.asgi import open_files
from orchestrator.http.asgi.base_protocol import DroppableHttpProtocol
from orchestrator.http.asgi.connections import REFUSED, ConnectionTable
from orchestrator.http.errors.problems import MEDIA_TYPE, ApiError, problem
from runtime_jobs.identifiers import new_id

MAX_HEAD_BYTES = 64 << 10  # request line and headers; also framing beyond the body's own size (chunk sizes, trailers)
MAX_HEADERS = 100  # trailers included
MAX_PIPELINED = 8  # requests that wait for the response to an earlier one of the same connection
MAX_DRAINED_BYTES = 16 << 20  # of a body whose request has been answered already
MAX_FRAGMENTS = 1024  # of one WebSocket message
MAX_UNSENT_BYTES = 1 << 20  # answers to control frames that a WebSocket client does not read
LINGER_SECONDS = 2.0  # a refused client may finish sending: closing at once would destroy the response on its way
LINGER_BYTES = 1 << 20
RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # of SO_LINGER

_table: ConnectionTable | None = None


def connection_table() -> ConnectionTable:
    """Returns the process's table. Behind a proxy all connections come from the proxy, which bounds its own clients."""
    global _table  # noqa: PLW0603 - one per process, made after the settings are loaded
    if _table is None:
        per_address = None if settings.BEHIND_PROXY else settings.MAX_CONNECTIONS_PER_ADDRESS
        _table = ConnectionTable(open_files.fitting(settings.MAX_CONNECTIONS), per_address)
    return _table


class LimitExceeded(Exception):
    """A parser callback found a violation; `refusal` is the response."""

    def __init__(self, refusal: ApiError) -> None:
        super().__init__(refusal.detail)
        self.refusal = refusal


def head_too_large() -> ApiError:
    detail = f"The request line and headers may have at most {MAX_HEAD_BYTES} bytes and {MAX_HEADERS} headers."
    return ApiError(431, "headers_too_large", detail, max_bytes=MAX_HEAD_BYTES, max_headers=MAX_HEADERS)


class LimitedHttpProtocol(DroppableHttpProtocol):
    """Parses HTTP/1.1 within limits, and answers a violation with a problem document before closing the connection.

    In the ordinary case a head arrives in one packet: then no timer is made for it.
    """

    IDLE, HEAD, BODY = range(3)  # where the parser is: between two messages, in a head, in a body or its trailers

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._position = self.IDLE
        self._is_discarding = False
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
        # uvicorn cancels its timer only where the connection ended without an error: after a reset the timer would keep
        # the protocol and all that hangs on it for another 75 seconds.
        self._unset_keepalive_if_required()
        self.table.remove(self)
        super().connection_lost(exc)

    def evict(self) -> None:
        """Closes the connection to make room for another client. No request of it is in progress."""
        self.transport.abort()

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
                self._weigh_framing()
            elif self._messages != messages or position == self.BODY:
                self._head_bytes = 0  # of a head that begins in this piece: counted from the next one
            else:
                self._head_bytes += len(piece)
                if self._head_bytes > MAX_HEAD_BYTES:
                    raise LimitExceeded(head_too_large())
        self._schedule()

    def _weigh_framing(self) -> None:
        """Bounds chunk sizes, chunk extensions and trailers by the body that they carry."""
        if self._wire_bytes - self._body_bytes > MAX_HEAD_BYTES + self._body_bytes:
            detail = f"Chunk sizes, extensions and trailers may have {MAX_HEAD_BYTES} bytes more than the body."
            raise LimitExceeded(ApiError(400, "invalid", detail, max_bytes=MAX_HEAD_BYTES))

    def _schedule(self) -> None:
        """Arms the head's timer where a head has begun and not ended, and disarms it where none is awaited."""
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

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_count += 1
        if self._header_count > MAX_HEADERS:
            self._stop_parsing(head_too_large())
        if self._position == self.BODY:
            return  # a trailer: uvicorn would add it to the headers, past every proxy that checks those
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._position = self.BODY
        self._messages += 1
        self._wire_bytes = self._body_bytes = 0
        if len(self.pipeline) >= MAX_PIPELINED:
            detail = f"At most {MAX_PIPELINED} requests of a connection may wait for the response to another."
            self._stop_parsing(ApiError(400, "invalid", detail))
        if self.parser.should_upgrade() and self._should_upgrade():
            self._require_handshake()
        super().on_headers_complete()
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

    def _require_handshake(self) -> None:
        """Refuses what the WebSocket protocol would wait for without a limit of time, or answer out of turn.

        It takes no request with a body: the connection stayed open, and protected from eviction, until its client left.
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
        """Ends `feed_data`, which reports only that a callback failed."""
        self._violation = refusal
        raise LimitExceeded(refusal)

    def handle_websocket_upgrade(self) -> None:
        """Hands the transport over. The connection stays in the table until the WebSocket protocol loses it."""
        self.table.begin_request(self)
        super().handle_websocket_upgrade()
        upgraded = self.transport.get_protocol()
        if isinstance(upgraded, LimitedWebSocketProtocol):
            upgraded.http = self

    def _ignore_upgrade(self) -> None:
        """The request is answered as if it asked for no upgrade; the parser takes no other one after it."""
        if self.cycle is not None:
            self.cycle.keep_alive = False
        self._clear_deadline()
        self._is_discarding = True

    # --- Refusing -----------------------------------------------------------------------------------------------------

    def _violate(self, refusal: ApiError) -> None:
        """Answers and closes. Where responses to earlier requests are due, the last of them closes the connection."""
        REFUSED.labels(refusal.code).inc()
        self._clear_deadline()
        self._is_discarding = True
        if self.pipeline or self._is_response_due:
            if self.pipeline or self._receiving is None or self.cycle.response_started:
                self.cycle.keep_alive = False  # the newest request: the one whose response comes last
                return
            self._abandon_request()  # the violation is in its own body
        self._answer(refusal)

    @property
    def _is_response_due(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _abandon_request(self) -> None:
        """Tells the application that its client has gone."""
        self.cycle.disconnected = True
        self.cycle.message_event.set()

    def _answer(self, refusal: ApiError) -> None:
        self._write(refusal)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._set_deadline(LINGER_SECONDS, self.transport.abort)

    def _write(self, refusal: ApiError) -> None:
        request_id = new_id("req")
        body = json.dumps(problem(refusal, request_id)).encode()
        headers = {
            "content-type": MEDIA_TYPE,
            "content-length": str(len(body)),
            "x-request-id": request_id,
            "connection": "close",
            **refusal.headers,
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self.transport.write(STATUS_LINE[refusal.status] + lines.encode("latin-1") + b"\r\n" + body)

    def _refuse_connection(self, reason: str) -> None:
        REFUSED.labels(reason).inc()
        self._is_discarding = True
        if reason == "address_limit":
            detail = f"Your address may have {settings.MAX_CONNECTIONS_PER_ADDRESS} connections open at a time."
            refusal = ApiError(429, "too_many_connections", detail, headers={"Retry-After": "1"})
        else:
            detail = f"All {self.table.max_connections} connections that this process may have open are in use."
            refusal = ApiError(503, "overloaded", detail, headers={"Retry-After": "1"})
        self._write(refusal)
        self.transport.close()

    def _discard(self, size: int) -> None:
        self._discarded += size
        if self._discarded > LINGER_BYTES:
            self.transport.abort()

    def _cut_off(self, reason: str) -> None:
        """Resets the connection: otherwise the kernel would keep what the client does not read, megabytes each."""
        REFUSED.labels(reason).inc()
        connection = self.transport.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        self.transport.abort()

    # --- Time ---------------------------------------------------------------------------------------------------------

    def _head_is_late(self) -> None:
        self._deadline = None
        if self.flow.read_paused:  # by us, while an earlier request is answered: the client cannot be blamed
            self._set_deadline(settings.HEADER_SECONDS, self._head_is_late)
            return
        if self._is_response_due:
            self._violate(_late())
            return
        if not self._head_bytes and self._position == self.IDLE:
            REFUSED.labels("silent").inc()
            self.transport.close()  # it has sent nothing, so there is nothing to answer
            return
        self._violate(_late())

    def _set_deadline(self, seconds: float, act: Any) -> None:
        self._clear_deadline()
        self._deadline = self.loop.call_later(seconds, act)

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
        def look() -> None:
            left = self.transport.get_write_buffer_size()
            if left >= unsent:
                self._cut_off("response_not_read")
            else:
                self._check_progress(left)

        self._stall_check = self.loop.call_later(settings.RESPONSE_STALL_SECONDS, look)

    def timeout_keep_alive_handler(self) -> None:
        """A client that left a part of its last response unread would keep a closing connection open for ever."""
        if self.transport.get_write_buffer_size():
            self._cut_off("response_not_read")
        else:
            super().timeout_keep_alive_handler()


def _late() -> ApiError:
    seconds = settings.HEADER_SECONDS
    return ApiError(408, "request_timeout", f"The request line and headers must arrive within {seconds:g} seconds.")


class LimitedWebSocketProtocol(WebSocketsSansIOProtocol):
    """Bounds what uvicorn does not: handshakes that are none, fragments of a message, and replies to control frames
    that nobody reads."""

    http: LimitedHttpProtocol | None = None  # the protocol of the handshake, which holds the place in the table

    def connection_lost(self, exc: Exception | None) -> None:
        if self.http is not None:
            self.http.table.remove(self.http)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            self._refuse_handshake()
        elif len(self.frames) > MAX_FRAGMENTS or self.transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            REFUSED.labels("websocket_frames").inc()
            self.transport.abort()

    def _refuse_handshake(self) -> None:
        """Answers a request that `websockets` could not parse, such as one with a line above its own limit.

        uvicorn sends nothing then and keeps the connection."""
        REFUSED.labels("websocket_handshake").inc()
        response = b"".join(self.conn.data_to_send())
        self.handshake_complete = True
        self.transport.write(response or STATUS_LINE[400] + b"content-length: 0\r\nconnection: close\r\n\r\n")
        self.transport.close()
