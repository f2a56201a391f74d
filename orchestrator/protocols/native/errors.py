"""Errors of single entries in batch calls: each has the status and the problem document of the single call."""

from typing import Any

from rest_framework.exceptions import ValidationError

from orchestrator.http.errors.problems import problem, to_api_error
from runtime_jobs.errors import RecordedError


def to_recorded_error(error: ValidationError, request_id: str) -> RecordedError:
    """Convert a validation error to the form in which the services store the error of one entry."""
    api_error = to_api_error(error, request_id)
    return RecordedError(api_error.code, api_error.detail, api_error.members)


def error_result(error: Exception, request_id: str) -> dict[str, Any]:
    """Return the result of a failed entry: `status` and the problem document as `error`."""
    api_error = to_api_error(error, request_id)
    return {"status": api_error.status, "error": problem(api_error, request_id)}
