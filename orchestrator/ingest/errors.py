"""Refusals of ingest: problem documents like everywhere, which also have the `error` member that its clients know."""

from typing import Any

from rest_framework.exceptions import ValidationError
from rest_framework.response import Response

from orchestrator.http.errors.problems import ApiError, map_exception
from runtime_jobs.errors import Invalid

# The words of ingest's own contract, where they differ from the API's.
_CODES = {
    "not_found": "unknown_org_or_project",
    "wrong_principal": "forbidden",
    "worker_mismatch": "forbidden",
    "insufficient_scope": "forbidden",
}


def unprocessable(error: Exception) -> Exception:
    """What ingest answers 422 where other endpoints say 400: a body that is JSON, but no run."""
    if not isinstance(error, ValidationError | Invalid):
        return error
    refusal = map_exception(error)
    errors = refusal.members.get("errors", {}) if refusal else {}
    return ApiError(422, "validation_failed", "This is not a valid run.", errors=errors)


def with_error(response: Response) -> Response:
    """Add `error: {code, message, fields}` to a problem document."""
    document: dict[str, Any] = response.data
    code = document.get("code", "internal_error")
    document["error"] = {
        "code": _CODES.get(code, code),
        "message": document.get("detail", ""),
        "fields": document.get("errors", {}),
    }
    return response
