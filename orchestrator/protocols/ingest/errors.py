"""Errors of ingest: problem documents with an additional member `error`, which clients of ingest expect."""

from typing import Any

from rest_framework.exceptions import ValidationError
from rest_framework.response import Response

from orchestrator.http.errors.problems import ApiError, map_exception
from runtime_jobs.errors import Invalid

# Codes of the ingest contract, where they differ from the codes of the API.
_CODES = {
    "not_found": "unknown_org_or_project",
    "wrong_principal": "forbidden",
    "worker_mismatch": "forbidden",
    "insufficient_scope": "forbidden",
}


def unprocessable(error: Exception) -> Exception:
    """Turn a validation error into status 422. Other endpoints answer 400; ingest answers 400 to invalid JSON only."""
    if not isinstance(error, ValidationError | Invalid):
        return error
    refusal = map_exception(error)
    errors = refusal.members.get("errors", {}) if refusal else {}
    return ApiError(422, "validation_failed", "The body is not a valid run.v1 document; see `errors`.", errors=errors)


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
