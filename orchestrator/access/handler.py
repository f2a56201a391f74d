"""Between the server's loop and Django: a request enters a thread once, and stays there until it is answered."""

import asyncio
import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, TypeVar

from django.conf import settings
from django.core import signals
from django.core.handlers.asgi import ASGIHandler, get_script_prefix
from django.http import FileResponse, HttpRequest
from django.http.response import HttpResponseBase
from django.urls import set_script_prefix

from orchestrator.access.streams import deliver

R = TypeVar("R")

LEFT = "orchestrator.left"  # in the scope: a future that is done once the caller has gone


def has_gone(request: HttpRequest) -> bool:
    """Whether the caller went away before it was answered. Under WSGI nobody knows."""
    left = getattr(request, "scope", {}).get(LEFT)
    return left is not None and left.done()


class ThreadedHandler(ASGIHandler):
    """Django's own handler crosses between the loop and a thread of the request's own a dozen times, which costs more
    than most views do. All middleware and views here are synchronous: one crossing is enough.

    The body has been read by `access.bodies`, whole."""

    def __init__(self) -> None:
        super().__init__()
        self.threads = ThreadPoolExecutor(settings.REQUEST_THREADS, thread_name_prefix="request")

    def load_middleware(self, is_async: bool = False) -> None:  # noqa: ARG002 Django's signature
        super().load_middleware(is_async=False)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            raise ValueError(f"HTTP only, not {scope['type']}.")
        body = (await receive())["body"]
        left = asyncio.ensure_future(receive())
        try:
            response = await self._in_thread(self._answer, {**scope, LEFT: left}, body)
            if response.streaming:
                await self._stream(response, send, left, scope)
            elif not left.done():
                await self.send_response(response, send)
        finally:
            left.cancel()

    async def _in_thread(self, act: Callable[..., R], *values: Any) -> R:
        return await asyncio.get_running_loop().run_in_executor(self.threads, copy_context().run, act, *values)

    def _answer(self, scope: dict[str, Any], body: bytes) -> HttpResponseBase:
        """The response; unless it streams, all is done with it but the sending, and its connection is given back."""
        set_script_prefix(get_script_prefix(scope))
        signals.request_started.send(sender=self.__class__, scope=scope)
        request, refusal = self.create_request(scope, io.BytesIO(body))
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
