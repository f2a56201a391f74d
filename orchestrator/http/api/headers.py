"""Parses request headers: idempotency keys, versions, fences, worker sessions."""

import re
from collections.abc import Container
from typing import Any

from orchestrator.core.idempotency import IdempotentRequest, fingerprint_of
from orchestrator.http.api.calls import AuthenticatedRequest
from orchestrator.http.errors.problems import ApiError

LEASE_FENCE = "Lease-Fence"
FENCE_PATTERN = "[0-9]{1,18}"
KEY_PATTERN = "[ -~]{1,255}"
_ETAG = r'(?:W/)?"[!#-~]*"'
IF_MATCH_PATTERN = rf"[ \t]*\*[ \t]*|[ \t,]*{_ETAG}(?:[ \t]*,[ \t,]*{_ETAG})*[ \t,]*"
_ENTITY_TAG = re.compile(r'(W/)?"([!#-~]*)"')
_VERSION = re.compile(r"0|[1-9][0-9]{0,8}")
_EXISTING = range(1, 10**9)  # versions
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


def if_match_versions(request: AuthenticatedRequest) -> Container[int]:
    """Return the versions in `If-Match`; all that a resource can have for `*`.

    Raises:
        ApiError: `precondition_required` without the header, `invalid` for a wrong value.
    """
    tags = if_match_tags(request)
    return _EXISTING if tags is None else {int(tag) for tag in tags if _VERSION.fullmatch(tag)}


def if_match_tags(request: AuthenticatedRequest) -> frozenset[str] | None:
    """Return the strong entity tags in `If-Match`, or None for `*`. A weak one matches nothing (RFC 9110, 13.1.1).

    Raises:
        ApiError: `precondition_required` without the header, `invalid` for a wrong value.
    """
    text = request.headers.get("If-Match")
    if text is None:
        raise ApiError(
            428,
            "precondition_required",
            "If-Match: this header is required. Send the ETag of the version that you read.",
        )
    if not re.fullmatch(IF_MATCH_PATTERN, text):
        detail = 'If-Match: must be ETags as in a response, such as "3", or * for any version.'
        raise ApiError(400, "invalid", detail, errors={"If-Match": [detail]})
    return None if text.strip() == "*" else frozenset(tag for weak, tag in _ENTITY_TAG.findall(text) if not weak)


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
