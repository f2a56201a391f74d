"""How one entry of a call for many is refused: as the call for one would have been."""

from typing import Any

from rest_framework.exceptions import ValidationError
from rest_framework.request import Request

from orchestrator.http.errors.problems import problem, to_api_error
from orchestrator.http.observability.request_context import context_of
from runtime_jobs.errors import RecordedError


def wrong(error: ValidationError, request: Request) -> RecordedError:
    """The same refusal as the core has them, to be kept beside its own."""
    found = to_api_error(error, request)
    return RecordedError(found.code, found.detail, found.members)


def refusal(error: Exception, request: Request) -> dict[str, Any]:
    """Status and problem document."""
    found = to_api_error(error, request)
    return {"status": found.status, "error": problem(found, context_of(request).request_id)}
