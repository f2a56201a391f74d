"""The route of a request for logs and metrics, such as `/v1/runtime/leases/<lease_id>/heartbeat`."""

import re
from functools import lru_cache

from django.contrib.admindocs.views import simplify_regex
from django.http import HttpRequest

UNMATCHED = "unmatched"
_CONVERTER = re.compile(r"<\w+:")


def route_of(request: HttpRequest) -> str:
    """Return the route that matched, or `unmatched`: a finite set of values, whatever clients request."""
    match = request.resolver_match
    return UNMATCHED if match is None else _template(match.route)


@lru_cache(maxsize=1024)
def _template(route: str) -> str:
    return _CONVERTER.sub("<", str(simplify_regex(route)))
