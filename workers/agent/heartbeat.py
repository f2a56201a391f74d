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

    held: ActiveLease
    sent_at: float
    phase: str | None
    progress: dict[str, Any] | None

    @property
    def body(self) -> dict[str, Any]:
        return _body(self.phase, self.progress)


class HeartbeatSender:
    """`hold` a lease and it is renewed until `drop`, or until the server or the clock says that it is over."""

    def __init__(
        self,
        client: OrchestratorClient,
        holdings: ActiveLeases,
        clock: Callable[[], float] = boottime,
        *,
        crash_handler: CrashHandler | None = None,
    ) -> None:
        self._client = client
        self._holdings = holdings
        self._clock = clock
        self._closing = False
        self._woken = threading.Condition()
        run = (crash_handler or CrashHandler()).run
        self._thread = threading.Thread(target=run, args=(self._run,), name="heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        with self._woken:
            self._closing = True
            self._woken.notify_all()

    def hold(self, held: ActiveLease) -> None:
        held.due = self._clock() + _next_interval(held)
        self._holdings.add(held)
        self._wake()

    def drop(self, held: ActiveLease) -> None:
        self._holdings.discard(held)

    def announce(self, held: ActiveLease, phase: str, *, within: float = 0.0) -> None:
        """Tell the server the job's phase, by a heartbeat that leaves in so many seconds and not before."""
        held.phase_at = self._clock() + within
        held.phase = phase
        held.due = min(held.due, held.phase_at)
        self._wake()

    def show(self, held: ActiveLease, progress: dict[str, Any]) -> None:
        """Tell the server how far the job is, by a heartbeat that leaves now."""
        held.progress = progress
        held.due = self._clock()
        self._wake()

    def beat_due(self) -> None:
        """Send every heartbeat whose time has come, those of several leases in one call. A lease that is not trusted
        any more is the trust window's."""
        now = self._clock()
        trusted = [held for held in self._holdings.all() if now < held.trust_until]
        due = [held for held in trusted if held.due <= now]
        if due:  # those whose time is near go along: so leases that were taken one by one come into step
            near = [held for held in trusted if held.due - now <= held.lease.heartbeat_interval_seconds * BATCH_WINDOW]
            self._beat([*due, *(held for held in near if held not in due)][:MAX_BATCH])

    def _beat(self, helds: list[ActiveLease]) -> None:
        beats = [self._prepared(held) for held in helds]
        within = max(min(MAX_ATTEMPT_SECONDS, *(beat.held.trust_until - beat.sent_at for beat in beats)), 0.05)
        for beat, answer in zip(beats, self._answers(beats, within), strict=True):
            self._heard(beat, answer)

    def _prepared(self, held: ActiveLease) -> PendingHeartbeat:
        sent_at = self._clock()
        # In this order: whoever announces a phase from here on moves the next heartbeat nearer again.
        held.due = sent_at + _next_interval(held)
        phase, progress = held.phase if held.phase_at <= sent_at else None, held.progress
        if held.phase is not None and phase is None:
            held.due = min(held.due, held.phase_at)
        return PendingHeartbeat(held, sent_at, phase, progress)

    def _answers(self, beats: list[PendingHeartbeat], within: float) -> Sequence[HeartbeatResponse | AgentError]:
        try:
            if len(beats) == 1:
                return [self._client.heartbeat(beats[0].held.lease, beats[0].body, within=within)]
            return self._client.heartbeat_many([(beat.held.lease, beat.body) for beat in beats], within=within)
        except (ServerUnreachable, RequestRejected, ProtocolError) as trouble:
            return [trouble] * len(beats)

    def _heard(self, beat: PendingHeartbeat, answer: HeartbeatResponse | AgentError) -> None:
        held = beat.held
        if isinstance(answer, LeaseRejected):
            self.drop(held)
            held.holder.lost(answer.reason)
        elif isinstance(answer, AgentError):
            if isinstance(answer, ServerConflict) and beat.phase:
                _forget(held, beat.phase)  # it was overtaken on its way; without it the lease can be renewed
            self._missed(held, answer)
        else:
            if held.progress is beat.progress:  # unless it went on meanwhile
                held.progress = None
            self._accepted(held, beat.phase, beat.sent_at, answer)

    def _accepted(self, held: ActiveLease, phase: str | None, sent_at: float, beat: HeartbeatResponse) -> None:
        if held.failures:
            logger.info("job %s: heartbeats are answered again", held.lease.job.job_id)
        held.failures = 0
        held.renewed(sent_at)
        _forget(held, phase)
        if beat.cancel_requested:
            held.holder.canceled(beat.cancel_reason, beat.cancel_deadline_seconds)

    def _missed(self, held: ActiveLease, trouble: Exception) -> None:
        if not held.failures:
            logger.warning("job %s: heartbeat not accepted: %s", held.lease.job.job_id, trouble)
        held.failures += 1
        backoff = Backoff(first=min(2.0 ** (held.failures - 1), held.lease.heartbeat_interval_seconds))
        held.due = self._clock() + backoff.next(getattr(trouble, "retry_after", None))

    def _run(self) -> None:
        while True:
            with self._woken:
                if self._closing:
                    return
                now = self._clock()
                dues = [held.due for held in self._holdings.all() if now < held.trust_until]
                self._woken.wait(max(min(dues) - now, 0.0) if dues else None)
            self.beat_due()

    def _wake(self) -> None:
        with self._woken:
            self._woken.notify_all()


def _next_interval(held: ActiveLease) -> float:
    return held.lease.heartbeat_interval_seconds * random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311 - not a secret


def _body(phase: str | None, progress: dict[str, Any] | None) -> dict[str, Any]:
    body: dict[str, Any] = {} if phase is None else {"phase": phase}
    if progress is not None:
        body["progress"] = progress
    elif phase is not None:
        body["progress"] = {"current_step": phase, "step_index": PHASES.index(phase)}
    return body


def _forget(held: ActiveLease, phase: str | None) -> None:
    if held.phase == phase:  # unless another one was announced meanwhile
        held.phase = None
