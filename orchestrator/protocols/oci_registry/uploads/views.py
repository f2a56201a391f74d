"""Views of `/v2/{repository}/blobs/uploads/`."""

import re
from typing import Final
from uuid import UUID

from django.http import HttpResponse
from rest_framework.request import Request

from orchestrator.images.blobs import mount_blob
from orchestrator.images.digests import Digest
from orchestrator.images.errors import INVALID_SIZE, INVALID_UPLOAD, RegistryError
from orchestrator.images.models import BlobUpload
from orchestrator.images.storage import UploadPart
from orchestrator.images.tokens import PUSH
from orchestrator.images.uploads import (
    append_part,
    begin_upload,
    cancel_upload,
    complete_upload,
    find_upload,
    position_headers,
    store_blob,
    unknown_upload,
)
from orchestrator.protocols.oci_registry.access import authorize, sources_of
from orchestrator.protocols.oci_registry.base_view import RegistryView, empty_response, location, parse_digest
from orchestrator.protocols.oci_registry.body import uploaded_part

_RANGE: Final = re.compile(r"([0-9]{1,18})-([0-9]{1,18})")
_UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


class UploadListView(RegistryView):
    """`/v2/{repository}/blobs/uploads/`."""

    def post(self, request: Request, repository: str) -> HttpResponse:
        """Begin an upload, store a blob with one request (`digest`), or mount one (`mount`, `from`)."""
        query = request.query_params
        source = query.get("from", "")
        found = authorize(request, repository, PUSH, mounted=source if "mount" in query else "")
        if "mount" in query:
            digest = parse_digest(query["mount"])
            sources = sources_of(request, [source] if source else [])
            # A blob that the caller may not pull is answered as one that does not exist.
            if mount_blob(found.project, digest, [found.project, *(entry.project for entry in sources)]):
                return _created(repository, digest)
        elif "digest" in query:
            digest = parse_digest(query["digest"])
            with uploaded_part(request._request) as part:  # noqa: SLF001 - the body is not parsed
                store_blob(found.project, part, digest)
            return _created(repository, digest)
        return _position(repository, begin_upload(found.project), 202)


class UploadDetailView(RegistryView):
    """`/v2/{repository}/blobs/uploads/{upload}`."""

    def get(self, request: Request, repository: str, upload: str) -> HttpResponse:
        """Answer how much of the upload has arrived."""
        found = authorize(request, repository, PUSH)
        return _position(repository, find_upload(found.project, _upload_id(upload)), 204)

    def patch(self, request: Request, repository: str, upload: str) -> HttpResponse:
        """Append a part."""
        found = authorize(request, repository, PUSH)
        find_upload(found.project, _upload_id(upload))  # before a body is read
        with uploaded_part(request._request) as part:  # noqa: SLF001 - the body is not parsed
            row = append_part(found.project, _upload_id(upload), part, start=_start(request, part))
        return _position(repository, row, 202)

    def put(self, request: Request, repository: str, upload: str) -> HttpResponse:
        """Append the last part, and complete the upload (`digest`)."""
        found = authorize(request, repository, PUSH)
        digest = parse_digest(request.query_params.get("digest", ""))
        find_upload(found.project, _upload_id(upload))
        with uploaded_part(request._request) as part:  # noqa: SLF001 - the body is not parsed
            complete_upload(found.project, _upload_id(upload), part, digest, start=_start(request, part))
        return _created(repository, digest)

    def delete(self, request: Request, repository: str, upload: str) -> HttpResponse:
        """Cancel the upload."""
        found = authorize(request, repository, PUSH)
        cancel_upload(found.project, _upload_id(upload))
        return empty_response(204)


def _upload_id(text: str) -> UUID:
    if not _UUID.fullmatch(text):
        raise unknown_upload()
    return UUID(text)


def _start(request: Request, part: UploadPart) -> int | None:
    """Return the position of a part in its blob, or None without `Content-Range`.

    Raises:
        RegistryError: 400; the header is malformed, or the body has another length.
    """
    header = request.headers.get("Content-Range")
    if header is None:
        return None
    found = _RANGE.fullmatch(header)
    if found is None:
        raise RegistryError(400, INVALID_UPLOAD, "Content-Range: Must be two positions, such as 0-1023.")
    start, end = int(found[1]), int(found[2])
    if end - start + 1 != part.size:
        raise RegistryError(400, INVALID_SIZE, f"Content-Range: {header} has not the {part.size} bytes of the body.")
    return start


def _position(repository: str, upload: BlobUpload, status: int) -> HttpResponse:
    headers = {"Location": location(repository, "blobs", "uploads", str(upload.uuid))} | position_headers(upload)
    return empty_response(status, headers)


def _created(repository: str, digest: Digest) -> HttpResponse:
    headers = {"Location": location(repository, "blobs", str(digest)), "Docker-Content-Digest": str(digest)}
    return empty_response(201, headers)
