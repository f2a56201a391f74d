"""Sets the Content-Security-Policy of responses and escapes control characters of pages."""

from csp.constants import HEADER
from csp.middleware import CSPMiddleware
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from runtime_jobs.control_characters import escape_controls_in_page

NOTHING = "default-src 'none'; frame-ancestors 'none'"


class ContentPolicyMiddleware(CSPMiddleware):
    """Gives pages the policy of the settings, and all other responses a policy that forbids everything.

    Other responses are for programs. Their policy is constant, so none is composed for each call.
    """

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        if response.get("Content-Type", "").startswith("text/html"):
            _escape(response)
            return super().process_response(request, response)
        response.headers.setdefault(HEADER, NOTHING)
        return response


def _escape(response: HttpResponseBase) -> None:
    """Escape control characters: tenants choose commands, paths and names. One place serves all templates."""
    if isinstance(response, HttpResponse) and response.charset.lower() == "utf-8":
        escaped = escape_controls_in_page(response.content)
        if escaped != response.content:
            response.content = escaped
