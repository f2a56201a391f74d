"""Lists, newest first, by cursor: no COUNT, no OFFSET. A cursor counts only with the filters that it was made for."""

import hashlib
import re
from typing import Any

from django.core import signing
from rest_framework.pagination import Cursor, CursorPagination
from rest_framework.request import Request
from rest_framework.utils.urls import replace_query_param

from orchestrator.access.queries import invalid_query

_NUMBER = re.compile(r"[1-9][0-9]{0,8}")


class NewestFirst(CursorPagination):
    """`limit` 1 to 200 (50), `cursor`; answers `next`, `previous`, `results`."""

    ordering = "-id"
    page_size = 50
    max_page_size = 200
    page_size_query_param = "limit"

    def get_page_size(self, request: Request) -> int:
        text = request.query_params.get("limit", str(self.page_size))
        if not _NUMBER.fullmatch(text) or int(text) > self.max_page_size:
            raise invalid_query("limit", f"A number from 1 to {self.max_page_size}.")
        return int(text)

    def get_schema_operation_parameters(self, _view: Any) -> list[dict[str, Any]]:
        """For OpenAPI."""
        limit = {"type": "integer", "minimum": 1, "maximum": self.max_page_size, "default": self.page_size}
        cursor = {"type": "string", "minLength": 1}
        return [
            {"name": "limit", "in": "query", "required": False, "schema": limit},
            {"name": "cursor", "in": "query", "required": False, "schema": cursor, "description": "As `next` has it."},
        ]

    def decode_cursor(self, request: Request) -> Cursor | None:
        self.salt = _salt(request)
        text = request.query_params.get("cursor")
        if text is None:
            return None
        try:
            return Cursor(*signing.loads(text, salt=self.salt))
        except signing.BadSignature:
            raise invalid_query("cursor", "It does not belong to this list.") from None

    def encode_cursor(self, cursor: Cursor) -> str:
        text = signing.dumps([cursor.offset, cursor.reverse, cursor.position], salt=self.salt)
        return replace_query_param(str(self.base_url), "cursor", text)


def _salt(request: Request) -> str:
    """The list and its filters: everything in the address but the place in it."""
    kept = sorted((k, v) for k, v in request.query_params.items() if k not in {"cursor", "limit"})
    return hashlib.sha256(repr((request.path, kept)).encode()).hexdigest()
