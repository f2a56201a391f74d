"""Bodies of uploads under ASGI: written to their final file while they arrive, without a thread for each client.

`body_limit` keeps other bodies in one temporary file, within limits for the whole process that a gigabyte exceeds.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, Protocol

from django.conf import settings

from orchestrator.http.asgi.body_limit import (
    ClientDisconnected,
    Message,
    Receive,
    too_large,
)
from orchestrator.http.asgi.responses import overloaded
from orchestrator.http.errors.problems import ApiError

log = logging.getLogger(__name__)

UPLOAD: Final = "orchestrator.upload"  # key of the scope: the file of the body
FLOOR_BYTES: Final = 1 << 20  # so much of each upload is received, whatever the others have
BLOCK_BYTES: Final = 256 << 10  # written at a time, in a thread; each connection keeps so much in memory


class UploadFile(Protocol):
    """The file of a body."""

    size: int

    def write(self, block: bytes) -> None:
        """Append bytes; in a thread."""

    def discard(self) -> None:
        """Close the file, and delete it unless the view has kept it."""


def _refuse_image(_: OSError) -> ApiError:
    return overloaded("The store of images cannot be written.")


@dataclass(frozen=True)
class UploadLimits:
    """The limits of one upload.

    Attributes:
        max_bytes: The largest body.
        seconds: The time until the whole body has arrived.
        spool_bytes: The bytes of all incomplete bodies of this kind in the process.
        refuse_write: Returns the refusal of an upload whose file cannot be written.
    """

    max_bytes: int
    seconds: float
    spool_bytes: int
    refuse_write: Callable[[OSError], ApiError] = _refuse_image


def image_limits(_: Message) -> UploadLimits:
    """Return the limits of uploads to the registry of images."""
    return UploadLimits(settings.IMAGE_UPLOAD_LIMIT_BYTES, settings.IMAGE_UPLOAD_SECONDS, settings.IMAGE_SPOOL_BYTES)


class Uploads:
    """Receives the bodies of uploads of one kind in one process. Used from one event loop."""

    def __init__(
        self,
        share_of: Callable[[Message], str | ApiError | None],
        create: Callable[[], UploadFile],
        limits_of: Callable[[Message], UploadLimits] = image_limits,
    ) -> None:
        """Create the receiver.

        Args:
            share_of: Returns what a permitted upload is counted for, the refusal of another upload, and None for every
                other request. It may add to the scope what `limits_of` and the view need.
            create: Returns a new file.
            limits_of: Returns the limits of a permitted upload.
        """
        self.share_of, self._create, self._limits_of = share_of, create, limits_of
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="upload-writer")
        self._received: Counter[str] = Counter()  # bytes of bodies that are incomplete, by share

    async def receive(self, scope: Message, receive: Receive, share: str) -> UploadFile:
        """Receive a body.

        Args:
            scope: The ASGI scope of the request.
            receive: Its ASGI channel.
            share: What the upload is counted for.

        Raises:
            ApiError: 408, 413, 503 or 507. Part of the body was not read then, so the connection must be closed.
            ClientDisconnected: The client disconnected.
        """
        limits = self._limits_of(scope)
        declared = int(dict(scope["headers"]).get(b"content-length", b"0"))
        if declared > limits.max_bytes:
            raise too_large(limits.max_bytes)
        file = self._create()
        try:
            await self._fill(file, receive, share, limits)
        except TimeoutError:
            await self.discard(file)
            pause = settings.BODY_SECONDS
            detail = f"An upload must arrive within {limits.seconds:g} seconds, without a pause of {pause:g}."
            raise ApiError(408, "request_timeout", detail) from None
        except OSError as error:
            log.exception("an upload could not be written")
            await self.discard(file)
            raise limits.refuse_write(error) from None
        except BaseException:
            await self.discard(file)
            raise
        return file

    async def discard(self, file: UploadFile) -> None:
        """Close a file, and delete it unless it was kept."""
        await self._in_thread(file.discard)

    async def _fill(self, file: UploadFile, receive: Receive, share: str, limits: UploadLimits) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + limits.seconds
        size, pending, pending_bytes, has_more = 0, [], 0, True
        try:
            while has_more:
                # Only the client is timed: a write cannot be interrupted in its thread.
                async with asyncio.timeout(min(settings.BODY_SECONDS, deadline - loop.time())):
                    message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnected
                block, has_more = message.get("body", b""), message.get("more_body", False)
                size += len(block)
                self._count(share, len(block), size, limits.spool_bytes)
                if size > limits.max_bytes:
                    raise too_large(limits.max_bytes)
                pending.append(block)
                pending_bytes += len(block)
                if pending_bytes >= BLOCK_BYTES or (pending_bytes and not has_more):
                    await self._in_thread(file.write, b"".join(pending))
                    pending, pending_bytes = [], 0
        finally:
            self._received[share] -= size
            if not self._received[share]:
                del self._received[share]

    def _count(self, share: str, size: int, upload_size: int, spool_bytes: int) -> None:
        """Count received bytes. A share may have as many as are free: half of the limit if it is the only one.

        So some of the limit remains for others, however many shares have begun.
        """
        self._received[share] += size
        free = spool_bytes - self._received.total()
        if upload_size > FLOOR_BYTES and self._received[share] > free:
            raise overloaded("Too many uploads are being received.")

    async def _in_thread(self, function: Callable[..., None], *values: object) -> None:
        call = asyncio.get_running_loop().run_in_executor(self._threads, function, *values)
        try:
            await asyncio.shield(call)
        except asyncio.CancelledError:
            await asyncio.wait([call])  # a file that is discarded during a write would be created after that
            raise
