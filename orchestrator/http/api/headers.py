"""Parses request headers: idempotency keys, versions, fences, worker sessions."""

import re
from typing import Any

from orchestrator.http.api.calls import AuthenticatedRequest
from orchestrator.http.errors.problems import ApiError
from orchestrator.services.idempotency import IdempotentRequest, fingerprint_of

LEASE_FENCE = "Lease-Fence"
FENCE_PATTERN = "[0-9]{1,18}"
KEY_PATTERN = "[ -~]{1,255}"
VERSION_PATTERN = '"[0-9]{1,9}"'
TAG_PATTERN = '"[!#-~]{1,80}"'
SESSION_PATTERN = "[0-7][0-9A-HJKMNP-TV-Za-hjkmnp-tv-z]{25}"


def idempotent_request(request: AuthenticatedRequest, operation: str, body: Any) -> IdempotentRequest | None:
    """Return the Idempotency-Key of the caller for this operation and body, or None without the header.

    Raises:
        ApiError: `invalid`.
    """
    key = request.headers.get("Idempotency-Key")
    if key is None:
        return None
    if not re.fullmatch(KEY_PATTERN, key):
        detail = "Idempotency-Key: must have 1 to 255 printable ASCII characters."
        raise ApiError(400, "invalid", detail, errors={"Idempotency-Key": [detail]})
    return IdempotentRequest(request.user.key, operation, key, fingerprint_of(body))


def if_match_version(request: AuthenticatedRequest) -> int:
    """Return the version in `If-Match`.

    Raises:
        ApiError: `precondition_required` without the header, `invalid` for a wrong value.
    """
    return int(_if_match(request, VERSION_PATTERN, '"3"'))


def if_match_tag(request: AuthenticatedRequest) -> str:
    """Return the entity tag in `If-Match`, of a resource whose version is a text.

    Raises:
        ApiError: `precondition_required` without the header, `invalid` for a wrong value.
    """
    return _if_match(request, TAG_PATTERN, '"17.3-18.1"')


def _if_match(request: AuthenticatedRequest, pattern: str, example: str) -> str:
    text = request.headers.get("If-Match")
    if text is None:
        raise ApiError(
            428,
            "precondition_required",
            "If-Match: this header is required. Send the ETag of the version that you read.",
        )
    if not re.fullmatch(pattern, text):
        detail = f"If-Match: must be one ETag as in a response, such as {example}."
        raise ApiError(400, "invalid", detail, errors={"If-Match": [detail]})
    return text.strip('"')


def lease_fence(request: AuthenticatedRequest) -> int | None:
    """Return the fence in the header `Lease-Fence`, or None without the header.

    Raises:
        ApiError: `invalid`.
    """
    text = request.headers.get(LEASE_FENCE)
    if text is None:
        return None
    if not re.fullmatch(FENCE_PATTERN, text):
        detail = (
            f"{LEASE_FENCE}: must be the `fence` in the response to the claim, a whole number of at most 18 digits."
        )
        raise ApiError(400, "invalid", detail, errors={LEASE_FENCE: [detail]})
    return int(text)


def worker_session(request: AuthenticatedRequest) -> str:
    """Return the ULID of the worker process in upper case, so that sessions sort by age, or an empty string.

    Raises:
        ApiError: `invalid`.
    """
    session = request.headers.get("Worker-Session")
    if session is None:
        return ""
    if not re.fullmatch(SESSION_PATTERN, session):
        detail = "Worker-Session: must be a ULID."
        raise ApiError(400, "invalid", detail, errors={"Worker-Session": [detail]})
    return session.upper()
