"""Which route a request took, for logs and metrics: `/v1/runtime/leases/<lease_id>/heartbeat`, never the path."""

import re
from functools import lru_cache

from django.contrib.admindocs.views import simplify_regex
from django.http import HttpRequest

UNMATCHED = "unmatched"
_CONVERTER = re.compile(r"<\w+:")


def route_of(request: HttpRequest) -> str:
    """One of the server's routes, or `unmatched`: a finite set, whatever callers ask for."""
    match = request.resolver_match
    return UNMATCHED if match is None else _template(match.route)


@lru_cache(maxsize=1024)
def _template(route: str) -> str:
    return _CONVERTER.sub("<", str(simplify_regex(route)))
