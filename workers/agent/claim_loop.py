"""Claims jobs while there are free slots, and runs each in a thread of its own, until it is stopped.

The final message of a job claims the next one for its slot (`next_claim`). A slot that gets none joins the next claim.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from ulid import ULID

from workers.agent.errors import (
    LeaseRejected,
    ProtocolError,
    RequestRefused,
    RequestRejected,
    ServerUnreachable,
    WorkerStartError,
)
from workers.agent.failpoints import failpoint
from workers.agent.http.client import ClaimOffer, OrchestratorClient
from workers.agent.http.wire import LeasePayload
from workers.agent.next_claim import NextClaim
from workers.agent.readiness import Unready
from workers.agent.retry import Backoff, RetryBudget, retry
from workers.agent.slots import WorkerSlots

logger = logging.getLogger(__name__)

# Also how long the first signal waits for a claim in flight: an aborted claim could leave a job leased to a worker that
# has ended.
WAIT_SECONDS = 5.0
WAIT_SECONDS_ONCE = 30.0
REFUSED_SECONDS = 10.0  # between claims of a worker that the server rejects: its token may be rotated
MAX_CLAIMED = 64  # in one call; the server's own bound
UNREADY_SECONDS = 5.0  # between looks whether the worker may claim again
REPORT_SECONDS = 30.0  # between reports that it may not
SHUTDOWN_SECONDS = 10.0  # for the final messages of jobs that a second signal stops


class JobAttempt(Protocol):
    """One job in one slot. `run` never raises; the other methods may be called from any thread."""

    def run(self) -> None: ...

    def abandon(self) -> None:
        """Stop the job now, report it to the server, and end."""
        ...

    def stop_reporting(self) -> None:
        """Send nothing more to the server."""
        ...


@dataclass(frozen=True)
class ActiveJob:
    """A lease, the slot for its job, and the claim that goes with the final message of the job."""

    lease: LeasePayload
    slot: int
    next_claim: NextClaim = field(default_factory=NextClaim)


class ClaimLoop:
    """The loop of claims."""

    def __init__(
        self,
        *,
        client: OrchestratorClient,
        offer: ClaimOffer,
        slots: WorkerSlots,
        start_attempt: Callable[[ActiveJob], JobAttempt],
        unready: Callable[[], Unready | None] = lambda: None,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        """Make the loop.

        Args:
            client: The client.
            offer: What the worker offers.
            slots: The places for jobs.
            start_attempt: Starts a job.
            unready: Returns why the worker does not claim now, or None. Any thread may call it.
            wait_seconds: How long the server may wait for a job.
        """
        self._client = client
        self._offer = offer
        self._slots = slots
        self._unready = unready
        self._reported_at = -math.inf  # when the server last learned that the worker is not ready
        self._start_attempt = start_attempt
        self._wait_seconds = wait_seconds
        self._key, self._requested = str(ULID()), 0  # of the current claim, and for how many jobs; 0: none
        self._backoff = Backoff()
        self._claims_next = True
        self._is_claiming = False
        self.draining = threading.Event()
        self._abandoning = threading.Event()
        self._running: dict[threading.Thread, JobAttempt] = {}
        self._lock = threading.Lock()

    def drain(self) -> None:
        """Claim no more; finish the running jobs."""
        self.draining.set()  # first, so that the line is true when it is read
        logger.info("draining: no more claims running=%d", len(self._running))

    def abandon(self) -> None:
        """Claim no more; stop the running jobs."""
        with self._lock:
            self._abandoning.set()
            self.draining.set()
            running = list(self._running.values())
        logger.warning("stopping all jobs running=%d", len(running))
        for attempt in running:
            attempt.abandon()

    def run(self, *, once: bool = False) -> None:
        """Work until drained, or for one claim. Returns when no job runs.

        Raises:
            WorkerStartError: The server will never let this worker claim.
        """
        self._claims_next = not once
        try:
            while not self.draining.is_set():
                worked = self._claim_once(once=once)
                if once and worked is not None:
                    return
        finally:
            self._drain()

    def _claim_once(self, *, once: bool) -> bool | None:
        """Claim once. True: a job runs; False: there is none; None: no request was sent or answered."""
        if unready := self._unready():
            self._report(unready)
            self.draining.wait(UNREADY_SECONDS)
            return None
        self._reported_at = -math.inf
        slots = self._free_slots(once=once)
        if not slots:
            return None
        if self.draining.is_set():  # while the loop waited for a slot
            for slot in slots:
                self._slots.release(slot)
            return None
        claimed: list[ActiveJob] = []
        self._is_claiming = True
        try:
            claimed = self._claim(slots, WAIT_SECONDS_ONCE if once else self._wait_seconds)
        except (ServerUnreachable, RequestRejected, ProtocolError) as error:
            self._handle_claim_error(error, once=once)
            return None
        finally:
            self._is_claiming = False
            for slot in slots[len(claimed) :]:
                self._slots.release(slot)
        self._backoff.reset()
        self._reset_request()
        for job in claimed:
            self._start(job)
        return bool(claimed)

    def _free_slots(self, *, once: bool) -> list[int]:
        """Take all free slots. After an error as many as before, because a key belongs to one request."""
        slot = self._slots.take(within=1)
        if slot is None:
            return []
        self._requested = self._requested or (1 if once else MAX_CLAIMED)
        slots = [slot, *self._slots.take_free(self._requested - 1)]
        self._requested = len(slots)
        return slots

    def _reset_request(self) -> None:
        self._key, self._requested = str(ULID()), 0

    def _claim(self, slots: list[int], wait_seconds: float) -> list[ActiveJob]:
        leases = self._client.claim(self._offer, wait_seconds=wait_seconds, key=self._key, max_leases=len(slots))
        if leases:
            failpoint("worker.claimed")
        return [self._active_job(lease, slot) for lease, slot in zip(leases, slots, strict=False)]

    def _active_job(self, lease: LeasePayload, slot: int) -> ActiveJob:
        return ActiveJob(lease, slot, NextClaim(self._next_offer))

    def _next_offer(self) -> ClaimOffer | None:
        """Return the offer for a slot that becomes free, or None if the slot would not claim now.

        While a claim waits, there is no job for this worker: the slot joins the claim after it.
        """
        if not self._claims_next or self._is_claiming or self.draining.is_set() or self._unready():
            return None
        return self._offer

    def _handle_claim_error(self, error: Exception, *, once: bool) -> None:
        """Wait before the next claim. It keeps its key if there was no response, which the server then sends again."""
        if isinstance(error, LeaseRejected):
            raise WorkerStartError("a newer process of this worker is active")
        if not isinstance(error, ServerUnreachable):
            self._reset_request()
        if once and isinstance(error, RequestRefused):
            raise WorkerStartError(f"the server refused the claim: {error}")
        logger.warning("claim failed error=%r", str(error))
        longer = REFUSED_SECONDS if isinstance(error, RequestRefused) else getattr(error, "retry_after", None)
        self.draining.wait(self._backoff.next(longer))

    def _start(self, claimed: ActiveJob) -> None:
        logger.info("job claimed job=%s slot=%d", claimed.lease.job.job_id, claimed.slot)
        if self.draining.is_set():
            self._release(claimed)
            return
        attempt = self._start_attempt(claimed)
        # A thread that lives as long as the job: the parent-death signal of its processes counts the thread.
        thread = threading.Thread(target=self._work, args=(attempt, claimed), daemon=True)
        with self._lock:
            self._running[thread] = attempt
            thread.start()
            abandoned = self._abandoning.is_set()
        if abandoned:
            attempt.abandon()

    def _work(self, attempt: JobAttempt, claimed: ActiveJob) -> None:
        try:
            attempt.run()
        finally:
            try:
                self._pass_on(claimed)
            finally:
                # Last: a drain waits for this thread until the next job runs, or its lease is released.
                with self._lock:
                    self._running.pop(threading.current_thread(), None)

    def _pass_on(self, ended: ActiveJob) -> None:
        """Start the next job in the slot of the job that has ended, or free the slot."""
        lease = ended.next_claim.lease
        if lease is None:
            self._slots.release(ended.slot)
            return
        failpoint("worker.claimed")
        self._start(self._active_job(lease, ended.slot))

    def _release(self, claimed: ActiveJob) -> None:
        job_id = claimed.lease.job.job_id
        try:
            retry(
                lambda: self._client.release(claimed.lease, "the worker is stopping", unable=False),
                budget=RetryBudget(self._abandoning, SHUTDOWN_SECONDS),
            )
            logger.info("job released: the worker is stopping job=%s", job_id)
        except (ServerUnreachable, RequestRejected) as error:
            logger.warning("job not released job=%s error=%r", job_id, str(error))
        finally:
            self._slots.release(claimed.slot)

    def _drain(self) -> None:
        while self._attempts() and not self._abandoning.is_set():
            self._abandoning.wait(0.1)
        self._wait_for_jobs(SHUTDOWN_SECONDS)
        for attempt in self._attempts():
            attempt.stop_reporting()
        self._wait_for_jobs(2)

    def _wait_for_jobs(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while self._attempts() and time.monotonic() < until:
            time.sleep(0.05)

    def _attempts(self) -> list[JobAttempt]:
        with self._lock:
            return list(self._running.values())

    def _report(self, unready: Unready) -> None:
        """Say why there are no claims, again and again: a worker that is silent is taken for offline."""
        if time.monotonic() - self._reported_at < REPORT_SECONDS:
            return
        self._reported_at = time.monotonic()
        logger.error("no claims: %s", unready.message)
        try:
            self._client.report_unready(unready.reason, unready.message)
        except (ServerUnreachable, RequestRejected) as error:
            logger.warning("the server does not know that there are no claims error=%r", str(error))
