"""Strict JSON: refuses what two parsers could read differently, and what PostgreSQL cannot store."""

import json
import math
from collections.abc import Mapping
from typing import IO, Any

from django.http import HttpRequest, QueryDict
from django.utils.http import parse_header_parameters
from rest_framework.exceptions import UnsupportedMediaType
from rest_framework.parsers import BaseParser
from rest_framework.request import Request

from orchestrator.http.asgi.body_limit import body_limit, too_large
from orchestrator.http.errors.problems import ApiError

MAX_DEPTH = 64
MAX_DIGITS = 19  # of a bigint


def require_uncompressed(request: HttpRequest | Request) -> None:
    """Refuse a body with a `Content-Encoding`: the limits of bodies, and signatures of them, count the bytes as sent.

    Raises:
        ApiError: 415 `unsupported_media_type`.
    """
    encoding = request.headers.get("Content-Encoding", "")
    if encoding.strip().lower() not in {"", "identity"}:
        detail = f"Content-Encoding: {encoding[:40]!a} is not supported. Send the body without compression."
        raise ApiError(415, "unsupported_media_type", detail, headers={"Accept-Encoding": "identity"})


def refuse(detail: str) -> ApiError:
    """Return the error `malformed_json`."""
    return ApiError(400, "malformed_json", detail)


class StrictJSONParser(BaseParser):
    """UTF-8 JSON objects only: no duplicate keys, NUL, lone surrogates, NaN, huge numbers, depth over 64."""

    media_type = "application/json"

    def parse(
        self, stream: IO[bytes], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        request = (parser_context or {})["request"]
        require_uncompressed(request)
        if not _is_utf8(media_type or "", self.media_type):
            raise UnsupportedMediaType(media_type or "")
        limit = body_limit(request.method, request.path)
        raw = stream.read(limit + 1)
        if len(raw) > limit:
            raise too_large(limit)
        return loads(raw) if raw else {}


class MergePatchParser(StrictJSONParser):
    """The same rules for merge patches (RFC 7396)."""

    media_type = "application/merge-patch+json"


def _is_utf8(media_type: str, expected: str) -> bool:
    """Return whether the media type is the expected one in UTF-8. DRF's own match accepts `*/*` and any charset."""
    kind, parameters = parse_header_parameters(media_type)
    return kind == expected and parameters.get("charset", "utf-8").lower() == "utf-8"


def body_of(request: Request) -> dict[str, Any]:
    """Return the JSON object in the body, `{}` without a body.

    DRF returns an empty form for an empty body with the media type of a form.
    """
    found: Any = request.data
    return {} if isinstance(found, QueryDict) else found


def loads(raw: bytes) -> dict[str, Any]:
    """Parse one JSON object.

    Raises:
        ApiError: `malformed_json`.
    """
    try:
        text = raw.decode("utf-8")
        # `json.loads` creates a decoder for each call with hooks. It words the refusal of a byte order mark better.
        value = json.loads(text) if text.startswith("\ufeff") else _DECODER.decode(text)
    except UnicodeDecodeError:
        raise refuse("The body must be UTF-8.") from None
    except RecursionError:
        raise refuse(f"The body is nested too deeply; at most {MAX_DEPTH} levels are allowed.") from None
    except json.JSONDecodeError as error:
        raise refuse(f"The body is not JSON: {error.msg} at character {error.pos}.") from None
    if not isinstance(value, dict):
        raise refuse("The body must be a JSON object.")
    _check(value, MAX_DEPTH, texts="\\u" in text)  # JSON writes neither NUL nor half a pair without that escape
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise refuse("A key appears twice in one object.")
    return found


def _no_constant(name: str) -> Any:
    raise refuse(f"{name} is not a JSON number.")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise refuse("A number is too large for a double.")
    return value


def _bounded(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise refuse(f"A number has {len(text)} digits; at most {MAX_DIGITS} are allowed.")
    return int(text)


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite, parse_int=_bounded
)


def _check(value: Any, depth: int, *, texts: bool) -> None:
    if isinstance(value, str):
        _check_text(value)
        return
    if depth == 0 or (depth == 1 and value):
        raise refuse(f"The body is nested too deeply; at most {MAX_DEPTH} levels are allowed.")
    for inner in value.values() if isinstance(value, dict) else value:
        if isinstance(inner, dict | list) or (texts and isinstance(inner, str)):
            _check(inner, depth - 1, texts=texts)
    if texts and isinstance(value, dict):
        for key in value:
            _check_text(key)


def _check_text(text: str) -> None:
    if "\0" in text:
        raise refuse("A string contains a NUL character.")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise refuse("A string contains half of a surrogate pair.") from None
