"""Delivers a spooled result: uploads and completes, or reports the failure.

It is the same for a job that has just ended and for a result that an earlier process of this worker left.
"""

from __future__ import annotations

import json
import logging
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from workers.agent.errors import LeaseRejected, RequestRejected, ServerUnreachable
from workers.agent.failpoints import failpoint
from workers.agent.http.client import OrchestratorClient, encoded
from workers.agent.next_claim import NextClaim
from workers.agent.result_spool import ResultSpool, SpoolEntry
from workers.agent.retry import RetryBudget
from workers.agent.upload import IngestClient, UploadFailed, UploadRejected

logger = logging.getLogger(__name__)

# The server keeps the payload of a failed upload, but accepts no body over 1 MiB.
MAX_ENCLOSED_BYTES = 1_000_000


@dataclass(frozen=True)
class ResultDelivery:
    """Delivers results.

    Attributes:
        client: The server.
        ingest: The ingest service.
        spool: The results on disk.
        upload_seconds: How long an upload is tried.
        message_seconds: How long a final message is tried.
    """

    client: OrchestratorClient
    ingest: IngestClient
    spool: ResultSpool
    upload_seconds: float = 600.0
    message_seconds: float = float("inf")

    def deliver(self, entry: SpoolEntry, *, over: threading.Event, next_claim: NextClaim | None = None) -> None:
        """Deliver `entry` and remove it; keep it if `over` is set before that, or if the server may accept it later.

        Args:
            entry: The result.
            over: Set when no more messages may be sent.
            next_claim: The claim that goes with the final message. A result of an earlier process has none: it is
                delivered before this process claims.
        """
        job_id = entry.lease.job.job_id
        try:
            self._upload(entry, over, next_claim or NextClaim())
        except LeaseRejected as stale:
            logger.warning("result dropped: the lease has ended job=%s reason=%s", job_id, stale.reason)
        except RequestRejected as refusal:
            if not refusal.is_final:
                logger.warning("result kept in the spool job=%s error=%r", job_id, str(refusal))
                return
            logger.error("result dropped: the server refused it job=%s error=%r", job_id, str(refusal))  # noqa: TRY400 - the text is all there is
        except (ServerUnreachable, UploadFailed):
            logger.warning("result kept in the spool job=%s", job_id)
            return
        self.spool.remove(entry)

    def _upload(self, entry: SpoolEntry, over: threading.Event, next_claim: NextClaim) -> None:
        job_id = entry.lease.job.job_id
        if not entry.payload:
            self._report(entry, over, next_claim)
            return
        try:
            budget = RetryBudget(over, self.upload_seconds)
            run_id = self.ingest.store(job_id, entry.payload, budget=budget, fence=entry.lease.fence)
        except UploadRejected as refusal:
            self._fail(entry, {"reason": "upload_rejected", "message": str(refusal)}, over, next_claim)
        except UploadFailed as failure:
            if over.is_set():
                raise
            self._fail(
                entry, {"reason": "upload_failed", "message": str(failure), **_enclosed(entry)}, over, next_claim
            )
        else:
            failpoint("worker.ingest.acked")
            self._complete(entry, run_id, over, next_claim)

    def _complete(self, entry: SpoolEntry, run_id: str, over: threading.Event, next_claim: NextClaim) -> None:
        result = {"ingest_run_id": run_id, "uploaded_at": datetime.now(UTC).isoformat(), **entry.final}
        failpoint("worker.complete.send")
        next_claim.send(
            lambda offer: self.client.complete(entry.lease, result, offer),
            budget=RetryBudget(over, self.message_seconds),
        )
        logger.info("result uploaded job=%s run=%s", entry.lease.job.job_id, run_id)

    def _report(self, entry: SpoolEntry, over: threading.Event, next_claim: NextClaim) -> None:
        """Send the final message of a job that has no run."""
        call = self.client.fail if entry.final["status"] == "failed" else self.client.complete
        failpoint("worker.complete.send")
        next_claim.send(
            lambda offer: call(entry.lease, entry.final, offer), budget=RetryBudget(over, self.message_seconds)
        )
        logger.info("job ended job=%s status=%s", entry.lease.job.job_id, entry.final["status"])

    def _fail(self, entry: SpoolEntry, result: dict[str, Any], over: threading.Event, next_claim: NextClaim) -> None:
        logger.error(
            "job failed job=%s reason=%s message=%r", entry.lease.job.job_id, result["reason"], result["message"]
        )
        result |= {name: entry.final[name] for name in ("exit_code", "log_truncated") if name in entry.final}
        next_claim.send(
            lambda offer: self.client.fail(entry.lease, result, offer), budget=RetryBudget(over, self.message_seconds)
        )

    def _budget(self, over: threading.Event) -> RetryBudget:
        return RetryBudget(over, self.message_seconds)


def _enclosed(entry: SpoolEntry) -> dict[str, Any]:
    payload = json.loads(entry.payload)
    # Measured as the client sends it: characters outside of ASCII grow.
    return {"payload": payload} if len(encoded(payload)) <= MAX_ENCLOSED_BYTES else {}
