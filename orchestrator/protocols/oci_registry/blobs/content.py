"""Sends a blob, or a range of it, without a thread for each client under ASGI."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Final

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase

from orchestrator.http.db_scope import release_connections
from orchestrator.images.blobs import StoredBlob, unknown_blob
from orchestrator.images.digests import Digest
from orchestrator.images.errors import INVALID_SIZE, RegistryError
from orchestrator.images.storage import image_storage

# With blocks of 256 KiB a blob of 128 MiB took three times as long as with 1 MiB: each is a change of threads.
MIN_BLOCK_BYTES: Final = 64 << 10
MAX_BLOCK_BYTES: Final = 1 << 20
BUFFERED_BYTES: Final = 64 << 20  # blocks of all downloads of a process; as many are read ahead
SLOW_SECONDS: Final = 1.0  # a client that needs longer for a block gets smaller ones
_RANGE: Final = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")
_readers = ThreadPoolExecutor(4, thread_name_prefix="blob-reader")


def blob_response(request: HttpRequest, blob: StoredBlob) -> HttpResponseBase:
    """Return the response to GET or HEAD of a blob.

    It is a file to save, of a type without a meaning: a browser must not execute what a tenant has uploaded.

    Raises:
        RegistryError: 404, the file is gone; 416, the range is outside the blob.
    """
    headers = {
        "Accept-Ranges": "bytes",
        "Content-Disposition": "attachment",
        "Content-Type": "application/octet-stream",
        "Docker-Content-Digest": blob.digest,
        "ETag": f'"{blob.digest}"',
    }
    start, length = 0, blob.size
    found = _requested_range(request, blob)
    if found is not None:
        start, length = found
        headers["Content-Range"] = f"bytes {start}-{start + length - 1}/{blob.size}"
    headers["Content-Length"] = str(length)
    status = 200 if found is None else 206
    if request.method == "HEAD" or not length:
        return HttpResponse(status=status, headers=headers)
    try:
        file = image_storage().open(blob.file)
    except FileNotFoundError:
        raise unknown_blob(Digest.parse(blob.digest)) from None
    if hasattr(request, "scope"):
        file.close()
        return StreamingHttpResponse(_async_blocks(blob.file, start, length), status=status, headers=headers)
    release_connections()  # else slow clients would hold all connections of the pool
    file.seek(start)
    blocks = _blocks(file, length)
    response = StreamingHttpResponse(blocks, status=status, headers=headers)
    response._resource_closers.append(file.close)  # type: ignore[attr-defined] # noqa: SLF001 - called by `close`
    return response


def _requested_range(request: HttpRequest, blob: StoredBlob) -> tuple[int, int] | None:
    """Return the position and length of the range that a request asks for, or None for the whole blob.

    Several ranges, invalid ones, and other units are answered with the whole blob (RFC 9110).
    """
    header = request.headers.get("Range", "")
    found = _RANGE.fullmatch(header)
    if (
        found is None
        or header == "bytes=-"
        or (found[1] and found[2] and int(found[1]) > int(found[2]))
        or request.headers.get("If-Range", f'"{blob.digest}"') != f'"{blob.digest}"'
    ):
        return None
    first, last = found[1], found[2]
    if first:
        start, end = int(first), min(int(last) if last else blob.size - 1, blob.size - 1)
    else:
        start, end = max(blob.size - int(last), 0), blob.size - 1
    if start > end:
        text = f"The blob has {blob.size} bytes."
        raise RegistryError(416, INVALID_SIZE, text, headers={"Content-Range": f"bytes */{blob.size}"})
    return start, end - start + 1


def _blocks(file: IO[bytes], length: int) -> Iterator[bytes]:
    while length > 0 and (block := file.read(min(MAX_BLOCK_BYTES, length))):
        length -= len(block)
        yield block


class BlockSizes:
    """Chooses the size of blocks: large ones for fast clients, while few of them download."""

    def __init__(self) -> None:
        self.downloads = 0

    def next(self, size: int, seconds: float) -> int:
        """Return the size of the next block.

        Args:
            size: The size of the last block.
            seconds: How long its transmission took.
        """
        wanted = size // 2 if seconds > SLOW_SECONDS else size * 2
        share = BUFFERED_BYTES // max(self.downloads, 1)
        return max(MIN_BLOCK_BYTES, min(wanted, share, MAX_BLOCK_BYTES))


block_sizes = BlockSizes()


def _read_block(name: str, position: int, size: int) -> bytes:
    with image_storage().open(name) as file:
        file.seek(position)
        return bytes(file.read(size))


async def _async_blocks(name: str, position: int, length: int) -> AsyncIterator[bytes]:
    """Yield the content. While a block is being sent, the next one is read.

    The file is opened for each block: thousands of slow clients would need as many descriptors beside those of their
    connections. A file that collection deletes meanwhile ends the response, and the client repeats its request.
    """
    loop = asyncio.get_running_loop()
    size = MIN_BLOCK_BYTES
    block_sizes.downloads += 1
    following = loop.run_in_executor(_readers, _read_block, name, position, min(size, length))
    try:
        while block := await following:
            position, length = position + len(block), length - len(block)
            if length > 0:
                following = loop.run_in_executor(_readers, _read_block, name, position, min(size, length))
            began = loop.time()
            yield block
            if length <= 0:
                return
            size = block_sizes.next(size, loop.time() - began)
    finally:
        block_sizes.downloads -= 1
        following.cancel()
