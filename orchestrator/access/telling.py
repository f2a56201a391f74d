"""What is told of an answered request: a line of log, and its place in the metrics. Never its path or its body."""

import logging
import time
from dataclasses import dataclass

from django.http import HttpRequest

from orchestrator.access import metrics
from orchestrator.access.arrivals import Arrival, arrival_of
from orchestrator.access.routes import route_of

log = logging.getLogger("orchestrator.access")

GONE = 499  # in the log only: the caller went away before it was answered
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


@dataclass(frozen=True)
class Line:
    """All but the end, which may come long after Django is done with the request."""

    arrival: Arrival
    method: str
    route: str

    def tell(self, status: int) -> None:
        seconds = time.monotonic() - self.arrival.at
        metrics.count(self.method, self.route, status, seconds)
        log.info("%s %s %d %.0f ms %s", self.method, self.route, status, seconds * 1000, self.arrival.request_id)


def line_of(request: HttpRequest) -> Line:
    method = request.method if request.method in METHODS else "OTHER"
    return Line(arrival_of(request), str(method), route_of(request))
