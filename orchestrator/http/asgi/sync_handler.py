"""Runs Django in a thread for each request: one change from the event loop to a thread, whatever the request does."""

import asyncio
import io
from collections.abc import Hashable
from functools import partial
from typing import IO, Any

from django.conf import settings
from django.core import signals
from django.core.handlers.asgi import ASGIHandler, get_script_prefix
from django.http import FileResponse, HttpRequest
from django.http.response import HttpResponseBase
from django.urls import set_script_prefix

from orchestrator.http.api.calls import CombinedCall
from orchestrator.http.asgi.body_limit import BODY_FILE
from orchestrator.http.asgi.call_groups import CallGroup
from orchestrator.http.asgi.client_identity import ClientIdentities
from orchestrator.http.asgi.long_poll import ATTEMPT
from orchestrator.http.asgi.responses import overloaded, send_refusal
from orchestrator.http.asgi.streams import deliver, early_stream_refusal
from orchestrator.http.asgi.thread_pools import OVERLOADS, ThreadPool
from orchestrator.http.errors.problems import ApiError
from orchestrator.http.fast_path import FastCall, FastPath, FastResponse, PlainRequest

DISCONNECTED = "orchestrator.disconnected"  # key of the scope: a future that is done once the client has disconnected
# Forms with a password: a hash takes a tenth of a second of processor time and 100 MB, by intention.
PASSWORD_FORMS = frozenset({"/login/", "/admin/login/", "/admin/password_change/"})
USER_FORMS = "/admin/auth/user/"  # operators set passwords there


def client_disconnected(request: HttpRequest) -> bool:
    """Return whether the client disconnected before the response. Always False under WSGI, where this is unknown."""
    disconnected = getattr(request, "scope", {}).get(DISCONNECTED)
    return disconnected is not None and disconnected.done()


def hashes_a_password(method: str, path: str) -> bool:
    """Return whether the request may need the hash of a password."""
    return method == "POST" and (path in PASSWORD_FORMS or path.startswith(USER_FORMS))


class ScopeHeaders:
    """Request headers of an ASGI scope. None of them is repeated."""

    __slots__ = ("_headers",)

    def __init__(self, headers: dict[bytes, bytes]) -> None:
        self._headers = headers

    def get(self, name: str, /) -> str | None:
        """Return the value of a header, or None."""
        value = self._headers.get(name.lower().encode())
        return None if value is None else value.decode("latin-1")


def _groups(fast_path: FastPath) -> dict[str, CallGroup[FastCall, FastResponse | None]]:
    """Return the groups of the combined calls by their route, each with a thread."""
    paths = [route.path for route in fast_path.routes if isinstance(route.function, CombinedCall)]
    threads = ThreadPool("group", threads=max(1, len(paths)), queue=0)
    return {path: CallGroup(path, partial(fast_path.answer, in_group=True), threads) for path in paths}


class SyncASGIHandler(ASGIHandler):
    """Django's ASGI handler for synchronous middleware and views.

    Django's own handler changes between the event loop and a thread a dozen times for each request, which costs more
    than most views. Here the whole chain runs in one call in a thread. `asgi.body_limit` has read the whole body
    before. Requests that hash a password have threads of their own.
    """

    chunk_size = 1 << 20  # of a streamed response: Django splits larger blocks, and a blob of an image has such blocks

    def __init__(self, fast_path: FastPath | None = None) -> None:
        """Load the middleware.

        Args:
            fast_path: Answers what it matches, instead of Django.
        """
        super().__init__()
        self.fast_path = fast_path
        self.identities = ClientIdentities()
        connections = settings.DATABASES["default"]["OPTIONS"]["pool"]["max_size"]
        self.threads = ThreadPool(
            "request",
            threads=settings.REQUEST_THREADS,
            queue=settings.REQUEST_QUEUE,
            shares=max(4, connections),  # two requests of one client overlap even with a single connection
        )
        self.login_threads = ThreadPool("login", threads=settings.LOGIN_THREADS, queue=settings.LOGIN_QUEUE)
        self.groups = {} if fast_path is None else _groups(fast_path)

    def load_middleware(self, is_async: bool = False) -> None:  # noqa: ARG002 Django's signature
        super().load_middleware(is_async=False)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            raise ValueError(f"HTTP only, not {scope['type']}.")
        body = scope.get(BODY_FILE) or io.BytesIO((await receive())["body"])
        pool = self.login_threads if hashes_a_password(scope["method"], scope["path"]) else self.threads
        client = self.identities.identify(scope)
        request = self.match(scope, body)
        group = self.groups.get(request.route.path) if request is not None else None
        refusal = early_stream_refusal(scope)
        # `NotificationHub.attempts` limits the attempts of waiting claims, so the queue does not.
        if refusal is None and ATTEMPT not in scope and (group or pool).is_full(client):
            OVERLOADS.labels((group or pool).name).inc()
            refusal = overloaded("Too many requests wait for a thread of this process.")
        if refusal is not None:
            await send_refusal(refusal, scope, send)
            return
        disconnected = asyncio.ensure_future(receive())
        scope = {**scope, DISCONNECTED: disconnected}
        try:
            if group is not None and request is not None:
                call = self._fast_call(scope, request, body)
                response = await group.answer(call, client, size=request.size)
                if not call.is_left_out:
                    await self._send_fast_response(response, scope, send)
                    return
                body.seek(0)
                if ATTEMPT not in scope and pool.is_full(client):
                    OVERLOADS.labels(pool.name).inc()
                    await send_refusal(overloaded("Too many requests wait for a thread of this process."), scope, send)
                    return
            await self._respond(scope, body, send, request=request, pool=pool, client=client)
        finally:
            disconnected.cancel()

    async def _respond(
        self,
        scope: Any,
        body: IO[bytes],
        send: Any,
        *,
        request: PlainRequest | None,
        pool: ThreadPool,
        client: Hashable,
    ) -> None:
        disconnected: asyncio.Future[Any] = scope[DISCONNECTED]
        response: HttpResponseBase | FastResponse | None = None
        refusal: ApiError | None = None
        async with pool.turn(client):
            if disconnected.done():
                return
            # Checked again, because a burst of requests is queued before the first of its streams is admitted.
            refusal = early_stream_refusal(scope)
            if refusal is None:
                response = await pool.call(self.run, scope, body, request, client=client)
        if refusal is not None:
            await send_refusal(refusal, scope, send)
        elif isinstance(response, FastResponse):
            await self._send_fast_response(response, scope, send)
        elif response is not None and response.streaming:
            try:
                await deliver(response, self.send_response, send, disconnected, scope)
            finally:
                await self.threads.run(response.close)
        elif response is not None and not disconnected.done():
            await self.send_response(response, send)

    def match(self, scope: Any, body: IO[bytes]) -> PlainRequest | None:
        """Return the request if the fast path answers it, else None."""
        is_plain = scope["method"] == "POST" and not scope["query_string"] and not scope.get("root_path")
        headers = dict(scope["headers"])
        if not self.fast_path or not is_plain or len(headers) != len(scope["headers"]):
            return None  # Django joins repeated headers
        size = body.seek(0, io.SEEK_END)
        body.seek(0)
        peer, scheme = (scope.get("client") or ("",))[0], scope.get("scheme", "http")
        return self.fast_path.match(scope["path"], ScopeHeaders(headers), size=size, peer=peer, scheme=scheme)

    def run(
        self, scope: dict[str, Any], body: IO[bytes], request: PlainRequest | None
    ) -> HttpResponseBase | FastResponse | None:
        """Return the response, or None if the client disconnected first. In a thread.

        A response that does not stream is closed already, and its database connection is released.

        Args:
            scope: The ASGI scope.
            body: The body.
            request: The result of `match`.
        """
        if request is not None and self.fast_path is not None:
            (response,) = self.fast_path.answer([self._fast_call(scope, request, body)])
            return response
        return None if scope[DISCONNECTED].done() else self._run_django(scope, body)

    def _fast_call(self, scope: dict[str, Any], request: PlainRequest, body: IO[bytes]) -> FastCall:
        disconnected = scope[DISCONNECTED].done
        return FastCall(request, body, attempt=scope.get(ATTEMPT), is_disconnected=disconnected)

    def note_caller(self, response: FastResponse, scope: dict[str, Any]) -> None:
        """Let the next requests with the credentials of this one take turns as those of its caller."""
        if response.caller is not None:
            self.identities.accept(scope, response.caller)
        if response.identified is not None:
            self.identities.replace(scope, response.identified)

    async def _send_fast_response(self, response: FastResponse | None, scope: dict[str, Any], send: Any) -> None:
        if response is None:
            return
        self.note_caller(response, scope)
        if not scope[DISCONNECTED].done():
            headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in response.headers]
            await send({"type": "http.response.start", "status": response.status, "headers": headers})
            await send({"type": "http.response.body", "body": response.body})

    def _run_django(self, scope: dict[str, Any], body: IO[bytes]) -> HttpResponseBase:
        set_script_prefix(get_script_prefix(scope))
        signals.request_started.send(sender=self.__class__, scope=scope)
        request, error_response = self.create_request(scope, body)
        response: Any = error_response if request is None else self.get_response(request)
        if request is not None:
            self.identities.remember(scope, request)
        if isinstance(response, FileResponse):
            response.block_size = self.chunk_size
        if response.streaming:
            signals.request_finished.send(sender=self.__class__)  # a stream queries the database by itself
        else:
            response.close()
        return response
