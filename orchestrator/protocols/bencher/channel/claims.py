"""Claims jobs for a runner: one claim for the channel and for the long poll.

A runner without work waits in the registry of all long polls. A notification wakes it, and polling is the path of
correctness. Each attempt reads the hardware specs of the runner anew.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import DatabaseError, InterfaceError

from leases.scheduling.claims import Offer
from orchestrator.core.db_scope import release_connection_after
from orchestrator.http.asgi.long_poll import FIRST, offer_key
from orchestrator.http.auth.authentication import touch_last_seen
from orchestrator.protocols.bencher.channel.wire import serialize_claimed_job
from orchestrator.pubsub.hub import NotificationHub
from orchestrator.pubsub.metrics import ATTEMPTS
from orchestrator.pubsub.waiters import OfferKey, WakeReason
from orchestrator.services import claiming, heartbeat, job_end
from orchestrator.services.claiming import Claimed, ClaimOrder
from runtime_jobs.db_errors import log_level_of
from runtime_jobs.errors import LifecycleError
from runtime_jobs.specs.oci import OCI
from runtime_jobs.states import FailureReason
from workers.models import Worker
from workers.registry.matching import runner_offer

log = logging.getLogger(__name__)

MAX_FAULTY_ORDERS = 16  # that one attempt ends; the next attempt continues
DATABASE_PAUSE_SECONDS = 1.0


@dataclass(frozen=True)
class RunnerClaim:
    """The result of one attempt.

    Attributes:
        offer: What the runner offered.
        claimed: The job and its lease, or None.
        claimed_job: The claimed job of contract 3.3; empty without a job.
    """

    offer: OfferKey
    claimed: Claimed | None
    claimed_job: dict[str, Any]


def claim_for_runner(worker: Worker) -> RunnerClaim:
    """Claim the next job for a runner; see `claim_for_runners`."""
    (found,) = claim_for_runners([worker])
    if isinstance(found, Exception):
        raise found
    return found


def claim_for_runners(workers: Sequence[Worker]) -> list[RunnerClaim | Exception]:
    """Claim the next job for each of these runners, by one statement for those that offer the same.

    The runners must acknowledge the leases. An order that cannot be rendered fails its job for good, and the claim is
    repeated: it blocks no other job.

    Args:
        workers: The runners.

    Returns:
        The claim of each, or its error, which concerns no other runner.
    """
    offers = [_offer(worker) for worker in workers]
    results: list[RunnerClaim | Exception] = [RunnerClaim(key, None, {}) for _, key in offers]
    waiting = list(range(len(workers)))
    for _ in range(MAX_FAULTY_ORDERS):
        found = claiming.claim_for_workers(
            [ClaimOrder(workers[place], offers[place][0], acknowledge=True) for place in waiting]
        )
        faulty: list[int] = []
        for place, claims in zip(waiting, found, strict=True):
            if isinstance(claims, Exception):
                results[place] = claims
            elif claims:
                try:
                    rendered = _render(offers[place][1], claims[0], workers[place])
                except Exception as error:  # noqa: BLE001 it concerns no other runner
                    results[place] = error
                    continue
                if rendered is None:
                    faulty.append(place)
                else:
                    results[place] = rendered
        waiting = faulty
        if not waiting:
            break
    return results


def _offer(worker: Worker) -> tuple[Offer, OfferKey]:
    labels, isolation = runner_offer(worker)
    offer = Offer(worker.worker_id, worker.pool.slug, (OCI,), frozenset(labels), isolation)
    return offer, offer_key(worker.pool.slug, [OCI, labels, isolation])


def _render(key: OfferKey, claimed: Claimed, worker: Worker) -> RunnerClaim | None:
    """Return the claim with its order; None if that cannot be rendered, and its job has failed."""
    try:
        return RunnerClaim(key, claimed, serialize_claimed_job(claimed.job, worker))
    except (DatabaseError, InterfaceError):
        give_back(claimed.lease.lease_ulid, worker)
        raise
    except Exception as error:
        log.exception("the order of job %s cannot be rendered", claimed.job.job_ulid)
        _fail_order(claimed, worker, error)
    return None


def give_back(lease_ulid: str, worker: Worker) -> None:
    """Return a job to the queue that the runner has not received."""
    try:
        heartbeat.release(lease_ulid=lease_ulid, worker=worker, message="The runner did not receive the job.")
    except LifecycleError as refusal:  # it has expired, or the job was canceled
        log.info("the lease of a job was not given back: %s", refusal.code)
    except (DatabaseError, InterfaceError) as error:
        log.log(log_level_of(error), "a job was not returned to the queue, its lease expires: %s", type(error).__name__)


def _fail_order(claimed: Claimed, worker: Worker, error: Exception) -> None:
    """Fail a job for good. If that fails, its lease expires."""
    message = f"The order of this job cannot be sent to a runner: {type(error).__name__}. Submit it again."
    try:
        job_end.fail(
            lease_ulid=claimed.lease.lease_ulid,
            worker=worker,
            reason=FailureReason.WORKER_ERROR,
            message=message,
            is_final=True,
        )
    except LifecycleError as refusal:  # another caller has changed the job; else its lease expires
        log.warning("job %s without an order was not ended: %s", claimed.job.job_ulid, refusal.code)


ClaimForRunner = Callable[[Worker], Awaitable[RunnerClaim]]


class JobWait:
    """One runner that waits for a job, without a thread and without a database connection."""

    def __init__(self, worker: Worker, *, hub: NotificationHub, claim: ClaimForRunner) -> None:
        """Prepare to wait.

        Args:
            worker: The runner.
            hub: The hub of the running event loop.
            claim: Makes an attempt, together with those of other runners.
        """
        self._worker, self._hub, self._waiters = worker, hub, hub.waiters
        self._claim = claim
        self._offer: OfferKey | None = None
        self._notifications = 0

    async def claim(self, until: float, ended: "asyncio.Future[None]") -> RunnerClaim | None:
        """Claim until there is a job.

        Args:
            until: The end of the wait, on the monotonic clock.
            ended: Done once the runner has disconnected.

        Returns:
            The job, or None: the time is up or the runner has disconnected. Never earlier.
        """
        await self._hub.start()
        reason: WakeReason = FIRST
        while True:
            found = await self._attempt(reason, ended)
            if found is not None:
                return found
            next_reason = await self._wait(until, ended)
            if next_reason is None:
                return None
            reason = next_reason

    async def _attempt(self, reason: WakeReason, ended: "asyncio.Future[None]") -> RunnerClaim | None:
        found: RunnerClaim | None = None
        outcome = "gone"
        offer = self._offer
        try:
            if not ended.done():
                outcome = "refused"
                self._notifications = self._waiters.notifications
                found = await self._claim(self._worker)
                outcome = "nothing" if found.claimed is None else "work"
                self._offer = found.offer
        except (DatabaseError, InterfaceError) as error:
            log.log(log_level_of(error), "a runner could not claim: %s", type(error).__name__)
            if offer is None:  # nothing to wait by yet
                await asyncio.wait({ended}, timeout=DATABASE_PAUSE_SECONDS)
        finally:
            if offer is not None:
                self._waiters.end_attempt(offer, reason, found_work={"work": True, "nothing": False}.get(outcome))
        ATTEMPTS.labels(reason.cause, outcome).inc()
        self._wake_next(offer or self._offer, reason, outcome)
        return found if outcome == "work" else None

    def _wake_next(self, offer: OfferKey | None, reason: WakeReason, outcome: str) -> None:
        """Wake other waiters: for more work after work was found, for another attempt after none was found."""
        if offer is None:
            return
        if outcome == "work":
            if not self._waiters.on_work_found(offer):
                self._hub.notify_other_processes(offer.pool)
        elif outcome == "gone":
            self._waiters.wake(offer, reason)
        else:
            self._waiters.on_empty(offer, reason)

    async def _wait(self, until: float, ended: "asyncio.Future[None]") -> WakeReason | None:
        """Wait for a reason to try again. Returns None once the time is up or the runner has disconnected."""
        while not ended.done() and (seconds := until - time.monotonic()) > 0:
            if self._offer is None:
                return FIRST
            reason = await self._waiters.wait(
                self._offer, notifications=self._notifications, seconds=seconds, disconnected=ended
            )
            if reason is not None:
                if not ended.done():
                    return reason
                self._waiters.wake(self._offer, reason)
                self._waiters.end_attempt(self._offer, reason)
            elif self._waiters.is_closed:  # the process stops, and the socket will be closed
                await asyncio.wait({ended}, timeout=until - time.monotonic())
        return None


@release_connection_after
def claim_for_channels(workers: Sequence[Worker]) -> list[RunnerClaim | Exception]:
    """Claim for runners whose connections authenticate no requests that would record that they are online."""
    touch_last_seen(*workers)
    return claim_for_runners(workers)
