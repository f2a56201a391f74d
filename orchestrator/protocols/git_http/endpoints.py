"""The ASGI applications of git: authorization in a thread, then a process whose output is sent as it comes.

    info/refs         authorize --> upload-pack advertises the refs
    git-upload-pack   authorize --> read the request --> slot --> upload-pack
    git-receive-pack  403

While bytes are received or sent, a request has neither a thread nor a database connection.
"""

import asyncio
import io
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import IO, Final
from urllib.parse import parse_qs

from django.conf import settings
from django.core.handlers.asgi import ASGIRequest

from orchestrator.core.db_scope import release_connection_after
from orchestrator.http.asgi.body_limit import ClientDisconnected, Message, Receive, Send
from orchestrator.http.asgi.client_identity import ClientIdentities
from orchestrator.http.asgi.http_protocol import EXTENSION, ClientConnection
from orchestrator.http.asgi.responses import PATH_PARAMS, ROUTE
from orchestrator.http.asgi.thread_pools import OVERLOADS, ThreadPool
from orchestrator.http.errors.problems import to_api_error
from orchestrator.http.observability.access_log import CLIENT_CLOSED_REQUEST, METHODS, AccessLogEntry
from orchestrator.http.observability.request_context import RequestContext, new_context
from orchestrator.protocols.git_http.access import GitAccess, authorize
from orchestrator.protocols.git_http.request_body import read_request
from orchestrator.protocols.git_http.wire import (
    ADVERTISEMENT,
    NO_CACHE,
    READ_SERVICE,
    REQUEST,
    RESULT,
    WRITE_SERVICE,
    GitRefusal,
    protocol_version,
    read_only,
    service_banner,
)
from orchestrator.repositories.upload_pack import NoSlot, TransferSlots, UploadPack, is_readable

log = logging.getLogger(__name__)

DIED: Final = 128  # git's exit code for an error that it has a message for

_authorize = release_connection_after(authorize)


class TransferEnded(Exception):
    """A response that has begun cannot be completed. Its connection is dropped, so that the client notices."""


class GitServer:
    """Serves the repositories of the installation to clients of git."""

    def __init__(self, threads: ThreadPool, identities: ClientIdentities) -> None:
        """Prepare.

        Args:
            threads: The threads of requests, for the authorization.
            identities: The clients of requests, by which they take turns for a thread.
        """
        self._threads, self._identities = threads, identities
        self._slots = TransferSlots()

    async def info_refs(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve `GET /{owner}/{repository}.git/info/refs?service=git-upload-pack`."""
        await self._answer(self._advertise, _Exchange(scope, receive, send))

    async def upload_pack(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve `POST /{owner}/{repository}.git/git-upload-pack`."""
        await self._answer(self._fetch, _Exchange(scope, receive, send))

    async def receive_pack(self, scope: Message, receive: Receive, send: Send) -> None:
        """Refuse `POST /{owner}/{repository}.git/git-receive-pack`."""
        await self._answer(_refuse_push, _Exchange(scope, receive, send))

    async def _answer(self, serve: "Callable[[_Exchange], Awaitable[None]]", exchange: "_Exchange") -> None:
        try:
            await serve(exchange)
        except GitRefusal as refusal:
            await exchange.refuse(refusal)
        except ClientDisconnected:
            if not exchange.is_started:
                exchange.record(CLIENT_CLOSED_REQUEST)
        except TransferEnded as ended:
            log.warning("a fetch ended early: %s", ended)
            await exchange.refuse(GitRefusal(503, f"The fetch ended early: {ended}.", headers={"Retry-After": "5"}))
        except NoSlot:
            busy = GitRefusal(503, "Too many fetches are in progress. Retry later.", headers={"Retry-After": "5"})
            await exchange.refuse(busy)
        except Exception as error:  # noqa: BLE001 every exception has a response
            found = to_api_error(error, exchange.context.request_id)
            await exchange.refuse(GitRefusal(found.status, found.detail, headers=found.headers))

    async def _advertise(self, exchange: "_Exchange") -> None:
        exchange.require_method("GET")
        service = parse_qs(exchange.scope["query_string"].decode("latin-1")).get("service", [""])[-1]
        if service == WRITE_SERVICE:
            raise read_only()
        if service != READ_SERVICE:
            raise GitRefusal(400, f"The query must be service={READ_SERVICE}: only git's smart protocol is supported.")
        access = await self._authorize(exchange)
        async with self._slots.slot(access.client):
            banner = b"" if exchange.protocol == "version=2" else service_banner(service)
            await self._send_output(exchange, access, ADVERTISEMENT, banner=banner, request=None)

    async def _fetch(self, exchange: "_Exchange") -> None:
        exchange.require_method("POST")
        if exchange.header("content-type").partition(";")[0].strip().lower() != REQUEST:
            raise GitRefusal(415, f"The Content-Type must be {REQUEST}.")
        access = await self._authorize(exchange)
        body = await read_request(exchange.receive, encoding=exchange.header("content-encoding").strip().lower())
        try:
            async with self._slots.slot(access.client):
                await self._send_output(exchange, access, RESULT, banner=b"", request=body.file)
        finally:
            body.close()

    async def _authorize(self, exchange: "_Exchange") -> GitAccess:
        client = self._identities.identify(exchange.scope)
        if self._threads.is_full(client):
            OVERLOADS.labels(self._threads.name).inc()
            raise GitRefusal(503, "Too many requests wait for a thread.", headers={"Retry-After": "1"})
        request = ASGIRequest(exchange.scope, io.BytesIO())
        path = exchange.scope[PATH_PARAMS]
        return await self._threads.run(_authorize, request, path["owner"], path["repository"], client=client)

    async def _send_output(
        self, exchange: "_Exchange", access: GitAccess, media_type: str, *, banner: bytes, request: IO[bytes] | None
    ) -> None:
        """Send the output of a process, until it ends, the client disconnects, or the time is up."""
        pack = await UploadPack.start(access.mirror, protocol=exchange.protocol, request=request)
        sending = asyncio.ensure_future(_send_all(pack, exchange, access.mirror, media_type, banner))
        disconnected = asyncio.ensure_future(exchange.wait_disconnected())
        try:
            seconds = settings.GIT_TRANSFER_SECONDS
            await asyncio.wait({sending, disconnected}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
            elif disconnected.done():
                raise ClientDisconnected
            else:
                raise TransferEnded(f"it took longer than {seconds:g} s")
        finally:
            sending.cancel()
            disconnected.cancel()
            pack.kill()  # before the first `await`, which another cancellation of this task would end
            await asyncio.wait({sending, disconnected})
            await pack.wait_killed()


async def _refuse_push(exchange: "_Exchange") -> None:
    exchange.require_method("POST")
    raise read_only()


async def _send_all(pack: UploadPack, exchange: "_Exchange", mirror: Path, media_type: str, banner: bytes) -> None:
    block = await pack.read()
    if not block and (code := await pack.end()) != 0:
        if code == DIED and await is_readable(mirror):
            raise GitRefusal(400, f"The request is not understood: {pack.message}.")
        raise GitRefusal(500, "The repository cannot be read. The log of the server has the reason.")
    await exchange.start(200, {"Content-Type": media_type, **NO_CACHE})
    await exchange.send_block(banner)
    while block:
        await exchange.send_block(block)
        block = await pack.read()
    # A positive code follows an error in the protocol, such as an unknown commit, which the client must receive.
    if await pack.end() < 0:
        raise TransferEnded("git was killed")
    await exchange.finish()


class _Exchange:
    """One request and its response."""

    def __init__(self, scope: Message, receive: Receive, send: Send) -> None:
        self.scope, self.receive, self._send = scope, receive, send
        self._headers: dict[bytes, bytes] = dict(scope["headers"])
        self.context: RequestContext = new_context(
            self.header("x-request-id") or None, self.header("traceparent") or None
        )
        self.protocol = protocol_version(self.header("git-protocol"))
        self.is_started = False

    def header(self, name: str) -> str:
        """Return a header of the request, or an empty text."""
        return self._headers.get(name.encode(), b"").decode("latin-1")

    def require_method(self, method: str) -> None:
        """Raise the refusal of another method."""
        if self.scope["method"] != method:
            raise GitRefusal(405, f"The method must be {method}.", headers={"Allow": method})

    async def wait_disconnected(self) -> None:
        """Return when the client has disconnected. The body of a request that needs none is discarded."""
        while (await self.receive())["type"] != "http.disconnect":
            pass

    async def refuse(self, refusal: GitRefusal) -> None:
        """Send a refusal as text; or drop the connection if the response has begun."""
        if self.is_started:
            self.drop()
            return
        body = f"{refusal.message}\n".encode()
        headers = {"Content-Type": "text/plain; charset=utf-8", "Content-Length": str(len(body)), **NO_CACHE}
        if b"expect" in self._headers:
            headers["Connection"] = "close"  # the client has sent no body, and would send it on this connection
        await self.start(refusal.status, headers | refusal.headers)
        await self._send({"type": "http.response.body", "body": body})

    async def start(self, status: int, headers: dict[str, str]) -> None:
        """Send the head of the response, and write the access log."""
        self.is_started = True
        self.record(status)
        headers |= {"X-Content-Type-Options": "nosniff", "X-Request-Id": self.context.request_id}
        encoded = [(name.lower().encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": encoded})

    async def send_block(self, block: bytes) -> None:
        """Send bytes of the body, and wait until the client has read enough.

        Raises:
            TransferEnded: The client read nothing for STREAM_STALL_SECONDS.
        """
        if not block:
            return
        try:
            async with asyncio.timeout(settings.STREAM_STALL_SECONDS):
                await self._send({"type": "http.response.body", "body": block, "more_body": True})
        except TimeoutError:
            raise TransferEnded("the client does not read") from None

    async def finish(self) -> None:
        """Send the end of the body."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    def drop(self) -> None:
        """Close the connection without the end of the response."""
        connection = self.scope.get("extensions", {}).get(EXTENSION)
        if isinstance(connection, ClientConnection):
            connection.drop()

    def record(self, status: int) -> None:
        """Write the access log."""
        method = self.scope["method"] if self.scope["method"] in METHODS else "OTHER"
        AccessLogEntry(self.context, method, self.scope[ROUTE]).record(status)
