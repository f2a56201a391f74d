"""Answers the frequent calls of workers and clients without Django's middleware, URL resolver and DRF's dispatch.

`FastPath.match` decides from the request line and the headers alone whether a request takes this path. Every other
request takes Django's path, and nothing has been executed or counted by then. After a match this module owns the
request: it authenticates, checks the permission, parses, runs the same function as the view, and writes the same
headers, problem documents, log line and metric. `tests/orchestrator/http/test_fast_path.py` compares both paths.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from django.conf import settings
from django.http.request import split_domain_port, validate_host
from rest_framework.exceptions import AuthenticationFailed, PermissionDenied
from rest_framework.permissions import BasePermission
from rest_framework.renderers import JSONRenderer

from orchestrator.http.api.calls import ApiAnswer, ApiCall, Headers
from orchestrator.http.api.json_parser import loads
from orchestrator.http.asgi.body_limit import body_limit
from orchestrator.http.asgi.long_poll import NO_WORK, PollAttempt
from orchestrator.http.auth.authentication import CHALLENGE, authenticate_bearer
from orchestrator.http.auth.principal_cache import Principal
from orchestrator.http.client_ip import last_entry, network_of, parse_address
from orchestrator.http.csp import NOTHING
from orchestrator.http.db_scope import release_connections
from orchestrator.http.errors.problems import MEDIA_TYPE, problem, to_api_error
from orchestrator.http.observability.access_log import CLIENT_CLOSED_REQUEST, AccessLogEntry
from orchestrator.http.observability.request_context import RequestContext, new_context
from runtime_jobs.identifiers import is_id

H = TypeVar("H", bound=Headers)

LEASE_ID = "<lease_id>"  # the only parameter in a path of these calls
_JSON_TYPES = frozenset({"application/json", "application/json; charset=utf-8"})
_ACCEPTED = frozenset({None, "*/*", "application/json", "application/json, */*", "application/json, text/plain, */*"})
_RENDERER = JSONRenderer()


@dataclass(frozen=True)
class FastRoute:
    """One call that may take this path.

    Attributes:
        path: Its route as in logs and metrics; `<lease_id>` may be its second segment from the end.
        function: The function that the view runs.
        permission: The permission of the view.
        allow: The header `Allow` of the view.
        arguments: Arguments of the function after the call and the lease id.
        is_long_poll: Whether 204 is routine and not logged.
    """

    path: str
    function: Callable[..., ApiAnswer]
    permission: BasePermission
    allow: str = "POST"
    arguments: tuple[Any, ...] = ()
    is_long_poll: bool = False


class PlainRequest(NamedTuple):
    """A request that takes this path; its caller is not authenticated yet.

    Attributes:
        route: The call.
        arguments: Arguments of its function after the call.
        headers: The request headers.
        address: The client's address, or None where it is not known.
        is_secure: It came over HTTPS.
    """

    route: FastRoute
    arguments: tuple[Any, ...]
    headers: Headers
    address: str | None
    is_secure: bool


class FastResponse(NamedTuple):
    """A complete response, and the caller if it was authenticated."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    caller: Principal | None


class FastPath:
    """The calls of a table, and the headers that Django's middleware would add to their responses."""

    def __init__(self, routes: Iterable[FastRoute]) -> None:
        self._exact: dict[str, FastRoute] = {}
        self._of_leases: dict[tuple[str, str], FastRoute] = {}  # by what precedes the lease id and what follows it
        for route in routes:
            if LEASE_ID in route.path:
                before, _, after = route.path.rsplit("/", 2)
                self._of_leases[before, after] = route
            else:
                self._exact[route.path] = route
        self._common = [
            ("Content-Security-Policy", NOTHING),
            ("X-Frame-Options", settings.X_FRAME_OPTIONS),
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", settings.SECURE_REFERRER_POLICY),
            ("Cross-Origin-Opener-Policy", settings.SECURE_CROSS_ORIGIN_OPENER_POLICY),
            ("Cache-Control", "no-store"),
        ]

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
        return PlainRequest(route, arguments, headers, parse_address(peer), is_secure)

    def _find(self, path: str) -> tuple[FastRoute, tuple[Any, ...]] | None:
        route = self._exact.get(path)
        if route is not None:
            return route, route.arguments
        before, _, after = path.rpartition("/")
        before, _, lease_id = before.rpartition("/")
        route = self._of_leases.get((before, after))
        if route is None or not is_id(lease_id, "rtl"):
            return None
        return route, (lease_id, *route.arguments)

    def answer(
        self,
        request: PlainRequest,
        body: bytes,
        *,
        attempt: PollAttempt | None = None,
        is_disconnected: Callable[[], bool] = lambda: False,
    ) -> FastResponse:
        """Execute the call, and return its response.

        The thread's database connection is released.

        Args:
            request: The result of `match`.
            body: The body.
            attempt: The state of the long poll, if the call is an attempt of one.
            is_disconnected: Returns whether the client has disconnected, for the log.
        """
        route = request.route
        context = attempt.entry.context if attempt and attempt.entry else _new_context(request.headers)
        media_type = "application/json"
        caller: Principal | None = None
        try:
            caller = _authenticate(request)
            answer = _execute(request, ApiCall(caller, request.headers, context, request.address, {}), body)
            if attempt and answer.status == NO_WORK:
                attempt.mark_empty(caller, route.path)
            content = _RENDERER.render(answer.data) if answer.data is not None else b""
        except Exception as error:  # noqa: BLE001 as DRF: every exception has a response
            refusal = to_api_error(error, context.request_id)
            answer = ApiAnswer(problem(refusal, context.request_id), refusal.status, refusal.headers)
            content, media_type = _RENDERER.render(answer.data), MEDIA_TYPE
        finally:
            release_connections()
        entry = attempt.entry if attempt and attempt.entry else AccessLogEntry(context, "POST", route.path)
        if not (attempt and attempt.should_keep_waiting(entry, answer.status)):
            is_routine = route.is_long_poll and answer.status == NO_WORK
            entry.record(CLIENT_CLOSED_REQUEST if is_disconnected() else answer.status, is_routine=is_routine)
        headers = [*self._common, *answer.headers.items()]
        headers += [("Allow", route.allow), ("Content-Length", str(len(content))), ("X-Request-Id", context.request_id)]
        if content:
            headers.append(("Content-Type", media_type))
        if request.is_secure and settings.SECURE_HSTS_SECONDS:
            headers.append(("Strict-Transport-Security", _hsts()))
        return FastResponse(answer.status, headers, content, caller)


def _authenticate(request: PlainRequest) -> Principal:
    try:
        return authenticate_bearer(request.headers.get("Authorization") or "", network=network_of(request.address))
    except AuthenticationFailed as refusal:
        refusal.auth_header = CHALLENGE  # type: ignore[attr-defined] # DRF's views set it
        raise


def _execute(request: PlainRequest, call: ApiCall, body: bytes) -> ApiAnswer:
    permission = request.route.permission
    if not permission.has_permission(call, None):  # type: ignore[arg-type] # most raise an error of their own instead
        raise PermissionDenied(getattr(permission, "message", None), getattr(permission, "code", None))
    if body:
        call.body = loads(body)
    return request.route.function(call, *request.arguments)


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


def _hsts() -> str:
    parts = [f"max-age={settings.SECURE_HSTS_SECONDS}"]
    if settings.SECURE_HSTS_INCLUDE_SUBDOMAINS:
        parts.append("includeSubDomains")
    if settings.SECURE_HSTS_PRELOAD:
        parts.append("preload")
    return "; ".join(parts)
