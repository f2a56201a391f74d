"""The payload in the body of a delivery: JSON, or a form with one field. GitHub's settings page offers both."""

import json
from typing import Any
from urllib.parse import parse_qsl

from django.conf import settings
from django.utils.http import parse_header_parameters
from rest_framework.exceptions import UnsupportedMediaType
from rest_framework.request import Request

from orchestrator.http.api.json_parser import loads, refuse, require_uncompressed
from orchestrator.http.errors.problems import ApiError

MAX_BODY_BYTES = 1 << 20  # GitHub sends up to 25 MiB; the fields that a run needs fit into much less
JSON, FORM = "application/json", "application/x-www-form-urlencoded"


def signed_body(request: Request) -> bytes:
    """Return the bytes that GitHub signed.

    Raises:
        ApiError: `payload_too_large`.
    """
    raw: bytes = request._request.body  # noqa: SLF001 DRF's own would parse it
    limit = min(MAX_BODY_BYTES, settings.BODY_LIMIT_BYTES)
    if len(raw) > limit:
        detail = f"The body has {len(raw)} bytes; at most {limit} bytes are allowed."
        raise ApiError(413, "payload_too_large", detail, limit=limit)
    return raw


def parse_payload(request: Request, raw: bytes) -> dict[str, Any]:
    """Parse the payload by the rules of every JSON body.

    Raises:
        UnsupportedMediaType: The body is neither JSON nor a form.
        ApiError: `malformed_json`.
    """
    return loads(_json_text(request, raw))


def peek(request: Request, raw: bytes) -> Any:
    """Return the payload before its signature is verified, or None.

    Use it only to find the secrets that may have signed the body.
    """
    try:
        return json.loads(_json_text(request, raw))
    except (UnsupportedMediaType, ApiError, ValueError, RecursionError):
        return None


def _json_text(request: Request, raw: bytes) -> bytes:
    media_type, parameters = parse_header_parameters(request.META.get("CONTENT_TYPE", ""))
    require_uncompressed(request)
    if media_type not in {JSON, FORM} or parameters.get("charset", "utf-8").lower() != "utf-8":
        raise UnsupportedMediaType(media_type)
    return raw if media_type == JSON else _form_field(raw)


def _form_field(raw: bytes) -> bytes:
    try:
        fields = parse_qsl(raw.decode("ascii"), strict_parsing=True, max_num_fields=1, errors="strict")
    except ValueError:
        raise refuse("The form must have exactly one field, named payload.") from None
    if [name for name, _ in fields] != ["payload"]:
        raise refuse("The form must have exactly one field, named payload.")
    return fields[0][1].encode("utf-8", "surrogatepass")
