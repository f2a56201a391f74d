"""Receives the bodies of uploads to signed addresses, under ASGI in the event loop, else in this thread."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

from django.conf import settings
from django.http import HttpRequest

from orchestrator.artifacts.addresses import PREFIX, InvalidAddress, ObjectAddress, read_address
from orchestrator.artifacts.storage import ObjectPart, is_file_storage
from orchestrator.core.db_scope import release_connections
from orchestrator.http.asgi.body_limit import Message, too_large
from orchestrator.http.asgi.upload_body import UPLOAD, UploadLimits, Uploads
from orchestrator.http.errors.problems import ApiError

ADDRESS: Final = "orchestrator.object_address"  # key of the scope: the address, as it was when the request began
BLOCK_BYTES: Final = 1 << 20
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


def object_uploads() -> Uploads:
    """Return the receiver of uploads to signed addresses."""
    return Uploads(share_of_object, ObjectPart, _limits_of)


def address_of(method: str, path: str) -> ObjectAddress:
    """Return the address in the path of a request.

    Raises:
        ApiError: 403 `address_not_valid`.
    """
    try:
        return read_address(path.removeprefix(PREFIX), method=method, now=datetime.now(UTC))
    except InvalidAddress:
        detail = "The address was altered, has expired, or is for another method. Request another one."
        raise ApiError(403, "address_not_valid", detail) from None


def share_of_object(scope: Message) -> str | ApiError | None:
    """Return the organization for which an upload is counted, its refusal, or None for every other request.

    This is called in the event loop before the body is received, and asks no database.
    """
    if scope["method"] != "PUT" or not scope["path"].startswith(PREFIX):
        return None
    try:
        address = address_of("PUT", scope["path"])
        require_size(address, dict(scope["headers"]).get(b"content-length"))
    except ApiError as refusal:
        return refusal
    if not is_file_storage():
        return ApiError(403, "address_not_valid", "Objects are uploaded to a bucket now. Request another address.")
    scope[ADDRESS] = address
    return address.organization


def require_size(address: ObjectAddress, content_length: bytes | str | None) -> None:
    """Refuse a body whose declared size is not the announced one.

    Raises:
        ApiError: 422 `size_mismatch`.
    """
    if content_length is not None and int(content_length) != address.byte_count:
        text = f"The body has {int(content_length)} bytes, and {address.byte_count} were announced."
        raise ApiError(422, "size_mismatch", text)


@contextmanager
def received_part(request: HttpRequest, address: ObjectAddress) -> Iterator[ObjectPart]:
    """Return the body of a request. It is deleted after the block unless it was published.

    Raises:
        ApiError: 422, 413 or 507, under WSGI only.
    """
    scope: Any = getattr(request, "scope", None)
    if scope is not None and UPLOAD in scope:
        yield scope[UPLOAD]  # the router discards it
        return
    part = ObjectPart()
    try:
        _read(request, address, part)
        yield part
    finally:
        part.discard()


def refuse_write(error: OSError) -> ApiError:
    """Return the refusal of an upload whose file cannot be written."""
    if error.errno in _FULL:
        return ApiError(507, "storage_full", "The store of artifacts has no space left. Nothing was stored.")
    detail = "The store of artifacts does not answer. Repeat the request after Retry-After seconds."
    return ApiError(503, "storage_unavailable", detail, headers={"Retry-After": "5"})


def _limits_of(scope: Message) -> UploadLimits:
    address: ObjectAddress = scope[ADDRESS]
    return UploadLimits(
        address.byte_count, settings.ARTIFACT_UPLOAD_SECONDS, settings.ARTIFACT_SPOOL_BYTES, refuse_write
    )


def _read(request: HttpRequest, address: ObjectAddress, part: ObjectPart) -> None:
    """Read the body of a WSGI request, or an empty one. The database connection returns to the pool meanwhile."""
    require_size(address, request.META.get("CONTENT_LENGTH") or None)
    release_connections()
    try:
        while block := request.read(BLOCK_BYTES):
            if part.size + len(block) > address.byte_count:
                raise too_large(address.byte_count)
            part.write(block)
    except OSError as error:
        raise refuse_write(error) from error
