"""Cursors of lists: the key of the last row, encrypted, valid for the same list with the same filters only."""

import json
from collections.abc import Mapping
from typing import Any, Final

from cryptography.fernet import InvalidToken

from orchestrator.http.api.pagination import cursor_cipher
from orchestrator.http.errors.problems import ApiError

_MAX_LENGTH: Final = 400
_WRONG: Final = "The cursor is not of this list with these filters, or of an older release. Start without a cursor."


class ListCursors:
    """The cursors of one list with its filters."""

    def __init__(self, name: str, filters: Mapping[str, Any]) -> None:
        """Prepare.

        Args:
            name: The field of the list.
            filters: Its arguments but `first` and `after`.
        """
        given = sorted((argument, value) for argument, value in filters.items() if value is not None)
        self._cipher = cursor_cipher(json.dumps(["graphql", name, given]))

    def encode(self, key: Any) -> str | None:
        """Return the cursor of a key of JSON values, or None for None."""
        return None if key is None else self._cipher.encrypt(json.dumps(key).encode()).decode()

    def decode(self, text: str | None) -> Any:
        """Return the key of a cursor, or None for None.

        Raises:
            ApiError: `invalid`.
        """
        if text is None:
            return None
        try:
            return json.loads(self._cipher.decrypt(text[:_MAX_LENGTH].encode()))
        except InvalidToken:
            raise ApiError(400, "invalid", "The argument after is not valid.", errors={"after": [_WRONG]}) from None
