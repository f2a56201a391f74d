"""Hands a run to ingest: the same bytes under the same key as often as it takes, until it names the run."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from workers.agent.backoff import Backoff
from workers.agent.client import BUSY, retry_after
from workers.agent.errors import AgentError, Unreachable
from workers.agent.failpoints import failpoint
from workers.agent.transport import Answer, Patience, Transport
from workers.agent.words import one_line

logger = logging.getLogger(__name__)

PATH = "/v1/ingest/run"
RUN_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
PATIENCE = Patience(connect=5, read=30, total=120)


class UploadRejected(AgentError):
    """Ingest refuses this run; sending it again would not help. `str()` is its reason in words."""


class UploadFailed(AgentError):
    """Ingest could not be reached while there was time."""


@dataclass(frozen=True)
class Ingest:
    """Where runs go."""

    transport: Transport
    patience: Patience = PATIENCE

    def store(self, job_id: str, payload: bytes, *, pause: Callable[[float], bool]) -> str:
        """Return the run's id. `pause` waits so many seconds and says whether there is time for another try.

        Raises UploadRejected, UploadFailed."""
        backoff = Backoff()
        while True:
            try:
                return self._try(job_id, payload)
            except Unreachable as trouble:
                logger.warning("job %s: ingest: %s", job_id, trouble)
                if not pause(backoff.next(trouble.retry_after)):
                    raise UploadFailed(f"the run could not be uploaded: {trouble}") from None

    def _try(self, job_id: str, payload: bytes) -> str:
        headers = {"Idempotency-Key": job_id}
        answer = self.transport.post(PATH, payload, patience=self.patience, headers=headers, on_sent=_sent)
        if answer.status in {200, 201}:
            return _run_id(answer, job_id)
        if answer.status in BUSY or answer.status >= 500:
            raise Unreachable(f"it answered {answer.status}", retry_after(answer))
        raise UploadRejected(f"ingest refused the run: {answer.status} {_reason(answer)}".strip())


def _sent() -> None:
    failpoint("worker.upload.sent")


def ingest_origin(server: str, ingest_url: str) -> str:
    """Return where PATH hangs: at the server unless INGEST_URL names another place, with or without the path."""
    return (ingest_url or server).rstrip("/").removesuffix(PATH)


def _run_id(answer: Answer, job_id: str) -> str:
    body = _json(answer)
    run_id = body.get("run_id")
    if answer.oversize or not isinstance(run_id, str) or not RUN_ID.fullmatch(run_id):
        raise UploadRejected("ingest answered without a valid run id")
    if body.get("job_id", job_id) != job_id:
        raise UploadRejected("ingest answered for another job")
    return run_id


def _reason(answer: Answer) -> str:
    """Both shapes of error count: a problem document, and the contract's `error` member."""
    body = _json(answer)
    error = body.get("error")
    told = error if isinstance(error, dict) else body
    words = [told.get("code"), told.get("message") or told.get("detail")]
    return one_line(" ".join(str(word) for word in words if word), 400)


def _json(answer: Answer) -> dict[str, Any]:
    try:
        body = json.loads(answer.body)
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}
