"""Errors as document 001 writes them: `{"error": {"code", "message", "details"}}`. Ours stands in `details.code`."""

from typing import Any

from django.http import HttpRequest
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from leases.errors import StaleLease
from orchestrator.http.errors import problems
from orchestrator.http.errors.problems import ApiError
from orchestrator.http.observability.request_context import context_of
from orchestrator.protocols.delta import wire
from orchestrator.protocols.delta.states import category
from runtime_jobs.errors import Conflict
from runtime_jobs.states import FINAL_STATES, STATUS, STATUS_WITHOUT_INGEST

_ENDED = {words[state] for words in (STATUS, STATUS_WITHOUT_INGEST) for state in FINAL_STATES if state in words}


class Envelope(Response):
    """JSON, whatever was asked for."""

    @property
    def rendered_content(self) -> str:
        self["Content-Type"] = "application/json"
        return str(JSONRenderer().render(self.data), "utf-8")


def answer(error: Exception, context: dict[str, Any]) -> Response:
    """For the views of this door: its exception handler."""
    lease_id = getattr(context["view"], "lease_id", "")
    if isinstance(error, Conflict):  # its runner has ended it already, in other words
        status = error.facts.get("job_status")
        error = StaleLease("lease_ended", status if status in _ENDED else None)
    if isinstance(error, StaleLease):
        more = getattr(context["view"], "stale_too", {})
        return Envelope(wire.stale(lease_id, error.facts["reason"], error.facts) | more, status=409)
    return outside(problems.to_api_error(error, context["request"]), context["request"])


def outside(refusal: ApiError, request: HttpRequest | Request) -> Response:
    """For refusals that no view has made: see settings.ERROR_DIALECTS."""
    details = {"code": refusal.code, "request_id": context_of(request).request_id, **refusal.members}
    error = {"code": category(refusal.status), "message": refusal.detail, "details": details}
    return Envelope({"error": error}, status=refusal.status, headers=refusal.headers)
