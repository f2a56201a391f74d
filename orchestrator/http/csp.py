"""What a browser may do with an answer."""

from csp.constants import HEADER
from csp.middleware import CSPMiddleware
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from runtime_jobs.control_characters import escape_controls_in_page

NOTHING = "default-src 'none'; frame-ancestors 'none'"


class ContentPolicyMiddleware(CSPMiddleware):
    """Pages have the policy of the settings. Everything else is for programs: a browser that is made to show it may do
    nothing with it, and no policy is composed for each of their calls."""

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        if response.get("Content-Type", "").startswith("text/html"):
            _escape(response)
            return super().process_response(request, response)
        response.headers.setdefault(HEADER, NOTHING)
        return response


def _escape(response: HttpResponseBase) -> None:
    """Commands, paths and names in a page are a tenant's. In one place, so that no template can forget it."""
    if isinstance(response, HttpResponse) and response.charset.lower() == "utf-8":
        escaped = escape_controls_in_page(response.content)
        if escaped != response.content:
            response.content = escaped
