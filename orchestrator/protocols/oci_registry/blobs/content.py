"""Sends a blob, or a range of it."""

from django.http import HttpRequest
from django.http.response import HttpResponseBase

from orchestrator.http.ranged_response import RangeNotSatisfiable, ranged_response
from orchestrator.images.blobs import StoredBlob, unknown_blob
from orchestrator.images.digests import Digest
from orchestrator.images.errors import INVALID_SIZE, RegistryError
from orchestrator.images.storage import image_storage


def blob_response(request: HttpRequest, blob: StoredBlob) -> HttpResponseBase:
    """Return the response to GET or HEAD of a blob.

    Raises:
        RegistryError: 404, the file is gone; 416, the range is outside the blob.
    """
    storage = image_storage()

    def read_block(position: int, size: int) -> bytes:
        with storage.open(blob.file) as file:
            file.seek(position)
            return bytes(file.read(size))

    if request.method != "HEAD" and blob.size and not storage.has(blob.file, blob.size):
        raise unknown_blob(Digest.parse(blob.digest))
    headers = {"Docker-Content-Digest": blob.digest}
    try:
        return ranged_response(request, read_block, size=blob.size, etag=f'"{blob.digest}"', headers=headers)
    except RangeNotSatisfiable:
        text = f"The blob has {blob.size} bytes."
        headers = {"Content-Range": f"bytes */{blob.size}"}
        raise RegistryError(416, INVALID_SIZE, text, headers=headers) from None
