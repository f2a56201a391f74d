"""The messages of one job to the server. Final messages are retried until they are received or `over` is set."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from workers.agent.errors import ServerConflict
from workers.agent.http.client import OrchestratorClient
from workers.agent.http.wire import CacheDownload, LeasePayload, StartedSteps, StepPayload
from workers.agent.next_claim import NextClaim
from workers.agent.outcomes import JobFailed, JobReleased
from workers.agent.retry import RetryBudget, retry

logger = logging.getLogger(__name__)


class LeaseClient:
    """The client of one lease.

    All calls raise LeaseRejected, ServerConflict and RequestRefused, and ServerUnreachable once `over` is set.
    """

    def __init__(self, client: OrchestratorClient, lease: LeasePayload, next_claim: NextClaim | None = None) -> None:
        self.over = threading.Event()  # no more messages about this job
        self._client = client
        self._lease = lease
        self._next_claim = next_claim or NextClaim()
        self._job_id = lease.job.job_id

    def acknowledge(self) -> None:
        budget = RetryBudget(self.over, self._lease.acknowledge_within_seconds)
        retry(lambda: self._client.acknowledge(self._lease), budget=budget)

    def report(self, phase: str) -> None:
        """Report the phase once: an unreachable server must not delay the job."""
        self._client.report(self._lease, phase)

    def log(self, seq: int, chunk: bytes, *, step: int = 0) -> None:
        self._client.log(self._lease, seq, chunk, step=step)

    def start_steps(self) -> StartedSteps:
        """Return what is needed before the first step of a workflow job."""
        return retry(lambda: self._client.start_steps(self._lease), budget=RetryBudget(self.over))

    def begin_step(self, index: int, state: dict[str, Any]) -> StepPayload:
        """Begin a step of a workflow job, and return what to do."""
        return retry(lambda: self._client.begin_step(self._lease, index, state), budget=RetryBudget(self.over))

    def end_step(self, index: int, conclusion: str) -> None:
        """End a step of a workflow job."""
        retry(lambda: self._client.end_step(self._lease, index, conclusion), budget=RetryBudget(self.over))

    def store_output(self, output: bytes, *, within: float) -> str:
        """Store the output of the job, and return its name; an unreachable server is tried again for a while."""
        budget = RetryBudget(self.over, within)
        return retry(lambda: self._client.store_output(self._lease, output), budget=budget)

    def begin_artifact(self, name: str, size_bytes: int) -> str:
        """Announce an artifact once, and return the address of its upload."""
        return self._client.begin_artifact(self._lease, name, size_bytes)

    def restore_cache(self, key: str, version: str) -> CacheDownload | None:
        """Return the cache entry of the key and version, or None."""
        return self._client.restore_cache(self._lease, key, version)

    def save_cache(self, key: str, version: str, size_bytes: int) -> str | None:
        """Announce a cache entry once, and return the address of its upload; None if there is one."""
        return self._client.save_cache(self._lease, key, version, size_bytes)

    def fail(self, failure: JobFailed, facts: dict[str, Any] | None = None) -> None:
        """End the job as failed. `facts`: further members of the result."""
        logger.warning("job failed job=%s reason=%s message=%r", self._job_id, failure.reason, str(failure))
        result: dict[str, Any] = {"reason": failure.reason, "message": str(failure), **(facts or {})}
        result |= {} if failure.exit_code is None else {"exit_code": failure.exit_code}
        self._next_claim.send(
            lambda offer: self._client.fail(self._lease, result, offer), budget=RetryBudget(self.over)
        )

    def release(self, release: JobReleased) -> None:
        try:
            self._retry(lambda: self._client.release(self._lease, str(release), unable=release.unable))
        except ServerConflict:  # too late to release it
            self.fail(JobFailed(release.otherwise, str(release)))
        else:
            logger.warning("job released job=%s message=%r", self._job_id, str(release))

    def acknowledge_cancel(self) -> None:
        self._retry(lambda: self._client.acknowledge_cancel(self._lease, "The command was stopped."))
        logger.info("job canceled job=%s", self._job_id)

    def _retry(self, call: Callable[[], None]) -> None:
        retry(call, budget=RetryBudget(self.over))
