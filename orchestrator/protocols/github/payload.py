"""The payload in a body, which GitHub sends as JSON or as a form with one field: what its settings page offers."""

import json
from typing import Any
from urllib.parse import parse_qsl

from django.conf import settings
from django.utils.http import parse_header_parameters
from rest_framework.exceptions import UnsupportedMediaType
from rest_framework.request import Request

from orchestrator.http.api.json_parser import loads, refuse
from orchestrator.http.errors.problems import ApiError

LIMIT = 1 << 20  # GitHub sends up to 25 MiB; what a run needs of it fits into much less
JSON, FORM = "application/json", "application/x-www-form-urlencoded"


def raw_of(request: Request) -> bytes:
    """The bytes that were signed. Raises Refusal `payload_too_large`, as the middleware does before it reads."""
    raw: bytes = request._request.body  # noqa: SLF001 DRF's own would parse it
    limit = min(LIMIT, settings.BODY_LIMIT_BYTES)
    if len(raw) > limit:
        raise ApiError(413, "payload_too_large", f"The body may have at most {limit} bytes here.", limit=limit)
    return raw


def payload_of(request: Request, raw: bytes) -> dict[str, Any]:
    """The payload, read as strictly as every body. Raises UnsupportedMediaType and Refusal `malformed_json`."""
    return loads(_text(request, raw))


def peek(request: Request, raw: bytes) -> Any:
    """The payload before anybody has vouched for it: only to know whose secret it may be signed with. None: no idea."""
    try:
        return json.loads(_text(request, raw))
    except (UnsupportedMediaType, ApiError, ValueError, RecursionError):
        return None


def _text(request: Request, raw: bytes) -> bytes:
    kind, parameters = parse_header_parameters(request.META.get("CONTENT_TYPE", ""))
    plain = request.headers.get("Content-Encoding", "identity") == "identity"
    if kind not in {JSON, FORM} or parameters.get("charset", "utf-8").lower() != "utf-8" or not plain:
        raise UnsupportedMediaType(kind)
    return raw if kind == JSON else _field(raw)


def _field(raw: bytes) -> bytes:
    try:
        fields = parse_qsl(raw.decode("ascii"), strict_parsing=True, max_num_fields=1, errors="strict")
    except ValueError:
        raise refuse("The form must have one field, payload.") from None
    if [name for name, _ in fields] != ["payload"]:
        raise refuse("The form must have one field, payload.")
    return fields[0][1].encode("utf-8", "surrogatepass")
