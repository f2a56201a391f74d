"""Sends stored bytes, or one range of them, without a thread for each client under ASGI."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase

from orchestrator.core.db_scope import release_connections

# With blocks of 256 KiB a blob of 128 MiB took three times as long as with 1 MiB: each is a change of threads.
MIN_BLOCK_BYTES: Final = 64 << 10
MAX_BLOCK_BYTES: Final = 1 << 20
BUFFERED_BYTES: Final = 64 << 20  # blocks of all downloads of a process; as many are read ahead
SLOW_SECONDS: Final = 1.0  # a client that needs longer for a block gets smaller ones
_RANGE: Final = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")
_readers = ThreadPoolExecutor(4, thread_name_prefix="download-reader")

ReadBlock = Callable[[int, int], bytes]  # position and size


class RangeNotSatisfiable(Exception):
    """The requested range begins after the last byte."""


def ranged_response(
    request: HttpRequest, read_block: ReadBlock, *, size: int, etag: str, headers: dict[str, str]
) -> HttpResponseBase:
    """Return the response to GET or HEAD of stored bytes. They are a file to save, of a type without a meaning.

    A browser must not execute what a tenant has uploaded.

    Args:
        request: The request.
        read_block: Returns bytes at a position, in a thread. An error or an early end ends the response.
        size: The number of all bytes.
        etag: The entity tag with its quotes, which never belongs to other bytes.
        headers: Further headers. They may replace `Content-Disposition`.

    Raises:
        RangeNotSatisfiable: 416; the protocol words it.
    """
    answered = {
        "Accept-Ranges": "bytes",
        "Content-Disposition": "attachment",
        "Content-Type": "application/octet-stream",
        "ETag": etag,
    } | headers
    start, length = 0, size
    found = _requested_range(request, size, etag)
    if found is not None:
        start, length = found
        answered["Content-Range"] = f"bytes {start}-{start + length - 1}/{size}"
    answered["Content-Length"] = str(length)
    status = 200 if found is None else 206
    if request.method == "HEAD" or not length:
        return HttpResponse(status=status, headers=answered)
    if hasattr(request, "scope"):
        return StreamingHttpResponse(_async_blocks(read_block, start, length), status=status, headers=answered)
    release_connections()  # else slow clients would hold all connections of the pool
    return StreamingHttpResponse(_blocks(read_block, start, length), status=status, headers=answered)


def _requested_range(request: HttpRequest, size: int, etag: str) -> tuple[int, int] | None:
    """Return the position and length of the range that a request asks for, or None for all bytes.

    Several ranges, invalid ones, and other units are answered with all bytes (RFC 9110).
    """
    header = request.headers.get("Range", "")
    found = _RANGE.fullmatch(header)
    if (
        found is None
        or header == "bytes=-"
        or (found[1] and found[2] and int(found[1]) > int(found[2]))
        or request.headers.get("If-Range", etag) != etag
    ):
        return None
    first, last = found[1], found[2]
    if first:
        start, end = int(first), min(int(last) if last else size - 1, size - 1)
    else:
        start, end = max(size - int(last), 0), size - 1
    if start > end:
        raise RangeNotSatisfiable
    return start, end - start + 1


def _blocks(read_block: ReadBlock, position: int, length: int) -> Iterator[bytes]:
    while length > 0 and (block := read_block(position, min(MAX_BLOCK_BYTES, length))):
        position, length = position + len(block), length - len(block)
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


async def _async_blocks(read_block: ReadBlock, position: int, length: int) -> AsyncIterator[bytes]:
    """Yield the content. While a block is being sent, the next one is read.

    The file is opened for each block: thousands of slow clients would need as many descriptors beside those of their
    connections. A file that is deleted meanwhile ends the response, and the client repeats its request.
    """
    loop = asyncio.get_running_loop()
    size = MIN_BLOCK_BYTES
    block_sizes.downloads += 1
    following = loop.run_in_executor(_readers, read_block, position, min(size, length))
    try:
        while block := await following:
            position, length = position + len(block), length - len(block)
            if length > 0:
                following = loop.run_in_executor(_readers, read_block, position, min(size, length))
            began = loop.time()
            yield block
            if length <= 0:
                return
            size = block_sizes.next(size, loop.time() - began)
    finally:
        block_sizes.downloads -= 1
        following.cancel()
