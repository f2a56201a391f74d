"""Pulls an image by its digest from the registry of the worker's own server. No other registry is ever asked.

Every byte is checked before it is used: size and digest of each blob while it arrives, limits of the manifest before
the first blob.
"""

from __future__ import annotations

import errno
import hashlib
import json
import time
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import IO

from workers.agent.errors import AgentError, ServerUnreachable
from workers.agent.http.transport import HttpResponseData, Timeouts, Transport
from workers.agent.outcomes import JobFailed, JobReleased, JobStopped
from workers.agent.retry import RetryBudget, retry
from workers.agent.sanitize import one_line, scrubbed
from workers.engines.contract import StopSignal
from workers.engines.oci import documents
from workers.engines.oci.documents import ContentDescriptor, ImageInvalid, Manifest
from workers.engines.oci.images import LayerFile, PulledImage

ATTEMPT_SECONDS = 60.0  # in which an unreachable registry is tried again
_SECONDS = 600.0  # the token of a pull is valid for so long
_CHECKED_BYTES = 8 << 20  # after so many the disk of the worker is looked at again
_CONNECT_SECONDS, _SILENCE_SECONDS = 5.0, 30.0


class _Wrong(AgentError):
    """The content is not the announced one."""


class ImagePull:
    """The pull of one image. `pull` is called once. Raises JobFailed, JobReleased and JobStopped."""

    def __init__(
        self,
        transport: Transport,
        *,
        repository: str,
        token: str,
        stop: StopSignal,
        shortage: Callable[[], str | None],
    ) -> None:
        """Prepare the pull.

        Args:
            transport: The connections to the server.
            repository: The repository of the image.
            token: The permission to pull from it.
            stop: Ends the pull early.
            shortage: Returns why the disk of the worker has no room for more, or None.
        """
        self._transport, self._token, self._stop, self._shortage = transport, token, stop, shortage
        self._unchecked = _CHECKED_BYTES
        self._path = f"/v2/{repository}"
        self._until = time.monotonic() + _SECONDS

    def pull(self, digest: str, folder: Path, max_bytes: int) -> PulledImage:
        """Pull an image into a directory, and return what an engine needs to unpack it.

        Args:
            digest: The digest of its manifest or index.
            folder: An empty directory.
            max_bytes: The limit of all blobs together.
        """
        try:
            manifest = self._manifest(digest, max_bytes)
            config = documents.read_config(self._small(manifest.config), len(manifest.layers))
            for layer in {layer.digest: layer for layer in manifest.layers}.values():
                self._blob(layer, folder / _name(layer))
        except ImageInvalid as invalid:
            raise JobFailed("image_invalid", str(invalid)) from None
        layers = zip(manifest.layers, config.diff_ids, strict=True)
        files = tuple(LayerFile(_name(layer), documents.compression_of(layer), diff) for layer, diff in layers)
        return PulledImage(config, files)

    def _manifest(self, digest: str, max_bytes: int) -> Manifest:
        for _ in range(documents.MAX_INDEX_DEPTH + 1):
            body = bytearray()
            answer = self._get(f"manifests/{digest}", digest, documents.MAX_MANIFEST_BYTES, body.extend, body.clear)
            media_type = answer.headers.get("Content-Type", "").partition(";")[0].strip()
            found = documents.read_manifest(bytes(body), media_type)
            if isinstance(found, Manifest):
                if found.size > max_bytes:
                    raise ImageInvalid(f"The image has {found.size:,} bytes, and at most {max_bytes:,} are allowed.")
                return found
            digest = found.digest
        raise ImageInvalid(f"The image has more than {documents.MAX_INDEX_DEPTH} indexes inside of each other.")

    def _small(self, blob: ContentDescriptor) -> bytes:
        body = bytearray()
        self._get(f"blobs/{blob.digest}", blob.digest, blob.size, body.extend, body.clear, is_exact=True)
        return bytes(body)

    def _blob(self, blob: ContentDescriptor, path: Path) -> None:
        try:
            with path.open("xb") as file:
                path.chmod(0o644)
                self._get(
                    f"blobs/{blob.digest}",
                    blob.digest,
                    blob.size,
                    lambda data: self._write(file, data),
                    lambda: _restart(file),
                    is_exact=True,
                )
        except OSError as error:
            raise _failure_to_write(error) from None

    def _write(self, file: IO[bytes], data: bytes) -> None:
        self._unchecked += len(data)
        if self._unchecked >= _CHECKED_BYTES:
            self._unchecked = 0
            if found := self._shortage():
                raise JobReleased(found, unable=True, otherwise="worker_disk_full")
        try:
            file.write(data)
        except OSError as error:  # else it would count as an error of the network
            raise _failure_to_write(error) from None

    def _get(
        self,
        path: str,
        digest: str,
        size: int,
        sink: Callable[[bytes], object],
        restart: Callable[[], object],
        *,
        is_exact: bool = False,
    ) -> HttpResponseData:
        """GET content of a known digest.

        Args:
            path: Below the repository.
            digest: The digest.
            size: The size, or the maximum.
            sink: Receives the content.
            restart: Called before each attempt, to drop what came before.
            is_exact: Whether `size` is the size.
        """

        def attempt() -> HttpResponseData:
            received, hashed = 0, hashlib.new(digest.partition(":")[0])
            restart()

            def take(data: bytes) -> None:
                nonlocal received
                if self._stop.requested.is_set():
                    raise JobStopped
                received += len(data)
                if received > size:
                    raise _Wrong(f"it has more than {size:,} bytes")
                hashed.update(data)
                sink(data)

            answer = self._transport.get(
                f"{self._path}/{path}",
                timeouts=Timeouts(_CONNECT_SECONDS, _SILENCE_SECONDS, max(self._until - time.monotonic(), 0.001)),
                sink=take,
                headers={"Accept": ", ".join((*documents.MANIFESTS, *documents.INDEXES, "*/*"))},
                token=self._token,
            )
            self._require_content(answer)
            if is_exact and received < size:
                raise ServerUnreachable(f"the content ended after {received} of {size} bytes")
            if hashed.hexdigest() != digest.partition(":")[2]:
                raise _Wrong("it has another digest")
            return answer

        budget = RetryBudget(self._stop.requested, min(ATTEMPT_SECONDS, self._until - time.monotonic()))
        try:
            return retry(attempt, budget=budget)
        except _Wrong as wrong:
            raise JobFailed("image_pull_failed", f"The registry's content is not {digest}: {wrong}.") from None
        except ServerUnreachable as error:
            if self._stop.requested.is_set():
                raise JobStopped from None
            raise JobFailed("image_pull_failed", f"The image could not be pulled: {one_line(error, 200)}.") from None

    def _require_content(self, answer: HttpResponseData) -> None:
        """Raise the registry's refusal, in its own words."""
        if answer.status == HTTPStatus.OK:
            return
        if answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR or answer.status == HTTPStatus.TOO_MANY_REQUESTS:
            raise ServerUnreachable(f"the registry answered {answer.status}")
        try:
            entry = json.loads(answer.body)["errors"][0]
            words = scrubbed(f": {entry['code']}, {entry['message']}", [(self._token, "…")], 200)
        except (ValueError, LookupError, TypeError, RecursionError):
            words = ""
        raise JobFailed("image_pull_failed", f"The registry refused the image with {answer.status}{words}")


def _name(layer: ContentDescriptor) -> str:
    return layer.digest.replace(":", "-")


def _restart(file: IO[bytes]) -> None:
    file.seek(0)
    file.truncate()


def _failure_to_write(error: OSError) -> AgentError:
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return JobFailed("image_invalid", "The image is too large: its layers do not fit into the limit of an image.")
    return JobFailed("worker_error", f"The image could not be stored: {error.strerror}.")
