"""What is told of an answered request: a line of log, and its place in the metrics. Never its path or its body."""

import logging
import time
from dataclasses import dataclass

from django.http import HttpRequest

from orchestrator.http.observability import metrics
from orchestrator.http.observability.request_context import RequestContext, context_of
from orchestrator.http.observability.routes import route_of

log = logging.getLogger("orchestrator.access")

CLIENT_CLOSED_REQUEST = 499  # in the log only: the caller went away before it was answered
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


@dataclass(frozen=True)
class AccessLogEntry:
    """All but the end, which may come long after Django is done with the request."""

    arrival: RequestContext
    method: str
    route: str

    def tell(self, status: int) -> None:
        seconds = time.monotonic() - self.arrival.at
        metrics.count(self.method, self.route, status, seconds)
        log.info("%s %s %d %.0f ms %s", self.method, self.route, status, seconds * 1000, self.arrival.request_id)


def access_log_entry(request: HttpRequest) -> AccessLogEntry:
    method = request.method if request.method in METHODS else "OTHER"
    return AccessLogEntry(context_of(request), str(method), route_of(request))
