"""One log line and one metric for each answered request, by its route. Paths and bodies are never logged."""

import logging
import time
from dataclasses import dataclass

from django.http import HttpRequest

from orchestrator.http.observability import metrics
from orchestrator.http.observability.request_context import RequestContext, context_of
from orchestrator.http.observability.routes import route_of

log = logging.getLogger("orchestrator.access")

CLIENT_CLOSED_REQUEST = 499  # in the log only: the client disconnected before the response
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
STATIC_PREFIX = "/static/"
PROBES = frozenset({"healthz", "readyz"})
FIRST_ERROR_STATUS = 400


@dataclass(frozen=True)
class AccessLogEntry:
    """The part of a log line that is known before the response, which a long poll gets much later.

    Attributes:
        context: Identifiers and arrival time of the request.
        method: HTTP method, or `OTHER`.
        route: Route of the URL configuration, or `unmatched`.
        is_routine: Successful responses are logged at DEBUG only: static files and health checks.
    """

    context: RequestContext
    method: str
    route: str
    is_routine: bool = False

    def record(self, status: int, *, is_routine: bool = False) -> None:
        """Count the response and write its log line.

        Args:
            status: HTTP status, or CLIENT_CLOSED_REQUEST.
            is_routine: This response is expected all the time, such as that of a long poll without work. It is logged
                at DEBUG if it is no error.
        """
        seconds = time.monotonic() - self.context.arrived_at
        metrics.count(self.method, self.route, status, seconds)
        is_quiet = (is_routine or self.is_routine) and status < FIRST_ERROR_STATUS
        level = logging.DEBUG if is_quiet else logging.INFO
        milliseconds = seconds * 1000
        log.log(level, "%s %s %d %.0f ms %s", self.method, self.route, status, milliseconds, self.context.request_id)


def access_log_entry(request: HttpRequest) -> AccessLogEntry:
    """Return the entry of a request whose URL has been resolved, or that was answered before that."""
    method = request.method if request.method in METHODS else "OTHER"
    route = route_of(request)
    is_routine = request.path.startswith(STATIC_PREFIX) or route.strip("/") in PROBES
    return AccessLogEntry(context_of(request), str(method), route, is_routine)
