"""Errors of single entries in batch calls: each has the status and the problem document of the single call."""

from typing import Any

from rest_framework.exceptions import ValidationError
from rest_framework.request import Request

from orchestrator.http.errors.problems import problem, to_api_error
from orchestrator.http.observability.request_context import context_of
from runtime_jobs.errors import RecordedError


def to_recorded_error(error: ValidationError, request: Request) -> RecordedError:
    """Convert a validation error to the form in which the services store the error of one entry."""
    api_error = to_api_error(error, request)
    return RecordedError(api_error.code, api_error.detail, api_error.members)


def error_result(error: Exception, request: Request) -> dict[str, Any]:
    """Return the result of a failed entry: `status` and the problem document as `error`."""
    api_error = to_api_error(error, request)
    return {"status": api_error.status, "error": problem(api_error, context_of(request).request_id)}
