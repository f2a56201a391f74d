"""What callers say in headers."""

import re
from typing import Any

from rest_framework.request import Request

from orchestrator.http.errors.problems import ApiError
from orchestrator.services.idempotency import IdempotentRequest, fingerprint_of

LEASE_FENCE = "Lease-Fence"
FENCE_PATTERN = "[0-9]{1,18}"
KEY_PATTERN = "[ -~]{1,255}"
VERSION_PATTERN = '"[0-9]{1,9}"'
SESSION_PATTERN = "[0-7][0-9A-HJKMNP-TV-Za-hjkmnp-tv-z]{25}"


def idempotent_request(request: Request, operation: str, body: Any) -> IdempotentRequest | None:
    """The caller's Idempotency-Key for this operation and body, if there is one."""
    key = request.headers.get("Idempotency-Key")
    if key is None:
        return None
    if not re.fullmatch(KEY_PATTERN, key):
        detail = "Idempotency-Key: 1 to 255 printable ASCII characters."
        raise ApiError(400, "invalid", detail, errors={"Idempotency-Key": [detail]})
    caller: Any = request.user
    return IdempotentRequest(caller.key, operation, key, fingerprint_of(body))


def if_match_version(request: Request) -> int:
    """The version that `If-Match` names, as an ETag."""
    text = request.headers.get("If-Match")
    if text is None:
        raise ApiError(428, "precondition_required", "If-Match: the ETag of what you saw.")
    if not re.fullmatch(VERSION_PATTERN, text):
        detail = "If-Match: one ETag, as an answer had it."
        raise ApiError(400, "invalid", detail, errors={"If-Match": [detail]})
    return int(text.strip('"'))


def lease_fence(request: Request) -> int | None:
    """Return the fence that the header `Lease-Fence` names, or None without the header."""
    text = request.headers.get(LEASE_FENCE)
    if text is None:
        return None
    if not re.fullmatch(FENCE_PATTERN, text):
        detail = f"{LEASE_FENCE}: the `fence` of the claim's answer, a whole number of at most 18 digits."
        raise ApiError(400, "invalid", detail, errors={LEASE_FENCE: [detail]})
    return int(text)


def worker_session(request: Request) -> str:
    """The ULID by which a worker names its process, upper case so that they sort; empty if it does not."""
    session = request.headers.get("Worker-Session")
    if session is None:
        return ""
    if not re.fullmatch(SESSION_PATTERN, session):
        detail = "Worker-Session: a ULID."
        raise ApiError(400, "invalid", detail, errors={"Worker-Session": [detail]})
    return session.upper()
