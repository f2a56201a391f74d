"""Routes ASGI scopes before Django: health checks, WebSockets, streams, long polls, and requests that need a thread."""

import io
import re
import time
from collections.abc import Mapping, Sequence

from orchestrator.http.asgi.body_limit import (
    BODY_FILE,
    Application,
    ClientDisconnected,
    Message,
    Receive,
    Send,
    read_body,
    replay,
    with_content_length,
)
from orchestrator.http.asgi.long_poll import poll_terms
from orchestrator.http.asgi.responses import PATH_PARAMS, ROUTE, refuse_websocket, send_json, send_refusal
from orchestrator.http.asgi.upload_body import UPLOAD, Uploads
from orchestrator.http.errors.problems import ApiError
from orchestrator.http.observability import metrics
from orchestrator.http.observability.health import Readiness, liveness_document, readiness_document
from orchestrator.http.request_path import corrected_path

Route = tuple[re.Pattern[str], str, Application]  # the path as a pattern and as a text, and what answers there

LIVENESS, READINESS = "/healthz", "/readyz"


class Router:
    """The ASGI application of the server.

    Attributes:
        requests: Application for requests that are answered at once, and for streams. The body is in the scope's
            `BODY_FILE`.
        long_polls: Application for requests that may wait. It receives the body as one message.
        websockets: Applications for WebSocket connections by path. Every other path is answered 404. A segment such as
            `{runner}` matches any text without a slash, which is in the scope's `path_params` under that name.
        uploads: Receivers of large bodies into files, one for each kind. The file is in the scope's `UPLOAD`.
        streams: Applications by path, as for `websockets`, that receive bodies and send responses by themselves.
    """

    def __init__(
        self,
        *,
        requests: Application,
        long_polls: Application,
        websockets: Mapping[str, Application] | None = None,
        uploads: Sequence[Uploads] = (),
        streams: Mapping[str, Application] | None = None,
    ) -> None:
        self.uploads = tuple(uploads)
        self.requests = requests
        self.long_polls = long_polls
        self.websockets = _routes(websockets or {})
        self.streams = _routes(streams or {})
        self.readiness = Readiness()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (path := corrected_path(scope["path"])) != scope["path"]:
            scope = {**scope, "path": path, "raw_path": scope["raw_path"][1:]}
        match scope["type"]:
            case "http" if _is_health_check(scope):
                await self._answer_health_check(scope, send)
            case "http" if (stream := _find_route(self.streams, scope)) is not None:
                application, scope = stream
                await application(scope, receive, send)
            case "http":
                await self._answer_request(scope, receive, send)
            case "websocket":
                await self._connect_websocket(scope, receive, send)
            case other:
                # An ASGI server continues without the lifespan protocol after this error.
                raise ValueError(f"HTTP and WebSocket only, not {other}.")

    async def _connect_websocket(self, scope: Message, receive: Receive, send: Send) -> None:
        if (found := _find_route(self.websockets, scope)) is None:
            await refuse_websocket(scope, receive, send)
            return
        application, scope = found
        await application(scope, receive, send)

    async def _answer_health_check(self, scope: Message, send: Send) -> None:
        """Answer without a thread of the requests, however many of those wait for one."""
        began = time.monotonic()
        if scope["path"] == LIVENESS:
            status, document = 200, liveness_document()
        else:
            status, document = readiness_document(await self.readiness.problems())
        await send_json(document, scope, send, status=status)
        metrics.count(scope["method"], scope["path"], status, time.monotonic() - began)

    async def _answer_request(self, scope: Message, receive: Receive, send: Send) -> None:
        refusal: ApiError | None = None
        for uploads in self.uploads:
            share = uploads.share_of(scope)
            if isinstance(share, str):
                await self._answer_upload(uploads, share, scope, receive, send)
                return
            refusal = refusal or share
        try:
            body = await read_body(scope, receive, upload_refusal=refusal)
        except ClientDisconnected:
            return
        except ApiError as refusal:
            # A client that waits for `100 Continue` has sent no body: the connection cannot be used again.
            await send_refusal(refusal, scope, send, close=any(name == b"expect" for name, _ in scope["headers"]))
            return
        try:
            scope = with_content_length(scope, body.size)
            if poll_terms(scope["method"], scope["path"]) is not None:
                await self.long_polls(scope, replay(body.file.read(), receive), send)
            else:
                await self.requests(scope | {BODY_FILE: body.file}, receive, send)
        finally:
            body.close()

    async def _answer_upload(self, uploads: Uploads, share: str, scope: Message, receive: Receive, send: Send) -> None:
        try:
            file = await uploads.receive(scope, receive, share)
        except ClientDisconnected:
            return
        except ApiError as refusal:
            await send_refusal(refusal, scope, send, close=True)
            return
        try:
            scope = with_content_length(scope, file.size)
            await self.requests(scope | {BODY_FILE: io.BytesIO(), UPLOAD: file}, receive, send)
        finally:
            await uploads.discard(file)


def _routes(applications: Mapping[str, Application]) -> list[Route]:
    return [(_pattern(path), path, application) for path, application in applications.items()]


def _find_route(routes: list[Route], scope: Message) -> tuple[Application, Message] | None:
    """Return the application of a path, and the scope with the parameters of the path; None without a route."""
    for pattern, path, application in routes:
        if found := pattern.fullmatch(scope["path"]):
            return application, {**scope, PATH_PARAMS: found.groupdict(), ROUTE: path}
    return None


def _pattern(path: str) -> re.Pattern[str]:
    """Return the expression that matches the paths of a route such as `/runners/{runner}/channel`."""
    literal, *rest = re.split(r"\{(\w+)\}", path)
    names, literals = rest[::2], rest[1::2]
    segments = [f"(?P<{name}>[^/]+){re.escape(text)}" for name, text in zip(names, literals, strict=True)]
    return re.compile(re.escape(literal) + "".join(segments))


def _is_health_check(scope: Message) -> bool:
    """Return whether the event loop answers. Django refuses other methods and query parameters."""
    is_read = scope["method"] in {"GET", "HEAD"} and not scope["query_string"]
    return is_read and scope["path"] in {LIVENESS, READINESS}
