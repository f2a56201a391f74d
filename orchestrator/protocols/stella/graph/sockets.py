"""The ASGI application of the WebSocket at `/api/graphql`: handshake, admission, requests and subscriptions.

A handshake is refused with a problem document: another site, another subprotocol, plain text. A connection counts as
one stream of its token or person, and its credential is re-checked with those of all streams.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, TypeVar

from django.conf import settings
from django.contrib.auth import get_user
from django.core.handlers.asgi import ASGIRequest
from graphql import OperationType
from rest_framework.exceptions import NotAuthenticated

from orchestrator.core.db_scope import release_connection_after
from orchestrator.core.principals import ClientPrincipal, client_of_person
from orchestrator.http.api.fields import parse
from orchestrator.http.asgi.body_limit import Message, Receive, Send
from orchestrator.http.asgi.client_identity import ClientIdentities
from orchestrator.http.asgi.responses import ROUTE, overloaded, refuse_websocket
from orchestrator.http.asgi.sockets import SocketDriver, handshake_request
from orchestrator.http.asgi.streams import Stream, StreamEnd, registry
from orchestrator.http.asgi.thread_pools import OVERLOADS, ThreadPool
from orchestrator.http.asgi.websocket_protocol import EXTENSION, WebSocketConnection
from orchestrator.http.auth.authentication import authenticate_bearer, is_of_other_site
from orchestrator.http.auth.credentials import credential_of_client
from orchestrator.http.auth.permissions import NOT_FOR_WORKERS
from orchestrator.http.client_ip import rate_limit_key
from orchestrator.http.errors.problems import ApiError, to_api_error
from orchestrator.http.observability.access_log import AccessLogEntry
from orchestrator.http.observability.request_context import RequestContext, new_context
from orchestrator.protocols.stella.graph.execution import (
    CheckedRequest,
    GraphRequest,
    InvalidDocument,
    check_request,
    execute_query,
    refusal_of,
    serialize_error,
    serialize_refusal,
    subscribe,
)
from orchestrator.protocols.stella.graph.serializers import GraphQLInput
from orchestrator.protocols.stella.graph.socket_session import (
    SUBPROTOCOL,
    Admit,
    Admitted,
    Answer,
    Begin,
    CredentialEnd,
    GraphQLSession,
    Pull,
    Stop,
    WatchCredential,
)
from runtime_jobs.models.tenants import Scope

T = TypeVar("T")

MAX_MESSAGE_BYTES: Final = 64 << 10
AUTHORIZATION: Final = "authorization"  # the member of `connection_init`, in any case


class GraphQLSockets:
    """The WebSocket of GraphQL, with what all connections of a process share."""

    def __init__(self, threads: ThreadPool, identities: ClientIdentities) -> None:
        """Prepare.

        Args:
            threads: The threads of requests.
            identities: The clients of requests, by which connections take turns for a thread.
        """
        self.threads, self.identities = threads, identities

    async def connect(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        await receive()
        headers = dict(scope["headers"])
        context = new_context(_latin1(headers.get(b"x-request-id")), _latin1(headers.get(b"traceparent")))
        try:
            _check_handshake(scope)
        except Exception as error:  # noqa: BLE001 every exception has a response
            await refuse_websocket(scope, receive, send, to_api_error(error, context.request_id))
            return
        connection = scope.get("extensions", {}).get(EXTENSION)
        if isinstance(connection, WebSocketConnection):
            connection.limit_messages(MAX_MESSAGE_BYTES)
        await send({"type": "websocket.accept", "subprotocol": SUBPROTOCOL})
        AccessLogEntry(context, "GET", scope[ROUTE]).record(101)
        session = GraphQLSession(now=time.monotonic(), max_seconds=settings.STREAM_MAX_SECONDS)
        performer = _GraphQLPerformer(self, scope, context)
        try:
            await SocketDriver(session, performer.perform, scope, receive, send).run()
        finally:
            performer.close()


def _check_handshake(scope: Message) -> None:
    """Refuse a handshake in plain text, of a page of another site, or without the subprotocol.

    Raises:
        ApiError: 400 or 403.
        SuspiciousOperation: The header `Host` is not valid.
    """
    request = handshake_request(scope)
    if settings.SECURE_SSL_REDIRECT and not request.is_secure():
        raise ApiError(403, "https_required", "Use wss, and revoke the token: it would be sent in plain text.")
    if is_of_other_site(request):
        raise ApiError(403, "forbidden", "Pages of other sites may not connect.")
    if SUBPROTOCOL not in scope.get("subprotocols", ()):
        problem = f"Must contain {SUBPROTOCOL}. The older protocol graphql-ws is not supported."
        detail = "The header Sec-WebSocket-Protocol is not valid."
        raise ApiError(400, "invalid", detail, errors={"Sec-WebSocket-Protocol": [problem]})


@dataclass(frozen=True)
class _Admission:
    """The client of a connection, and the stream as which the connection counts."""

    client: ClientPrincipal
    stream: Stream


class _GraphQLPerformer:
    """Executes the operations of one session."""

    def __init__(self, sockets: GraphQLSockets, scope: Message, context: RequestContext) -> None:
        self._sockets, self._scope, self._context = sockets, scope, context
        self._turn: Hashable = sockets.identities.identify(scope)
        self._admission: _Admission | None = None
        self._subscriptions: dict[int, AsyncGenerator[dict[str, Any], None]] = {}
        self._pulls: dict[int, asyncio.Future[dict[str, Any]]] = {}

    async def perform(self, operation: Any, ended: "asyncio.Future[None]") -> Any:
        """Execute an operation, and return its result; see `socket_session`."""
        match operation:
            case Admit(payload):
                return await self._admit(payload)
            case WatchCredential():
                return await self._watch(ended)
            case Begin(key, payload):
                return await self._begin(key, payload)
            case Pull(key):
                return await self._pull(key, ended)
            case Stop(key):
                await self._stop(key)
        return None

    def close(self) -> None:
        """Stop counting the connection."""
        if self._admission is not None:
            registry.detach(self._admission.stream)

    async def _admit(self, payload: Mapping[str, Any]) -> Admitted | ApiError:
        try:
            self._admission = await self._run(_admit, self._scope, payload)
        except Exception as error:  # noqa: BLE001 every exception has a Close frame
            return to_api_error(error, self._context.request_id)
        self._turn = ("principal", self._admission.client.key)
        return Admitted()

    async def _watch(self, ended: "asyncio.Future[None]") -> CredentialEnd:
        """Wait until the registry of streams ends the connection, which re-checks its credential."""
        cut = self._admitted.stream.attach()
        awaited: set[asyncio.Future[Any]] = {cut, ended}
        await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
        return CredentialEnd(is_revoked=cut.done() and cut.result() == StreamEnd.REVOKED)

    async def _begin(self, key: int, payload: Mapping[str, Any]) -> Answer:
        try:
            prepared = await self._run(self._prepare, payload)
            if not isinstance(prepared, CheckedRequest):
                return _answer_of(key, prepared)
            self._subscriptions[key] = subscribe(prepared, self._admitted.client, self._context.request_id)
        except InvalidDocument as error:
            found = [serialize_error(one, self._context.request_id) for one in error.errors]
            return Answer(key, errors=found)
        except Exception as error:  # noqa: BLE001 every exception is an error of the request
            return self._failed(key, error)
        return Answer(key, has_more=True)

    def _prepare(self, payload: Mapping[str, Any]) -> CheckedRequest | dict[str, Any]:
        """Check a request, and execute it if it is a query. In a thread."""
        validated = parse(GraphQLInput, payload)
        request = GraphRequest(validated["query"], validated["variables"] or {}, validated["operationName"] or None)
        checked = check_request(request)
        if checked.kind != OperationType.QUERY:
            return checked
        return execute_query(checked, self._admitted.client, self._context.request_id)

    async def _pull(self, key: int, ended: "asyncio.Future[None]") -> Answer:
        source = self._subscriptions.get(key)
        if source is None:  # the client has ended it
            return Answer(key)
        pull = self._pulls[key] = asyncio.ensure_future(anext(source))
        awaited: set[asyncio.Future[Any]] = {pull, ended}
        await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
        if not pull.done():
            pull.cancel()
            await asyncio.wait({pull})
        del self._pulls[key]
        try:
            answer = _answer_of(key, pull.result(), has_more=True)
        except StopAsyncIteration:
            answer = Answer(key)
        except asyncio.CancelledError:  # by `_stop`, or because the connection has ended
            answer = Answer(key)
        except Exception as error:  # noqa: BLE001 every exception is an error of the request
            answer = self._failed(key, error)
        if not answer.has_more:
            await self._forget(key)
        return answer

    async def _stop(self, key: int) -> None:
        pull = self._pulls.get(key)
        if pull is None:
            await self._forget(key)
        else:
            pull.cancel()  # `_pull` closes the subscription

    async def _forget(self, key: int) -> None:
        source = self._subscriptions.pop(key, None)
        if source is not None:
            with suppress(Exception):  # its error was reported
                await source.aclose()

    def _failed(self, key: int, error: Exception) -> Answer:
        request_id = self._context.request_id
        refusal = refusal_of(error, request_id)
        return Answer(key, errors=[{"message": refusal.detail, "extensions": serialize_refusal(refusal, request_id)}])

    @property
    def _admitted(self) -> _Admission:
        assert self._admission is not None  # noqa: S101 the session begins requests after the admission
        return self._admission

    async def _run(self, function: Callable[..., T], *values: object) -> T:
        """Call a function in a thread when it is the turn of this client.

        Raises:
            ApiError: `overloaded`; too many requests wait for a thread.
        """
        threads = self._sockets.threads
        if threads.is_full(self._turn):
            OVERLOADS.labels(threads.name).inc()
            raise overloaded("Too many requests wait for a thread of this process.")
        return await threads.run(release_connection_after(function), *values, client=self._turn)


def _answer_of(key: int, response: dict[str, Any], *, has_more: bool = False) -> Answer:
    """Return the answer with a response. One without `data` is the end of its request."""
    if "data" not in response:
        return Answer(key, errors=response["errors"])
    return Answer(key, response, has_more=has_more)


# --- Admission, in a thread -------------------------------------------------------------------------------------------


def _admit(scope: Message, payload: Mapping[str, Any]) -> _Admission:
    """Authenticate the client of a connection, and count the connection.

    Raises:
        ApiError: 403 or 429.
        AuthenticationFailed: The token is not valid.
        NotAuthenticated: There is neither a token nor a session of a page of this server.
    """
    request = handshake_request(scope)
    client, session_key = _client_of_token(request, payload) or _client_of_session(request)
    if Scope.ORCH_READ not in client.scopes:
        detail = f"The scope {Scope.ORCH_READ} is required, and this token or session does not have it."
        raise ApiError(403, "insufficient_scope", detail, scope=Scope.ORCH_READ)
    client = client.limited_to(Scope.ORCH_READ)
    organizations = sorted(client.organizations or ())
    credential = credential_of_client(
        client,
        session_key=session_key,
        org_slug=next(iter(organizations), ""),
        further_organizations=tuple(organizations[1:]),
        scope=Scope.ORCH_READ,
    )
    return _Admission(client, registry.admit(credential, "graphql"))


def _client_of_token(request: ASGIRequest, payload: Mapping[str, Any]) -> tuple[ClientPrincipal, str] | None:
    """Return the client of the token in `connection_init`, or None without a token."""
    header = next((value for name, value in payload.items() if name.lower() == AUTHORIZATION), None)
    if header is None:
        return None
    principal = authenticate_bearer(str(header), network=rate_limit_key(request))
    if not isinstance(principal, ClientPrincipal):
        raise ApiError(403, "wrong_principal", NOT_FOR_WORKERS)
    return principal, ""


def _client_of_session(request: ASGIRequest) -> tuple[ClientPrincipal, str]:
    """Return the person with a session. The handshake has refused other sites; without `Origin` it is no browser's."""
    session_key = request.COOKIES.get(settings.SESSION_COOKIE_NAME)
    if not session_key or "Origin" not in request.headers:
        raise NotAuthenticated
    stateful: Any = request
    stateful.session = import_module(settings.SESSION_ENGINE).SessionStore(session_key)
    user = get_user(stateful)
    if not user.is_authenticated:
        raise NotAuthenticated
    return client_of_person(user), session_key


def _latin1(value: bytes | None) -> str | None:
    return None if value is None else value.decode("latin-1")
