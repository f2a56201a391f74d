"""Errors of this API: problem documents in the words of document 004, with job ids as UUIDs."""

import re
from typing import Any, Final

from rest_framework.response import Response

from orchestrator.http.errors import problems
from orchestrator.http.errors.problems import ApiError, to_api_error
from orchestrator.http.observability.request_context import context_of
from runtime_jobs.identifiers import ULID_PATTERN, uuid_of
from runtime_jobs.orchestration_status import OrchestrationStatus

# Names of fields and parameters in the errors of the services, and their names here.
FIELDS: Final[dict[str, str]] = {
    "depends_on": "dependencies",
    "timeout_seconds": "timeoutSeconds",
    "project_slug": "project",
    "org_slug": "tenant",
}
# Statuses of the native API in the errors of the services.
STATUSES: Final[dict[str, str]] = {
    "uploaded": OrchestrationStatus.COMPLETED,
    "succeeded": OrchestrationStatus.COMPLETED,
}
_JOB_ID = re.compile(rf"rtj_{ULID_PATTERN}")
_FIELD = re.compile("|".join(rf"\b{name}\b" for name in FIELDS))


def exception_handler(error: Exception, context: dict[str, Any]) -> Response:
    """Return the response to an exception in a view of this API."""
    refusal = to_api_error(error, context_of(context["request"]).request_id)
    return problems.exception_handler(translated(refusal), context)


def translated(refusal: ApiError) -> ApiError:
    """Return an error with the names, statuses and ids of document 004."""
    members = {name: _member(name, value) for name, value in refusal.members.items()}
    return ApiError(refusal.status, refusal.code, _text(refusal.detail), headers=refusal.headers, **members)


def _member(name: str, value: Any) -> Any:
    if name == "job_status":
        return STATUSES.get(value, value)
    if isinstance(value, str):
        return _text(value)
    if name == "errors":
        return {FIELDS.get(field, field): _texts(texts) for field, texts in value.items()}
    return value


def _texts(texts: Any) -> Any:
    return [_text(text) for text in texts] if isinstance(texts, list) else texts


def _text(text: str) -> str:
    with_uuids = _JOB_ID.sub(lambda found: str(uuid_of(found[0])), str(text))
    return _FIELD.sub(lambda found: FIELDS[found[0]], with_uuids)
