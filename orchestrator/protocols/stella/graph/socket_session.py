"""The protocol graphql-transport-ws without input and output.

    CONNECTING --connection_init--> admission --connection_ack--> READY --subscribe--> next ... complete
         |                             |                            |
         +-- no message in time: 4408  +-- refused: 4401, 4403      +-- error of the protocol: 4400, 4401, 4409, 4429

Each input returns effects, and `orchestrator.http.asgi.sockets` performs them. A subscription has one operation at a
time: `Begin`, then one `Pull` for each message, each after the message before was sent. So a client that reads slowly
delays only its own messages. Times are seconds on the monotonic clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import orjson

from orchestrator.http.api import json_parser
from orchestrator.http.asgi.sockets import NOTHING, CloseSocket, Effects, SendText
from orchestrator.http.asgi.websocket_protocol import GOING_AWAY, SHUTDOWN_REASON
from orchestrator.http.errors.problems import ApiError

SUBPROTOCOL: Final = "graphql-transport-ws"
INIT_SECONDS: Final = 10.0  # from the handshake to `connection_init`
MAX_OPERATIONS: Final = 20  # of one connection
MAX_ID_LENGTH: Final = 100

# Codes of Close frames, as the protocol names them.
INVALID_MESSAGE, UNAUTHORIZED, FORBIDDEN, INIT_TIMEOUT = 4400, 4401, 4403, 4408
DUPLICATE_ID, REPEATED_INIT, INTERNAL_ERROR = 4409, 4429, 4500
TRY_AGAIN_LATER: Final = 1013


class ConnectionPhase(StrEnum):
    """The phase of a connection."""

    CONNECTING = "connecting"
    READY = "ready"
    CLOSED = "closed"


# --- Operations: effects with a result --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Admit:
    """Authenticate the client. The result is `Admitted` or an ApiError."""

    payload: Mapping[str, Any]


@dataclass(frozen=True)
class Admitted:
    """The client may send requests."""


@dataclass(frozen=True)
class WatchCredential:
    """Wait until the connection must end. The result is a `CredentialEnd`."""


@dataclass(frozen=True)
class CredentialEnd:
    """The end of the right to be connected. `is_revoked` is false if the process ends."""

    is_revoked: bool


@dataclass(frozen=True)
class Begin:
    """Check a request, and execute its query or begin its subscription. The result is an `Answer`."""

    key: int
    payload: Mapping[str, Any]


@dataclass(frozen=True)
class Pull:
    """Wait for the next message of a subscription. The result is an `Answer`."""

    key: int


@dataclass(frozen=True)
class Stop:
    """End a subscription that the client has ended. The result is None."""

    key: int


@dataclass(frozen=True)
class Answer:
    """The result of a step of a request.

    Attributes:
        key: The number of the request within the connection.
        response: A response for the client, or None.
        errors: The errors because of which the request has ended, or None.
        has_more: The request continues.
    """

    key: int
    response: dict[str, Any] | None = None
    errors: list[dict[str, Any]] | None = None
    has_more: bool = False


class GraphQLSession:
    """One connection."""

    kind = "graphql"

    def __init__(self, *, now: float, max_seconds: float) -> None:
        """Begin after the handshake.

        Args:
            now: The time.
            max_seconds: The longest duration of a connection.
        """
        self.phase = ConnectionPhase.CONNECTING
        self.deadline: float | None = now + INIT_SECONDS
        self._ends_at = now + max_seconds
        self._is_admitting = False
        self._keys: dict[str, int] = {}  # of the client's ids, while their requests run
        self._ids: dict[int, str] = {}
        self._pending = 0  # operations of requests
        self._next_key = 0

    @property
    def accepts_frames(self) -> bool:
        return not self._is_admitting and self._pending < 2 * MAX_OPERATIONS

    # --- Inputs -------------------------------------------------------------------------------------------------------

    def parse(self, text: str) -> dict[str, Any] | None:
        """Return the message in a text frame, or None for an invalid one."""
        try:
            return json_parser.loads(text.encode())
        except (ApiError, UnicodeEncodeError):
            return None

    def receive(self, frame: dict[str, Any] | None, now: float) -> Effects:
        """Receive a message. None is an invalid one."""
        effects: Effects
        match frame:
            case _ if self.phase is ConnectionPhase.CLOSED:
                effects = NOTHING
            case {"type": "ping"}:
                effects = [_message("pong")]
            case {"type": "pong"}:
                effects = NOTHING
            case {"type": "connection_init", **rest} if isinstance(payload := rest.get("payload"), dict | None):
                effects = self._initialize(payload or {})
            case {"type": "subscribe", "id": str() as name, "payload": dict() as payload} if _is_id(name):
                effects = self._subscribe(name, payload)
            case {"type": "complete", "id": str() as name}:
                effects = self._complete(name)
            case _:
                effects = self._close(INVALID_MESSAGE, "Invalid message")
        return effects

    def receive_bytes(self, now: float) -> Effects:
        """Refuse a binary frame."""
        return self._close(INVALID_MESSAGE, "Invalid message")

    def receive_control(self, now: float) -> Effects:
        """Ignore a ping or pong of the WebSocket protocol."""
        return NOTHING

    def advance(self, now: float) -> Effects:
        """Close a connection that sends no `connection_init`, or that is too old: the client connects again."""
        if self.phase is ConnectionPhase.CONNECTING:
            return self._close(INIT_TIMEOUT, "Connection initialisation timeout")
        return self._close(GOING_AWAY, "Connect again")

    def resolve(self, result: Any, now: float) -> Effects:
        effects: Effects = NOTHING
        match result:
            case Admitted():
                self._is_admitting = False
                effects = self._begin_requests()
            case ApiError():
                self._is_admitting = False
                effects = self._refuse(result)
            case CredentialEnd(is_revoked=is_revoked):
                effects = self._close(*((FORBIDDEN, "Forbidden") if is_revoked else (GOING_AWAY, SHUTDOWN_REASON)))
            case Answer():
                self._pending -= 1
                effects = self._answer(result)
            case None:  # of `Stop`
                self._pending -= 1
        return effects

    def fail_operation(self, now: float) -> Effects:
        return NOTHING if self.phase is ConnectionPhase.CLOSED else self._close(INTERNAL_ERROR, "Internal error")

    def end_connection(self) -> Effects:
        self.phase, self.deadline = ConnectionPhase.CLOSED, None
        return NOTHING

    def shut_down(self) -> Effects:
        """Close the connection, because the process was asked to stop."""
        return self._close(GOING_AWAY, SHUTDOWN_REASON)

    # --- Steps --------------------------------------------------------------------------------------------------------

    def _initialize(self, payload: Mapping[str, Any]) -> Effects:
        if self.phase is ConnectionPhase.READY:
            return self._close(REPEATED_INIT, "Too many initialisation requests")
        self._is_admitting, self.deadline = True, None
        return [Admit(payload)]

    def _begin_requests(self) -> Effects:
        if self.phase is ConnectionPhase.CLOSED:
            return NOTHING
        self.phase, self.deadline = ConnectionPhase.READY, self._ends_at
        return [_message("connection_ack"), WatchCredential()]

    def _refuse(self, refusal: ApiError) -> Effects:
        """Close a connection that is not admitted. Clients connect again after codes other than 4401 and 4403."""
        code = {401: UNAUTHORIZED, 403: FORBIDDEN}.get(refusal.status, TRY_AGAIN_LATER)
        return self._close(code, refusal.code)

    def _subscribe(self, name: str, payload: Mapping[str, Any]) -> Effects:
        if self.phase is ConnectionPhase.CONNECTING:
            return self._close(UNAUTHORIZED, "Unauthorized")
        if name in self._keys:
            return self._close(DUPLICATE_ID, f"Subscriber for {name} already exists")
        if len(self._keys) >= MAX_OPERATIONS:
            detail = f"A connection may have at most {MAX_OPERATIONS} requests at once. Complete one, or retry later."
            extensions = {"code": "too_many_streams", "status": 429, "limit": MAX_OPERATIONS}
            return [_message("error", name, [{"message": detail, "extensions": extensions}])]
        key = self._next_key
        self._next_key += 1
        self._keys[name], self._ids[key] = key, name
        return self._run(Begin(key, payload))

    def _complete(self, name: str) -> Effects:
        """End a request for the client. A request that has ended is unknown."""
        key = self._keys.pop(name, None)
        if key is None:
            return NOTHING
        del self._ids[key]
        return self._run(Stop(key))

    def _answer(self, answer: Answer) -> Effects:
        if self.phase is ConnectionPhase.CLOSED:
            return NOTHING
        name = self._ids.get(answer.key)
        if name is None:  # the client has ended it; what began meanwhile must end, too
            return self._run(Stop(answer.key)) if answer.has_more else NOTHING
        effects: list[Any] = []
        if answer.response is not None:
            effects.append(_message("next", name, answer.response))
        if answer.has_more:
            return [*effects, *self._run(Pull(answer.key))]
        del self._keys[name], self._ids[answer.key]
        last = _message("complete", name) if answer.errors is None else _message("error", name, answer.errors)
        return [*effects, last]

    def _run(self, operation: Begin | Pull | Stop) -> Effects:
        self._pending += 1
        return [operation]

    def _close(self, code: int, reason: str) -> Effects:
        if self.phase is ConnectionPhase.CLOSED:
            return NOTHING
        self.phase, self.deadline = ConnectionPhase.CLOSED, None
        return [CloseSocket(code, reason)]


def _is_id(name: str) -> bool:
    return 0 < len(name) <= MAX_ID_LENGTH


def _message(kind: str, name: str | None = None, payload: Any = None) -> SendText:
    message: dict[str, Any] = {"type": kind}
    if name is not None:
        message["id"] = name
    if payload is not None:
        message["payload"] = payload
    return SendText(orjson.dumps(message).decode())
