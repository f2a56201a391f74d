"""Keeps every lease of this worker alive from one thread, and hears there what the server wants of each job."""

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
BATCH_WINDOW = 0.25  # of the interval: whose heartbeat is due so soon goes along with another one's
MAX_BATCH = 256  # in one call; the server's own bound
PHASES = ("starting", "checking_out", "executing", "uploading")


@dataclass(frozen=True)
class PendingHeartbeat:
    """A heartbeat on its way."""

    active: ActiveLease
    sent_at: float
    phase: str | None
    progress: dict[str, Any] | None

    @property
    def body(self) -> dict[str, Any]:
        return _message(self.phase, self.progress)


class HeartbeatSender:
    """`hold` a lease and it is renewed until `drop`, or until the server or the clock says that it is over."""

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

    def report_phase(self, active: ActiveLease, phase: str, *, within: float = 0.0) -> None:
        """Tell the server the job's phase, by a heartbeat that leaves in so many seconds and not before."""
        active.phase_at = self._clock() + within
        active.phase = phase
        active.due = min(active.due, active.phase_at)
        self._wake()

    def report_progress(self, active: ActiveLease, progress: dict[str, Any]) -> None:
        """Tell the server how far the job is, by a heartbeat that leaves now."""
        active.progress = progress
        active.due = self._clock()
        self._wake()

    def send_due(self) -> None:
        """Send every heartbeat whose time has come, those of several leases in one call. A lease that is not trusted
        any more is the trust window's."""
        now = self._clock()
        trusted = [active for active in self._leases.all() if now < active.local_deadline]
        due = [active for active in trusted if active.due <= now]
        if due:  # those whose time is near go along: so leases that were taken one by one come into step
            near = [
                active
                for active in trusted
                if active.due - now <= active.lease.heartbeat_interval_seconds * BATCH_WINDOW
            ]
            self._send([*due, *(active for active in near if active not in due)][:MAX_BATCH])

    def _send(self, active: list[ActiveLease]) -> None:
        beats = [self._pending(active) for active in active]
        within = max(min(MAX_ATTEMPT_SECONDS, *(beat.active.local_deadline - beat.sent_at for beat in beats)), 0.05)
        for beat, response in zip(beats, self._responses(beats, within), strict=True):
            self._handle_response(beat, response)

    def _pending(self, active: ActiveLease) -> PendingHeartbeat:
        sent_at = self._clock()
        # In this order: whoever announces a phase from here on moves the next heartbeat nearer again.
        active.due = sent_at + _next_interval(active)
        phase, progress = active.phase if active.phase_at <= sent_at else None, active.progress
        if active.phase is not None and phase is None:
            active.due = min(active.due, active.phase_at)
        return PendingHeartbeat(active, sent_at, phase, progress)

    def _responses(self, beats: list[PendingHeartbeat], within: float) -> Sequence[HeartbeatResponse | AgentError]:
        try:
            if len(beats) == 1:
                return [self._client.heartbeat(beats[0].active.lease, beats[0].body, within=within)]
            return self._client.heartbeat_many([(beat.active.lease, beat.body) for beat in beats], within=within)
        except (ServerUnreachable, RequestRejected, ProtocolError) as trouble:
            return [trouble] * len(beats)

    def _handle_response(self, beat: PendingHeartbeat, response: HeartbeatResponse | AgentError) -> None:
        active = beat.active
        if isinstance(response, LeaseRejected):
            self.remove(active)
            active.owner.lost(response.reason)
        elif isinstance(response, AgentError):
            if isinstance(response, ServerConflict) and beat.phase:
                _clear_phase(active, beat.phase)  # it was overtaken on its way; without it the lease can be renewed
            self._on_failure(active, response)
        else:
            if active.progress is beat.progress:  # unless it went on meanwhile
                active.progress = None
            self._on_renewed(active, beat.phase, beat.sent_at, response)

    def _on_renewed(self, active: ActiveLease, phase: str | None, sent_at: float, beat: HeartbeatResponse) -> None:
        if active.failures:
            logger.info("job %s: heartbeats are answered again", active.lease.job.job_id)
        active.failures = 0
        active.extend(sent_at)
        _clear_phase(active, phase)
        if beat.cancel_requested:
            active.owner.canceled(beat.cancel_reason, beat.cancel_deadline_seconds)

    def _on_failure(self, active: ActiveLease, trouble: Exception) -> None:
        if not active.failures:
            logger.warning("job %s: heartbeat not accepted: %s", active.lease.job.job_id, trouble)
        active.failures += 1
        backoff = Backoff(first=min(2.0 ** (active.failures - 1), active.lease.heartbeat_interval_seconds))
        active.due = self._clock() + backoff.next(getattr(trouble, "retry_after", None))

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
    if active.phase == phase:  # unless another one was announced meanwhile
        active.phase = None
