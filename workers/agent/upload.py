"""Uploads a run to ingest: the same bytes under the same key for every attempt, until ingest returns the run id."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from workers.agent.credentials import TokenFile
from workers.agent.errors import AgentError, ServerUnreachable
from workers.agent.failpoints import failpoint
from workers.agent.http.client import BUSY, is_transient, retry_after
from workers.agent.http.transport import HttpResponseData, Timeouts, Transport
from workers.agent.retry import Backoff
from workers.agent.sanitize import one_line

logger = logging.getLogger(__name__)

PATH = "/v1/ingest/run"
RUN_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
TIMEOUTS = Timeouts(connect=5, read=30, total=120)


class UploadRejected(AgentError):
    """Ingest refused this run; sending it again would not help. `str()` is its reason."""


class UploadFailed(AgentError):
    """Ingest could not be reached in time."""


@dataclass(frozen=True)
class IngestClient:
    """The client of the ingest service. `token`: the file to read again when ingest rejects the token."""

    transport: Transport
    timeouts: Timeouts = TIMEOUTS
    token: TokenFile | None = None

    def store(self, job_id: str, payload: bytes, *, budget: Callable[[float], bool], fence: int | None = None) -> str:
        """Return the id of the stored run, once ingest confirms that it holds these very bytes.

        Args:
            job_id: The job whose run it is; also the Idempotency-Key.
            payload: The body, the same bytes at each try.
            budget: Waits so many seconds and returns whether there is time for another try.
            fence: The fence of the lease under which the job ran.

        Raises:
            UploadRejected: Ingest refuses the run, or holds another one in its place.
            UploadFailed: The time ran out.
        """
        headers = {"Idempotency-Key": job_id} | ({} if fence is None else {"Lease-Fence": str(fence)})
        backoff = Backoff()
        while True:
            try:
                return self._try(job_id, payload, headers)
            except ServerUnreachable as error:
                logger.warning("upload failed job=%s error=%r", job_id, str(error))
                if not budget(backoff.next(error.retry_after)):
                    raise UploadFailed(f"the run could not be uploaded: {error}") from None

    def _try(self, job_id: str, payload: bytes, headers: dict[str, str]) -> str:
        answer = self.transport.post(PATH, payload, timeouts=self.timeouts, headers=headers, on_sent=_sent)
        if answer.status in {200, 201}:
            return _run_id(answer, job_id, payload)
        if answer.status == 401 and self.token is not None:
            self.token.reload()
        problem = _problem(answer)
        text = f"{answer.status} {_reason(problem)}".strip()
        may_pass = is_transient(answer.status, has_problem=bool(problem.get("code")))
        if answer.status == 401 and self.token is None:
            may_pass = False  # no token can be rotated
        if answer.status in BUSY or answer.status >= 500 or may_pass:
            raise ServerUnreachable(f"ingest: HTTP status {text}", retry_after(answer))
        raise UploadRejected(f"ingest refused the run: {text}")


def _sent() -> None:
    failpoint("worker.upload.sent")


def ingest_origin(server: str, ingest_url: str) -> str:
    """Return the origin of PATH: the server unless INGEST_URL names another place, with or without the path."""
    return (ingest_url or server).rstrip("/").removesuffix(PATH)


def _run_id(answer: HttpResponseData, job_id: str, payload: bytes) -> str:
    body = _json(answer)
    run_id = body.get("run_id")
    if answer.oversize or not isinstance(run_id, str) or not RUN_ID.fullmatch(run_id):
        raise UploadRejected("the response of ingest has no valid run id")
    if body.get("job_id", job_id) != job_id:
        raise UploadRejected("the response of ingest is for another job")
    if not _is_same_payload(body, payload):
        raise UploadRejected(f"ingest holds another payload for this job, as {run_id}")
    return run_id


def _is_same_payload(body: dict[str, Any], payload: bytes) -> bool:
    """Report whether ingest has what was sent, as far as its response says.

    `payload_match: false` says that it has not. A digest in the response is compared.
    """
    if body.get("payload_match", True) is not True:
        return False
    held = body.get("payload_sha256")
    if held is None:
        return True
    sent = json.loads(payload).get("payload_sha256")
    return held in {sent, hashlib.sha256(payload).hexdigest()}


def _problem(answer: HttpResponseData) -> dict[str, Any]:
    """Return the description of an error: a problem document, or the `error` member of the contract."""
    body = _json(answer)
    error = body.get("error")
    return error if isinstance(error, dict) else body


def _reason(problem: dict[str, Any]) -> str:
    words = [problem.get("code"), problem.get("message") or problem.get("detail")]
    return one_line(" ".join(str(word) for word in words if word), 400)


def _json(answer: HttpResponseData) -> dict[str, Any]:
    try:
        body = json.loads(answer.body)
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}
