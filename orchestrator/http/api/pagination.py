"""Lists, newest first, by cursor: no COUNT, no OFFSET. A cursor counts only with the filters that it was made for."""

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any, Protocol

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from django.conf import settings
from django.utils.crypto import salted_hmac
from rest_framework.pagination import Cursor, CursorPagination
from rest_framework.request import Request
from rest_framework.utils.urls import replace_query_param

from orchestrator.http.api.query_parameters import invalid_query

_NUMBER = re.compile(r"[1-9][0-9]{0,8}")
_MAX_LENGTH = 400  # characters of a cursor; ours have fewer than 200
_WRONG = "The cursor is not of this list with these filters, or of an older release. Start without a cursor."


class NewestFirst(CursorPagination):
    """Parameters `limit` (1 to 200, default 50) and `cursor`; response `next`, `previous`, `results`.

    A cursor contains a row number that counts the rows of all tenants. It is encrypted: otherwise two cursors would
    disclose how many jobs other tenants submit.
    """

    ordering = "-id"
    page_size = 50
    max_page_size = 200
    page_size_query_param = "limit"

    def get_page_size(self, request: Request) -> int:
        text = request.query_params.get("limit", str(self.page_size))
        if not _NUMBER.fullmatch(text) or int(text) > self.max_page_size:
            raise invalid_query("limit", f"Must be a number from 1 to {self.max_page_size}.")
        return int(text)

    def get_schema_operation_parameters(self, _view: Any) -> list[dict[str, Any]]:
        """For OpenAPI."""
        limit = {"type": "integer", "minimum": 1, "maximum": self.max_page_size, "default": self.page_size}
        cursor = {"type": "string", "minLength": 1}
        return [
            {"name": "limit", "in": "query", "required": False, "schema": limit},
            {
                "name": "cursor",
                "in": "query",
                "required": False,
                "schema": cursor,
                "description": "The `cursor` in `next` or `previous`.",
            },
        ]

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        """For OpenAPI."""
        about = "Null: there is no such page."
        # drf-spectacular takes the example for those of the list.
        address = {"type": ["string", "null"], "format": "uri", "description": about, "example": None}
        return {
            "type": "object",
            "required": ["next", "previous", "results"],
            "properties": {"next": address, "previous": address, "results": schema},
            "additionalProperties": False,
        }

    def decode_cursor(self, request: Request) -> Cursor | None:
        self.cipher = cursor_cipher(_list_of(request))
        text = request.query_params.get("cursor")
        if text is None:
            return None
        try:
            return Cursor(*json.loads(self.cipher.decrypt(text[:_MAX_LENGTH].encode())))
        except InvalidToken:
            raise invalid_query("cursor", _WRONG) from None

    def encode_cursor(self, cursor: Cursor) -> str:
        text = self.cipher.encrypt(json.dumps([cursor.offset, cursor.reverse, cursor.position]).encode()).decode()
        return replace_query_param(str(self.base_url), "cursor", text)


class KeysetRows(Protocol):
    """A list that no single table holds. Each row has a `key` of JSON values, by which the list is ordered."""

    def fetch(self, after: Sequence[Any] | None, count: int, *, backward: bool) -> list[Any]:
        """Return up to `count` rows after the key, or before it, the nearest first. Without a key: from the begin."""
        ...


class KeysetPages(NewestFirst):
    """Pages of `KeysetRows`. Parameters, responses and encryption are those of `NewestFirst`."""

    def paginate_queryset(self, queryset: Any, request: Request, view: Any = None) -> list[Any]:  # noqa: ARG002 DRF's signature
        rows: KeysetRows = queryset
        self.request, self.base_url = request, request.build_absolute_uri()
        size, cursor = self.get_page_size(request), self.decode_cursor(request)
        key: Any = None if cursor is None else cursor.position
        backward = cursor is not None and cursor.reverse
        found = rows.fetch(key, size + 1, backward=backward)
        has_more, page = len(found) > size, found[:size]
        if backward:
            page.reverse()
        self.page = page
        self._next_key = page[-1].key if page and (has_more or backward) else None
        self._previous_key = page[0].key if page and (has_more if backward else key is not None) else None
        return page

    def get_next_link(self) -> str | None:
        return (
            None
            if self._next_key is None
            else self.encode_cursor(Cursor(offset=0, reverse=False, position=self._next_key))
        )

    def get_previous_link(self) -> str | None:
        return (
            None
            if self._previous_key is None
            else self.encode_cursor(Cursor(offset=0, reverse=True, position=self._previous_key))
        )


def _list_of(request: Request) -> str:
    """Return the list and its filters: everything in the address but the place in it."""
    kept = sorted((k, v) for k, v in request.query_params.items() if k not in {"cursor", "limit"})
    return hashlib.sha256(repr((request.path, kept)).encode()).hexdigest()


def cursor_cipher(purpose: str) -> MultiFernet:
    """Return the cipher of the cursors of a list, with keys derived from the installation's.

    The newest key encrypts, all of them decrypt.
    """
    secrets = [settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS]
    digests = [
        salted_hmac("orchestrator.pagination", purpose, secret=secret, algorithm="sha256").digest()
        for secret in secrets
    ]
    return MultiFernet([Fernet(base64.urlsafe_b64encode(digest)) for digest in digests])
