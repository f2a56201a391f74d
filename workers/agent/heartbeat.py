"""Renews every lease of this worker from one thread, and handles the server's requests in the responses."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from workers.agent.active_leases import ActiveLease, ActiveLeases, boottime
from workers.agent.crash import CrashHandler
from workers.agent.errors import (
    AgentError,
    LeaseRejected,
    ProtocolError,
    RequestRejected,
    ServerConflict,
    ServerUnreachable,
)
from workers.agent.http.client import HeartbeatResponse, OrchestratorClient
from workers.agent.retry import Backoff

logger = logging.getLogger(__name__)

JITTER = 0.2
MAX_ATTEMPT_SECONDS = 10.0
BATCH_WINDOW = 0.25  # of the interval: heartbeats due so soon join a batch
MAX_BATCH = 256  # in one call; the server's own bound
PHASES = ("starting", "checking_out", "executing", "uploading")


@dataclass(frozen=True)
class PendingHeartbeat:
    """A heartbeat that is being sent."""

    active: ActiveLease
    sent_at: float
    phase: str | None
    progress: dict[str, Any] | None

    @property
    def body(self) -> dict[str, Any]:
        return _message(self.phase, self.progress)


class HeartbeatSender:
    """Renews a lease from `add` until `remove`, or until the server or the local deadline ends it."""

    def __init__(
        self,
        client: OrchestratorClient,
        leases: ActiveLeases,
        clock: Callable[[], float] = boottime,
        *,
        crash_handler: CrashHandler | None = None,
    ) -> None:
        self._client = client
        self._leases = leases
        self._clock = clock
        self._closing = False
        self._condition = threading.Condition()
        run = (crash_handler or CrashHandler()).run
        self._thread = threading.Thread(target=run, args=(self._run,), name="heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        with self._condition:
            self._closing = True
            self._condition.notify_all()

    def add(self, active: ActiveLease) -> None:
        active.due = self._clock() + _next_interval(active)
        self._leases.add(active)
        self._wake()

    def remove(self, active: ActiveLease) -> None:
        self._leases.discard(active)

    def report_phase(self, active: ActiveLease, phase: str, *, delay: float = 0.0) -> None:
        """Report the phase of the job by a heartbeat.

        Args:
            active: The lease.
            phase: The phase.
            delay: How many seconds to wait before it is sent.
        """
        active.phase_at = self._clock() + delay
        active.phase = phase
        active.due = min(active.due, active.phase_at)
        self._wake()

    def report_progress(self, active: ActiveLease, progress: dict[str, Any]) -> None:
        """Report the progress of the job by a heartbeat that is sent now."""
        active.progress = progress
        active.due = self._clock()
        self._wake()

    def send_due(self) -> None:
        """Send every heartbeat that is due, those of several leases in one call.

        Skips leases past their local deadline: the watchdog ends those.
        """
        now = self._clock()
        trusted = [active for active in self._leases.all() if now < active.local_deadline]
        due = [active for active in trusted if active.due <= now]
        if due:  # include heartbeats due soon, so that renewals are sent in one batch
            near = [
                active
                for active in trusted
                if active.due - now <= active.lease.heartbeat_interval_seconds * BATCH_WINDOW
            ]
            self._send([*due, *(active for active in near if active not in due)][:MAX_BATCH])

    def _send(self, active: list[ActiveLease]) -> None:
        pending = [self._pending(active) for active in active]
        within = max(
            min(MAX_ATTEMPT_SECONDS, *(heartbeat.active.local_deadline - heartbeat.sent_at for heartbeat in pending)),
            0.05,
        )
        for heartbeat, response in zip(pending, self._responses(pending, within), strict=True):
            self._handle_response(heartbeat, response)

    def _pending(self, active: ActiveLease) -> PendingHeartbeat:
        sent_at = self._clock()
        # In this order: a phase that is reported from here on moves the next heartbeat forward again.
        active.due = sent_at + _next_interval(active)
        phase, progress = active.phase if active.phase_at <= sent_at else None, active.progress
        if active.phase is not None and phase is None:
            active.due = min(active.due, active.phase_at)
        return PendingHeartbeat(active, sent_at, phase, progress)

    def _responses(self, pending: list[PendingHeartbeat], within: float) -> Sequence[HeartbeatResponse | AgentError]:
        try:
            if len(pending) == 1:
                return [self._client.heartbeat(pending[0].active.lease, pending[0].body, within=within)]
            return self._client.heartbeat_many(
                [(heartbeat.active.lease, heartbeat.body) for heartbeat in pending], within=within
            )
        except (ServerUnreachable, RequestRejected, ProtocolError) as error:
            return [error] * len(pending)

    def _handle_response(self, heartbeat: PendingHeartbeat, response: HeartbeatResponse | AgentError) -> None:
        active = heartbeat.active
        if isinstance(response, LeaseRejected):
            self.remove(active)
            active.owner.lost(response.reason)
        elif isinstance(response, AgentError):
            if isinstance(response, ServerConflict) and heartbeat.phase:
                _clear_phase(active, heartbeat.phase)  # the phase is outdated; without it the lease can be renewed
            self._on_failure(active, response)
        else:
            if active.progress is heartbeat.progress:  # unless there is newer progress
                active.progress = None
            self._on_renewed(active, heartbeat.phase, heartbeat.sent_at, response)

    def _on_renewed(self, active: ActiveLease, phase: str | None, sent_at: float, heartbeat: HeartbeatResponse) -> None:
        if active.failures:
            logger.info("heartbeats succeed again job=%s", active.lease.job.job_id)
        active.failures = 0
        active.extend(sent_at)
        _clear_phase(active, phase)
        if heartbeat.cancel_requested:
            active.owner.canceled(heartbeat.cancel_reason, heartbeat.cancel_deadline_seconds)

    def _on_failure(self, active: ActiveLease, error: Exception) -> None:
        if not active.failures:
            logger.warning("heartbeat failed job=%s error=%r", active.lease.job.job_id, str(error))
        active.failures += 1
        backoff = Backoff(first=min(2.0 ** (active.failures - 1), active.lease.heartbeat_interval_seconds))
        active.due = self._clock() + backoff.next(getattr(error, "retry_after", None))

    def _run(self) -> None:
        while True:
            with self._condition:
                if self._closing:
                    return
                now = self._clock()
                dues = [active.due for active in self._leases.all() if now < active.local_deadline]
                self._condition.wait(max(min(dues) - now, 0.0) if dues else None)
            self.send_due()

    def _wake(self) -> None:
        with self._condition:
            self._condition.notify_all()


def _next_interval(active: ActiveLease) -> float:
    return active.lease.heartbeat_interval_seconds * random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311 - not a secret


def _message(phase: str | None, progress: dict[str, Any] | None) -> dict[str, Any]:
    body: dict[str, Any] = {} if phase is None else {"phase": phase}
    if progress is not None:
        body["progress"] = progress
    elif phase is not None:
        body["progress"] = {"current_step": phase, "step_index": PHASES.index(phase)}
    return body


def _clear_phase(active: ActiveLease, phase: str | None) -> None:
    if active.phase == phase:  # unless a newer phase is pending
        active.phase = None
