"""Answers the frequent calls of workers and clients without Django's middleware, URL resolver and DRF's dispatch.

`FastPath.match` decides from the request line and the headers alone whether a request takes this path. Every other
request takes Django's path, and nothing has been executed or counted by then. After a match this module owns the
request: it authenticates, checks the permission, parses, runs the same function as the view, and writes the same
headers, problem documents, log line and metric. `tests/orchestrator/http/test_fast_path.py` compares both paths.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import IO, Any, NamedTuple, TypeVar

from csp.constants import HEADER as CSP_HEADER
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.http.request import split_domain_port, validate_host
from django.http.response import HttpResponseBase
from django.utils.module_loading import import_string
from rest_framework.exceptions import AuthenticationFailed, PermissionDenied
from rest_framework.permissions import BasePermission
from rest_framework.renderers import JSONRenderer

from leases.errors import WorkerLocked
from orchestrator.core.db_scope import release_connections
from orchestrator.core.principal_cache import Principal
from orchestrator.http.api.calls import ApiAnswer, ApiCall, CombinedCall, Headers, IdentifiedTokens
from orchestrator.http.api.json_parser import loads
from orchestrator.http.asgi.body_limit import body_limit
from orchestrator.http.asgi.long_poll import NO_WORK, PollAttempt
from orchestrator.http.auth.authentication import CHALLENGE, authenticate_bearers
from orchestrator.http.client_ip import last_entry, network_of, parse_address
from orchestrator.http.errors.problems import MEDIA_TYPE, problem, to_api_error
from orchestrator.http.observability.access_log import CLIENT_CLOSED_REQUEST, AccessLogEntry
from orchestrator.http.observability.request_context import RequestContext, new_context
from runtime_jobs.identifiers import is_id

log = logging.getLogger(__name__)

H = TypeVar("H", bound=Headers)

# The parameters in paths of these calls, and whether a text is one. Django refuses all other texts.
_PARAMETERS: dict[str, Callable[[str], bool]] = {
    "<lease_id>": lambda text: is_id(text, "rtl"),
    "<job_id>": lambda text: text.isascii() and text.isdecimal(),
}
_JSON_TYPES = frozenset({"application/json", "application/json; charset=utf-8"})
_ACCEPTED = frozenset({None, "*/*", "application/json", "application/json, */*", "application/json, text/plain, */*"})


def _problem_document(error: Exception, request_id: str) -> ApiAnswer:
    refusal = to_api_error(error, request_id)
    return ApiAnswer(problem(refusal, request_id), refusal.status, refusal.headers)


@dataclass(frozen=True)
class DocumentFormat:
    """The form of a protocol's documents.

    Attributes:
        render: Returns the bytes of a document.
        answer_to: Returns the answer to an exception; its second argument is the id of the request.
        media_type: The header `Content-Type` of an accepted call.
        error_type: The header `Content-Type` of a refusal.
    """

    render: Callable[[Any], bytes] = JSONRenderer().render
    answer_to: Callable[[Exception, str], ApiAnswer] = _problem_document
    media_type: str = "application/json"
    error_type: str = MEDIA_TYPE


@dataclass(frozen=True)
class FastRoute:
    """One call that may take this path.

    Attributes:
        path: Its route as in logs and metrics; `<lease_id>` or `<job_id>` may be its second segment from the end.
        function: The function that the view runs. Calls of a `CombinedCall` are executed in groups.
        permission: The permission of the view. None if the function verifies the credentials and parses the body: then
            the call has no user, and the body is the second argument.
        allow: The header `Allow` of the view.
        arguments: Arguments of the function after the others.
        is_long_poll: Whether 204 is routine and not logged.
        format: The form of its documents.
    """

    path: str
    function: Callable[..., ApiAnswer]
    permission: BasePermission | None
    allow: str = "POST"
    arguments: tuple[Any, ...] = ()
    is_long_poll: bool = False
    format: DocumentFormat = DocumentFormat()


class PlainRequest(NamedTuple):
    """A request that takes this path; its caller is not authenticated yet.

    Attributes:
        route: The call.
        arguments: Arguments of its function after the call.
        headers: The request headers.
        address: The client's address, or None where it is not known.
        is_secure: It came over HTTPS.
        size: The number of bytes in the body.
    """

    route: FastRoute
    arguments: tuple[Any, ...]
    headers: Headers
    address: str | None
    is_secure: bool
    size: int


class FastResponse(NamedTuple):
    """A complete response, and the caller if it was authenticated: a principal, or a client by its next tokens."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    caller: Principal | None = None
    identified: IdentifiedTokens | None = None


class FastPath:
    """The calls of a table, and the headers that Django's middleware would add to their responses."""

    def __init__(self, routes: Iterable[FastRoute]) -> None:
        self.routes = tuple(routes)
        self._exact: dict[str, FastRoute] = {}
        # By what precedes the parameter and what follows it. The second value is of `_PARAMETERS`.
        self._with_parameter: dict[tuple[str, str], tuple[FastRoute, Callable[[str], bool]]] = {}
        for route in self.routes:
            before, parameter, after = route.path.rsplit("/", 2)
            if parameter in _PARAMETERS:
                self._with_parameter[before, after] = route, _PARAMETERS[parameter]
            else:
                self._exact[route.path] = route
        # Of requests that did not come over HTTPS, and of those that did.
        self._common = [_headers_of_middleware(is_secure=is_secure) for is_secure in (False, True)]

    def match(self, path: str, headers: H, *, size: int, peer: str, scheme: str) -> PlainRequest | None:
        """Return the request if it takes this path, else None: then Django answers it.

        Args:
            path: The path of a POST without query string, decoded.
            headers: The request headers.
            size: The number of bytes in the body.
            peer: The address of the connection's other end.
            scheme: `http` or `https`, as the server received the request.
        """
        found = self._find(path)
        if found is None or size > body_limit("POST", path) or not _is_plain(headers, size):
            return None
        is_secure = _is_secure(headers, scheme)
        if settings.SECURE_SSL_REDIRECT and not is_secure:
            return None
        route, arguments = found
        if settings.BEHIND_PROXY:
            forwarded = headers.get(settings.CLIENT_ADDRESS_HEADER)
            peer = peer if forwarded is None else last_entry(forwarded)
        return PlainRequest(route, arguments, headers, parse_address(peer), is_secure, size)

    def _find(self, path: str) -> tuple[FastRoute, tuple[Any, ...]] | None:
        route = self._exact.get(path)
        if route is not None:
            return route, route.arguments
        before, _, after = path.rpartition("/")
        before, _, parameter = before.rpartition("/")
        found = self._with_parameter.get((before, after))
        if found is None or not found[1](parameter):
            return None
        return found[0], (parameter, *found[0].arguments)

    def answer(self, calls: Sequence["FastCall"], *, in_group: bool = False) -> list[FastResponse | None]:
        """Execute calls of one route, as one operation if it is combined, and return their responses.

        The thread's database connection is released. A client that disconnected before gets no response.

        Args:
            calls: The calls.
            in_group: Execute no call that does not fit into a group (`CombinedCall.fits`). Its `is_left_out` is set,
                and it has no response yet.
        """
        connected = [call for call in calls if not call.is_disconnected()]
        try:
            if connected:
                _execute(connected[0].request.route, connected, in_group=in_group)
            responses = {id(call): self._safe_response(call) for call in connected if not call.is_left_out}
        finally:
            release_connections()
        return [responses.get(id(call)) for call in calls]

    def _safe_response(self, call: "FastCall") -> FastResponse:
        """Return the response, or an empty 500: the other calls of a group were executed, and must be answered."""
        try:
            return self._response(call)
        except Exception:
            log.exception("no response to %s", call.context.request_id)
            headers = [*self._common[call.request.is_secure], ("Content-Length", "0")]
            return FastResponse(500, headers, b"", call.caller)

    def _response(self, call: "FastCall") -> FastResponse:
        """Return the response to an executed call, and write its line of the log."""
        route, request_id, attempt = call.request.route, call.context.request_id, call.attempt
        media_type, result = route.format.media_type, call.result
        try:
            if not isinstance(result, ApiAnswer):
                raise result or RuntimeError("The call was not executed.")  # noqa: TRY301 each exception has a response
            answer = result
            if attempt and call.caller and answer.status == NO_WORK:
                attempt.mark_empty(call.caller, route.path)
            content = route.format.render(answer.data) if answer.data is not None else b""
        except Exception as error:  # noqa: BLE001 likewise
            answer = route.format.answer_to(error, request_id)
            content, media_type = route.format.render(answer.data), route.format.error_type
        entry = attempt.entry if attempt and attempt.entry else AccessLogEntry(call.context, "POST", route.path)
        if not (attempt and attempt.should_keep_waiting(entry, answer.status)):
            is_routine = route.is_long_poll and answer.status == NO_WORK
            entry.record(CLIENT_CLOSED_REQUEST if call.is_disconnected() else answer.status, is_routine=is_routine)
        headers = [*self._common[call.request.is_secure], *answer.headers.items()]
        headers += [("Allow", route.allow), ("Content-Length", str(len(content))), ("X-Request-Id", request_id)]
        if content:
            headers.append(("Content-Type", media_type))
        return FastResponse(answer.status, headers, content, call.caller, answer.identified)


class FastCall:
    """A request while this path answers it.

    Attributes:
        request: The result of `match`.
        body: The body, which may be in a file. It is read when the call is executed, not while it waits.
        attempt: The state of the long poll, if the call is an attempt of one.
        is_disconnected: Returns whether the client has disconnected.
        context: Identifiers of the request.
        caller: Whom the request has authenticated, or None.
        result: The answer or the error. None until the call was executed.
        is_left_out: The call does not fit into its group, or its worker was locked. It was not executed.
    """

    __slots__ = ("attempt", "body", "caller", "context", "is_disconnected", "is_left_out", "request", "result")

    def __init__(
        self,
        request: PlainRequest,
        body: IO[bytes],
        *,
        attempt: PollAttempt | None = None,
        is_disconnected: Callable[[], bool] = lambda: False,
    ) -> None:
        self.request, self.body, self.attempt, self.is_disconnected = request, body, attempt, is_disconnected
        entry = attempt.entry if attempt else None
        self.context = entry.context if entry else _new_context(request.headers)
        self.caller: Principal | None = None
        self.result: ApiAnswer | Exception | None = None
        self.is_left_out = False


def _execute(route: FastRoute, calls: list[FastCall], *, in_group: bool) -> None:
    """Set the result of each call, or that it is left out."""
    if route.permission is not None:
        _authenticate(calls)
    entries: list[tuple[FastCall, Any]] = []
    for call in calls:
        if call.result is not None:
            continue
        try:
            _begin(route, call, entries)
        except Exception as error:  # noqa: BLE001 it has a response
            call.result = error
    if isinstance(route.function, CombinedCall):
        _run_combined(route.function, entries, in_group=in_group)


def _begin(route: FastRoute, call: FastCall, entries: list[tuple[FastCall, Any]]) -> None:
    """Execute the call, or read it and add it to the entries of its group."""
    body = call.body.read()
    api_call = ApiCall(call.caller, call.request.headers, call.context, call.request.address, {})
    if route.permission is None:
        call.result = route.function(api_call, body, *call.request.arguments)
        return
    _require_permission(route.permission, api_call)
    if body:
        api_call.body = loads(body)
    if isinstance(route.function, CombinedCall):
        entries.append((call, route.function.read(api_call, *call.request.arguments)))
    else:
        call.result = route.function(api_call, *call.request.arguments)


def _run_combined(function: CombinedCall[Any, Any], entries: list[tuple[FastCall, Any]], *, in_group: bool) -> None:
    if in_group:
        for (call, _), fits in zip(entries, function.fits([entry for _, entry in entries]), strict=True):
            call.is_left_out = not fits
        entries = [(call, entry) for call, entry in entries if not call.is_left_out]
    for (call, _), result in zip(entries, function.run_each([entry for _, entry in entries]), strict=True):
        call.result = result
        call.is_left_out = in_group and isinstance(result, WorkerLocked)


def _authenticate(calls: list[FastCall]) -> None:
    """Set the caller of each call, or its refusal as the result."""
    try:
        found: Sequence[Principal | Exception] = authenticate_bearers(
            [(call.request.headers.get("Authorization") or "", network_of(call.request.address)) for call in calls]
        )
    except Exception as error:  # noqa: BLE001 it has a response
        found = [error] * len(calls)
    for call, result in zip(calls, found, strict=True):
        if isinstance(result, Exception):
            if isinstance(result, AuthenticationFailed):
                result.auth_header = CHALLENGE  # type: ignore[attr-defined] # DRF's views set it
            call.result = result
        else:
            call.caller = result


def _require_permission(permission: BasePermission, call: ApiCall) -> None:
    if not permission.has_permission(call, None):  # type: ignore[arg-type] # most raise an error of their own instead
        raise PermissionDenied(getattr(permission, "message", None), getattr(permission, "code", None))


def _new_context(headers: Headers) -> RequestContext:
    return new_context(headers.get("X-Request-Id"), headers.get("traceparent"))


def _is_plain(headers: Headers, size: int) -> bool:
    """Return whether no header needs Django: cookies, other media types or encodings, unknown hosts, odd lengths."""
    media_type, length = headers.get("Content-Type"), headers.get("Content-Length")
    return (
        (headers.get("Authorization") or "").startswith("Bearer ")
        and (media_type in _JSON_TYPES or (not media_type and size == 0))
        and (length == str(size) or (not length and size == 0))
        and headers.get("Accept") in _ACCEPTED
        and headers.get("Cookie") is None
        and headers.get("Content-Encoding") is None
        and headers.get("Transfer-Encoding") is None
        and _is_allowed_host(headers.get("Host"))
    )


def _is_allowed_host(host: str | None) -> bool:
    return bool(host) and not settings.USE_X_FORWARDED_HOST and _is_name_of_server(host, tuple(settings.ALLOWED_HOSTS))


@lru_cache(maxsize=1024)
def _is_name_of_server(host: str | None, allowed: tuple[str, ...]) -> bool:
    domain, _ = split_domain_port(host or "")
    return bool(domain) and validate_host(domain, allowed)


def _is_secure(headers: Headers, scheme: str) -> bool:
    """Return what `HttpRequest.is_secure` returns."""
    if settings.SECURE_PROXY_SSL_HEADER:
        key, secure = settings.SECURE_PROXY_SSL_HEADER
        forwarded = headers.get(key.removeprefix("HTTP_").replace("_", "-"))
        if forwarded is not None:
            return forwarded.split(",", 1)[0].strip() == secure
    return scheme == "https"


class _AnyRequest(HttpRequest):
    """A request to this server, of which the middleware sees the scheme only."""

    def __init__(self, scheme: str) -> None:
        super().__init__()
        self.method, self.path, self.path_info, self._scheme = "POST", "/", "/", scheme

    def get_host(self) -> str:
        return "localhost"

    def _get_scheme(self) -> str:
        return self._scheme


def _headers_of_middleware(*, is_secure: bool) -> list[tuple[str, str]]:
    """Return the headers that the middleware adds to every response of the API.

    They are those of one response. The first middleware is left out: it logs and counts the request, and the one header
    of it that is the same for all calls is that about caches.
    """
    answer: Callable[[HttpRequest], HttpResponseBase] = lambda _: HttpResponse(content_type="application/json")  # noqa: E731
    for path in reversed(settings.MIDDLEWARE[1:]):
        answer = import_string(path)(answer)
    found = answer(_AnyRequest("https" if is_secure else "http")).headers.items()
    headers = [(name, value) for name, value in found if not name.startswith("Content-") or name == CSP_HEADER]
    return [*headers, ("Cache-Control", "no-store")]
