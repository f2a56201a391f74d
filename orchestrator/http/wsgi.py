"""The fast path under WSGI, before Django's handler."""

import io
from collections.abc import Callable, Iterable
from http.client import responses
from typing import Any

from django.conf import settings

from orchestrator.http.fast_path import FastCall, FastPath, PlainRequest
from orchestrator.http.request_path import corrected_path

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
# Django composes the path from these where a server rewrites URLs.
_REWRITTEN = ("SCRIPT_NAME", "SCRIPT_URL", "REDIRECT_URL")


class EnvironHeaders:
    """Request headers of a WSGI environment."""

    __slots__ = ("_environ",)

    def __init__(self, environ: Environ) -> None:
        self._environ = environ

    def get(self, name: str, /) -> str | None:
        """Return the value of a header, or None."""
        key = name.upper().replace("-", "_")
        found: str | None = self._environ.get(key if key in {"CONTENT_TYPE", "CONTENT_LENGTH"} else f"HTTP_{key}")
        return found


class FastPathWSGI:
    """A WSGI application: answers what the fast path matches, and passes everything else on."""

    def __init__(self, fast_path: FastPath, inner: Callable[[Environ, StartResponse], Iterable[bytes]]) -> None:
        self.fast_path = fast_path
        self.inner = inner

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        environ["PATH_INFO"] = corrected_path(environ.get("PATH_INFO", ""))
        request = self._match(environ)
        body = _read_body(environ) if request else None
        # A claim that may wait keeps its thread in Django's path.
        if request is None or body is None or (request.route.is_long_poll and b"wait_seconds" in body):
            return self.inner(environ, start_response)
        (response,) = self.fast_path.answer([FastCall(request, io.BytesIO(body))])
        assert response is not None  # noqa: S101 only ASGI knows that a client has disconnected
        start_response(f"{response.status} {responses[response.status]}", response.headers)
        return [response.body]

    def _match(self, environ: Environ) -> PlainRequest | None:
        if environ["REQUEST_METHOD"] != "POST" or environ.get("QUERY_STRING"):
            return None
        if settings.FORCE_SCRIPT_NAME is not None or any(environ.get(name) for name in _REWRITTEN):
            return None
        return self.fast_path.match(
            environ.get("PATH_INFO", ""),
            EnvironHeaders(environ),
            size=_length(environ.get("CONTENT_LENGTH")),
            peer=environ.get("REMOTE_ADDR", ""),
            scheme=environ.get("wsgi.url_scheme", "http"),
        )


def _length(text: str | None) -> int:
    """Return the declared length of the body; no match for a text that is not written as Python writes it."""
    return int(text) if text and len(text) < 10 and text.isascii() and text.isdecimal() else 0


def _read_body(environ: Environ) -> bytes | None:
    """Return the whole body, which Django can read again, or None if it is incomplete."""
    size, stream = _length(environ.get("CONTENT_LENGTH")), environ["wsgi.input"]
    try:
        body: bytes = stream.read(size) if size else b""
    except OSError:
        return None
    environ["wsgi.input"] = io.BytesIO(body)
    return body if len(body) == size else None
