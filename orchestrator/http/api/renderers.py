"""Answers that are not JSON."""

from typing import Any

from rest_framework.renderers import BaseRenderer


class PlainText(BaseRenderer):
    """Says that a view answers text/plain, for those who ask for it. The view itself makes the text."""

    media_type = "text/plain"
    format = "txt"
    charset = "utf-8"

    def render(self, data: Any, *_: Any, **__: Any) -> bytes:
        return str(data).encode()
