"""Receives the request of a fetch: decompressed and limited, in memory up to 64 KiB and then on disk."""

import asyncio
import zlib
from typing import Any, Final

from django.conf import settings

from orchestrator.http.asgi.body_limit import Body, ClientDisconnected, Receive
from orchestrator.http.errors.problems import ApiError
from orchestrator.protocols.git_http.wire import GitRefusal

BLOCK_BYTES: Final = 64 << 10  # that are decompressed at a time
ENCODINGS: Final = frozenset({"gzip", "x-gzip"})
_GZIP: Final = 16 + zlib.MAX_WBITS


async def read_request(receive: Receive, *, encoding: str) -> Body:
    """Read the whole body. Git waits for the end of its request before it expects a response.

    Args:
        receive: The ASGI channel of the request. The first call lets a client continue that expects `100 Continue`.
        encoding: The `Content-Encoding`; empty: none.

    Returns:
        The decompressed body; its file is at position 0. The caller closes it.

    Raises:
        GitRefusal: 400, 408, 413, 415 or 503.
        ClientDisconnected: The client disconnected.
    """
    if encoding not in ENCODINGS | {"", "identity"}:
        raise GitRefusal(415, "The Content-Encoding must be gzip, or none.")
    body = Body()
    reader = _Reader(body, is_compressed=encoding in ENCODINGS)
    try:
        async with asyncio.timeout(settings.BODY_SECONDS):
            await reader.read(receive)
    except BaseException as error:
        body.close()
        if isinstance(error, TimeoutError):
            seconds = settings.BODY_SECONDS
            raise GitRefusal(408, f"The body must arrive within {seconds:g} seconds.") from None
        raise
    body.file.seek(0)
    return body


class _Reader:
    """Decompresses one body into a file."""

    def __init__(self, body: Body, *, is_compressed: bool) -> None:
        self._body = body
        self._decoder: Any = zlib.decompressobj(_GZIP) if is_compressed else None
        self._received = 0

    async def read(self, receive: Receive) -> None:
        has_more = True
        while has_more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnected
            data, has_more = message.get("body", b""), message.get("more_body", False)
            self._received += len(data)
            self._require(self._received)
            if self._decoder is None:
                self._write(data)
            else:
                await self._inflate(data)
        if self._decoder is not None and not self._decoder.eof:
            raise GitRefusal(400, "The compressed body is incomplete.")

    async def _inflate(self, data: bytes) -> None:
        while data:
            if self._decoder.eof:
                raise GitRefusal(400, "The body continues after the end of its compressed data.")
            try:
                self._write(self._decoder.decompress(data, BLOCK_BYTES))
            except zlib.error:
                raise GitRefusal(400, "The body is not compressed by gzip.") from None
            data = self._decoder.unconsumed_tail or self._decoder.unused_data
            await asyncio.sleep(0)  # a small body may become megabytes; other requests proceed meanwhile

    def _write(self, data: bytes) -> None:
        self._require(self._body.size + len(data))
        try:
            self._body.write(data)
        except ApiError as error:  # the bodies of this process take BODY_SPOOL_BYTES
            raise GitRefusal(error.status, error.detail, headers=error.headers) from None

    def _require(self, size: int) -> None:
        if size > (limit := settings.GIT_REQUEST_LIMIT_BYTES):
            raise GitRefusal(413, f"The request of a fetch may have at most {limit:,} bytes, also decompressed.")
