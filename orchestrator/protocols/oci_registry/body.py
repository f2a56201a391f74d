"""Reads bodies: of an upload into a file, of a manifest into memory.

Under ASGI the event loop has received them. Under WSGI this thread reads them; some servers also report the end of a
chunked body there (`wsgi.input_terminated`), which Django treats as empty.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from django.conf import settings
from django.http import HttpRequest

from orchestrator.core.db_scope import release_connections
from orchestrator.http.asgi.body_limit import too_large
from orchestrator.http.asgi.upload_body import UPLOAD
from orchestrator.http.errors.problems import ApiError
from orchestrator.images.manifest_documents import MAX_MANIFEST_BYTES
from orchestrator.images.storage import UploadPart

BLOCK_BYTES: Final = 1 << 20


@contextmanager
def uploaded_part(request: HttpRequest) -> Iterator[UploadPart]:
    """Return the body of a request as a part of an upload. The part is deleted after the block unless it was kept.

    Raises:
        ApiError: 400 or 413, under WSGI only.
    """
    scope = getattr(request, "scope", None)
    if scope is not None:
        yield scope.get(UPLOAD) or UploadPart()  # without a permission there is no file, and the view has refused
        return
    part = UploadPart()
    try:
        _read(request, part)
        yield part
    finally:
        part.discard()


def _read(request: HttpRequest, part: UploadPart) -> None:
    """Read the body of a WSGI request. The database connection returns to the pool meanwhile."""
    release_connections()
    length = request.META.get("CONTENT_LENGTH")
    stream = _chunked_stream(request) or request
    limit = settings.IMAGE_UPLOAD_LIMIT_BYTES
    while block := stream.read(BLOCK_BYTES):
        if part.size + len(block) > limit:
            raise too_large(limit)
        part.write(block)
    if length and part.size != int(length):
        raise ApiError(400, "invalid", f"The body ended after {part.size} of {length} bytes.")


def manifest_body(request: HttpRequest) -> bytes:
    """Return the body of a manifest, at most one byte more than a manifest may have."""
    stream = _chunked_stream(request)
    return request.body if stream is None else bytes(stream.read(MAX_MANIFEST_BYTES + 1))


def _chunked_stream(request: HttpRequest) -> Any:
    """Return the stream of a chunked body under WSGI, which ends by itself; None for every other request."""
    is_chunked = "HTTP_TRANSFER_ENCODING" in request.META and not request.META.get("CONTENT_LENGTH")
    return request.META.get("wsgi.input") if is_chunked else None
