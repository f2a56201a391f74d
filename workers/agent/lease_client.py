"""What one job says to the server. Final words are repeated until they are heard, or nobody may speak any more."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from workers.agent.errors import ServerConflict
from workers.agent.http.client import OrchestratorClient
from workers.agent.http.wire import LeasePayload
from workers.agent.outcomes import JobFailed, JobReleased
from workers.agent.retry import RetryBudget, retry

logger = logging.getLogger(__name__)


class LeaseClient:
    """All calls raise StaleLease, Conflict, Refused, and Unreachable once `over` is set."""

    def __init__(self, client: OrchestratorClient, lease: LeasePayload) -> None:
        self.over = threading.Event()  # nothing more may be said about this job
        self._client = client
        self._lease = lease
        self._job_id = lease.job.job_id

    def acknowledge(self) -> None:
        budget = RetryBudget(self.over, self._lease.acknowledge_within_seconds)
        retry(lambda: self._client.acknowledge(self._lease), budget=budget)

    def report(self, phase: str) -> None:
        """Tell the phase, once: a server that cannot be reached now shall not hold up the job."""
        self._client.report(self._lease, phase)

    def log(self, seq: int, chunk: bytes, *, step: int = 0) -> None:
        self._client.log(self._lease, seq, chunk, step=step)

    def fail(self, failure: JobFailed) -> None:
        logger.warning("job %s: %s: %s", self._job_id, failure.reason, failure)
        result: dict[str, Any] = {"reason": failure.reason, "message": str(failure)}
        result |= {} if failure.exit_code is None else {"exit_code": failure.exit_code}
        self._retry(lambda: self._client.fail(self._lease, result))

    def release(self, release: JobReleased) -> None:
        try:
            self._retry(lambda: self._client.release(self._lease, str(release), unable=release.unable))
        except ServerConflict:  # it is too late for that
            self.fail(JobFailed(release.otherwise, str(release)))
        else:
            logger.warning("job %s: given back: %s", self._job_id, release)

    def acknowledge_cancel(self) -> None:
        self._retry(lambda: self._client.acknowledge_cancel(self._lease, "The command was stopped."))
        logger.info("job %s: canceled", self._job_id)

    def _retry(self, call: Callable[[], None]) -> None:
        retry(call, budget=RetryBudget(self.over))
