"""What a browser may do with an answer."""

from csp.constants import HEADER
from csp.middleware import CSPMiddleware
from django.http import HttpRequest
from django.http.response import HttpResponseBase

NOTHING = "default-src 'none'; frame-ancestors 'none'"


class ContentPolicy(CSPMiddleware):
    """Pages have the policy of the settings. Everything else is for programs: a browser that is made to show it may do
    nothing with it, and no policy is composed for each of their calls."""

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        if response.get("Content-Type", "").startswith("text/html"):
            return super().process_response(request, response)
        response.headers.setdefault(HEADER, NOTHING)
        return response
