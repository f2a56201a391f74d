"""Between the server's loop and Django: a request enters a thread once, and stays there until it is answered."""

import asyncio
import io
from collections.abc import Callable, Hashable
from typing import IO, Any, TypeVar

from django.conf import settings
from django.core import signals
from django.core.handlers.asgi import ASGIHandler, get_script_prefix
from django.http import FileResponse, HttpRequest
from django.http.response import HttpResponseBase
from django.urls import set_script_prefix

from orchestrator.http.asgi.bodies import BODY_FILE
from orchestrator.http.asgi.poll_attempt import LOOK
from orchestrator.http.asgi.responses import overloaded, send_refusal
from orchestrator.http.asgi.routes import hashes_a_password
from orchestrator.http.asgi.streams import deliver
from orchestrator.http.asgi.thread_pools import OVERLOADS, ThreadPool

R = TypeVar("R")

DISCONNECTED = "orchestrator.left"  # in the scope: a future that is done once the caller has gone


def client_disconnected(request: HttpRequest) -> bool:
    """Whether the caller went away before it was answered. Under WSGI nobody knows."""
    left = getattr(request, "scope", {}).get(DISCONNECTED)
    return left is not None and left.done()


def _client(scope: Any) -> Hashable:
    """Return what the queue for a thread tells clients apart by: the credentials, else the address."""
    headers = dict(scope["headers"])
    return headers.get(b"authorization") or headers.get(b"cookie") or (scope["client"] or ("",))[0]


class SyncASGIHandler(ASGIHandler):
    """Django's own handler crosses between the loop and a thread of the request's own a dozen times, which costs more
    than most views do. All middleware and views here are synchronous: one crossing is enough.

    The body has been read by `http.asgi.bodies`, whole. Requests that hash a password have threads of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.threads = ThreadPool("request", threads=settings.REQUEST_THREADS, queue=settings.REQUEST_QUEUE)
        self.login_threads = ThreadPool("login", threads=settings.LOGIN_THREADS, queue=settings.LOGIN_QUEUE)

    def load_middleware(self, is_async: bool = False) -> None:  # noqa: ARG002 Django's signature
        super().load_middleware(is_async=False)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            raise ValueError(f"HTTP only, not {scope['type']}.")
        body = scope.get(BODY_FILE) or io.BytesIO((await receive())["body"])
        pool = self.login_threads if hashes_a_password(scope["method"], scope["path"]) else self.threads
        # A claim that has waited looks again whatever the queue is: `Waking.looks` bounds how many do at a time.
        client = _client(scope)
        if pool.is_full(client) and LOOK not in scope:
            OVERLOADS.labels(pool.name).inc()
            await send_refusal(overloaded("Too many requests wait for a thread of this process."), scope, send)
            return
        left = asyncio.ensure_future(receive())
        try:
            response = await pool.run(self._answer, {**scope, DISCONNECTED: left}, body, client=client)
            if response is None:
                return
            if response.streaming:
                await self._stream(response, send, left, scope)
            elif not left.done():
                await self.send_response(response, send)
        finally:
            left.cancel()

    async def _in_thread(self, act: Callable[..., R], *values: Any) -> R:
        return await self.threads.run(act, *values)

    def _answer(self, scope: dict[str, Any], body: IO[bytes]) -> HttpResponseBase | None:
        """The response; unless it streams, all is done with it but the sending, and its connection is given back. None
        if the client disconnected before a thread was free: the request has not been looked at then."""
        if scope[DISCONNECTED].done():
            return None
        set_script_prefix(get_script_prefix(scope))
        signals.request_started.send(sender=self.__class__, scope=scope)
        request, refusal = self.create_request(scope, body)
        response: Any = refusal if request is None else self.get_response(request)
        if isinstance(response, FileResponse):
            response.block_size = self.chunk_size
        if response.streaming:
            signals.request_finished.send(sender=self.__class__)  # what streams looks at the database for itself
        else:
            response.close()
        return response

    async def _stream(self, response: HttpResponseBase, send: Any, left: "asyncio.Future[Any]", scope: Any) -> None:
        """Send until the end, or until the client disconnects or is cut off."""
        try:
            await deliver(response, self.send_response, send, left, scope)
        finally:
            await self._in_thread(response.close)
