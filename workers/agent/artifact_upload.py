"""Uploads the artifacts of a job.

The files are what a command left, and its processes are gone. No link is followed, and exactly the announced bytes are
sent. An artifact that cannot be stored costs the job only this artifact.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from workers.agent.errors import AgentError, LeaseRejected, RequestRefused
from workers.agent.object_transfer import ATTEMPT_SECONDS, ObjectTransfer, TransferStopped, open_below
from workers.agent.retry import RetryBudget, retry
from workers.agent.sanitize import one_line

logger = logging.getLogger(__name__)

SECONDS = 600.0  # for all artifacts of a job: the server fails a job that uploads for longer than 900
# Quotas, permission, a server without this operation: the same for the next artifact.
_NO_FURTHER = frozenset({402, 403, 404, 429})


class ArtifactAnnouncer(Protocol):
    """The messages about artifacts of one lease."""

    over: threading.Event

    def begin_artifact(self, name: str, size_bytes: int) -> str:
        """Announce an artifact, and return the address of its upload."""


class ArtifactUploader:
    """Uploads the artifacts of one job."""

    def __init__(self, client: ArtifactAnnouncer, is_stopped: Callable[[], bool], seconds: float = SECONDS) -> None:
        self._client = client
        self._transfer = ObjectTransfer(client.over, is_stopped, seconds)

    def upload_all(self, folder: Path, files: list[dict[str, Any]]) -> dict[str, AgentError | OSError]:
        """Upload the files, and mark those that are stored with `stored`. Returns the errors of the others, by path.

        After an error that each further file would have, no further one is tried.

        Args:
            folder: The folder that the paths are relative to.
            files: Their descriptions, from `artifacts.find_artifacts`.

        Raises:
            LeaseRejected: The lease is no longer valid.
        """
        errors: dict[str, AgentError | OSError] = {}
        for file in files:
            try:
                self._upload(folder, file["path"], file["size_bytes"])
                file["stored"] = True
            except LeaseRejected:
                raise
            except (AgentError, OSError) as error:
                logger.warning("artifact not stored path=%r error=%r", one_line(file["path"]), one_line(error))
                errors[file["path"]] = error
                is_refused = isinstance(error, RequestRefused) and error.status in _NO_FURTHER
                if is_refused or isinstance(error, TransferStopped):
                    break
        return errors

    def _upload(self, folder: Path, path: str, size: int) -> None:
        self._transfer.require_time()
        with open_below(folder, path) as file:
            if os.fstat(file.fileno()).st_size != size:
                raise OSError("the file has changed since it was found")
            budget = RetryBudget(self._client.over, ATTEMPT_SECONDS)
            url = retry(lambda: self._client.begin_artifact(path, size), budget=budget)
            self._transfer.put(url, file, size)
