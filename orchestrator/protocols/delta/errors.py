"""Errors in the envelope of document 001: `{"error": {"code", "message", "details"}}`.

`details.code` is the code that the native API has for the same error.
"""

from typing import Any

from django.http import HttpRequest
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from leases.errors import StaleLease
from orchestrator.http.errors import problems
from orchestrator.http.errors.problems import ApiError
from orchestrator.http.observability.request_context import context_of
from orchestrator.protocols.delta.runners import wire
from orchestrator.protocols.delta.states import error_category
from runtime_jobs.errors import Conflict
from runtime_jobs.states import FINAL_STATES, STATUS, STATUS_WITHOUT_INGEST

_FINAL_STATUSES = {
    statuses[state] for statuses in (STATUS, STATUS_WITHOUT_INGEST) for state in FINAL_STATES if state in statuses
}


class DeltaErrorResponse(Response):
    """A JSON response, whatever `Accept` says."""

    @property
    def rendered_content(self) -> str:
        self["Content-Type"] = "application/json"
        return str(JSONRenderer().render(self.data), "utf-8")


def exception_handler(error: Exception, context: dict[str, Any]) -> Response:
    """Return the response to an exception of a view of this protocol."""
    lease_id = getattr(context["view"], "lease_id", "")
    if isinstance(error, Conflict):  # the runner has ended the job earlier, with another message
        status = error.facts.get("job_status")
        error = StaleLease("lease_ended", status if status in _FINAL_STATUSES else None)
    if isinstance(error, StaleLease):
        extra_fields = getattr(context["view"], "stale_extra", {})
        body = wire.stale_lease(lease_id, error.facts["reason"], error.facts) | extra_fields
        return DeltaErrorResponse(body, status=409)
    request = context["request"]
    return error_response(problems.to_api_error(error, context_of(request).request_id), request)


def error_response(error: ApiError, request: HttpRequest | Request) -> Response:
    """Return the response to an error, also to one outside the views (`settings.ERROR_DIALECTS`)."""
    details = {"code": error.code, "request_id": context_of(request).request_id, **error.members}
    body = {"error": {"code": error_category(error.status), "message": error.detail, "details": details}}
    return DeltaErrorResponse(body, status=error.status, headers=error.headers)
