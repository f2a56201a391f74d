"""The protocol of the sockets without input and output (contract 3.4, 3.6, 3.7 and 0.2).

The channel:

    connect -> IDLE --ready--> POLLING --claimed--> EXECUTING --final message, cancel--> IDLE
                ^                  +-- no job until the deadline --+ (IDLE)

The socket of one job is EXECUTING from its beginning, and closes where the channel becomes IDLE.

Each input returns effects, and `orchestrator.http.asgi.sockets` performs them. Messages are processed one after the
other: while an operation runs, no frame is received, except during a claim, when frames are discarded. Times are
seconds on the monotonic clock. All rules about the state of a job are in the operations.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from uuid import UUID

from orchestrator.http.asgi.sockets import (
    NORMAL,
    NOTHING,
    POLICY_VIOLATION,
    CloseSocket,
    DropSocket,
    Effects,
    SendText,
)
from orchestrator.http.asgi.websocket_protocol import GOING_AWAY, SHUTDOWN_REASON
from orchestrator.protocols.bencher.channel import messages
from orchestrator.protocols.bencher.channel.messages import (
    CanceledFrame,
    CompletedFrame,
    FailedFrame,
    FinalFrame,
    Frame,
    HeartbeatFrame,
    InvalidFrame,
    ReadyFrame,
    RunningFrame,
)


class Phase(StrEnum):
    """The phase of a session."""

    IDLE = "idle"
    POLLING = "polling"
    EXECUTING = "executing"
    CLOSED = "closed"


class Reply(StrEnum):
    """The outcome of a message about a job."""

    ACK = "ack"
    CANCEL = "cancel"
    REFUSED = "refused"  # the message does not fit the status of the job: the connection is dropped


class CloseReason(StrEnum):
    """The reason in a Close frame. Runners of document 002 get it as words, all others as a quoted name."""

    JOB_COMPLETED = "job_completed"
    JOB_FAILED = "job_failed"
    JOB_CANCELED = "job_canceled"
    JOB_CANCELED_BY_RUNNER = "job_canceled_by_runner"
    HEARTBEAT_TIMEOUT = "heartbeat_timeout"
    JOB_TIMEOUT_EXCEEDED = "job_timeout_exceeded"

    @property
    def quoted(self) -> str:
        return f'"{self}"'

    @property
    def words(self) -> str:
        return self.replace("_", " ")


@dataclass(frozen=True)
class LeasedJob:
    """The job of a session.

    Attributes:
        uuid: The id of the job in this protocol.
        handle: Identifies the lease for the operations.
        silence_seconds: The duration of the lease, which the installation may have changed since the job was
            submitted; None for that of the session.
    """

    uuid: UUID
    handle: Any = None
    silence_seconds: float | None = None


@dataclass(frozen=True)
class GrantedJob:
    """The result of a successful claim: the job, and the text frame for the runner."""

    job: LeasedJob
    frame: str


@dataclass(frozen=True)
class SilenceOutcome:
    """The result of `Expire`.

    Attributes:
        reason: Why the connection ends.
        retry_seconds: The lease is valid for so long, because its clock is another one; None if it has ended.
    """

    reason: CloseReason
    retry_seconds: float | None = None


# --- Operations: effects with a result --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Claim:
    """Wait for a job. The result is a GrantedJob, or None if there was none until the time, or the connection ended."""

    until: float


@dataclass(frozen=True)
class MarkRunning:
    """Acknowledge the lease and move the job to `executing`. The result is a Reply."""

    job: LeasedJob


@dataclass(frozen=True)
class Renew:
    """Extend the lease. The result is a Reply.

    Attributes:
        job: The job.
        can_wait: The runner sends heartbeats regularly, so that this one may wait for those of others.
    """

    job: LeasedJob
    can_wait: bool = True


@dataclass(frozen=True)
class Finish:
    """End the job of the session. The result is a Reply, ACK or REFUSED."""

    job: LeasedJob
    frame: FinalFrame


@dataclass(frozen=True)
class FinishLate:
    """End a job that the message names: a result after the connection was lost. The result is ACK or REFUSED."""

    frame: FinalFrame


@dataclass(frozen=True)
class Expire:
    """End the lease of a silent runner. The result is a SilenceOutcome."""

    job: LeasedJob


@dataclass(frozen=True)
class Release:
    """Return a job that was claimed for a runner whose connection has ended, before the runner could know of it."""

    job: LeasedJob


CLAIM_PAUSE = 1.0  # seconds after a claim that has failed; without it a fault would be repeated without end
MAX_EXPIRY_DELAY = 2.0  # seconds between the silence timer and the lease's expiry; a longer one has another cause


class RunnerSession:
    """A job in execution, and the end of the connection: equal on the channel and on the socket of one job."""

    kind = "runner"

    def __init__(self, *, silence_seconds: float, now: float, job: LeasedJob | None = None) -> None:
        """Begin after the handshake.

        Args:
            silence_seconds: RUNNER_HEARTBEAT_TIMEOUT_SECONDS.
            now: The time.
            job: The job of the socket; None on the channel.
        """
        self.silence_seconds = silence_seconds
        self.job = job
        self.phase = Phase.IDLE if job is None else Phase.EXECUTING
        self.deadline: float | None = now + self._silence_seconds
        self.operation: Any = None  # its result is due
        self._has_beaten = False  # during the execution of this job

    @property
    def accepts_frames(self) -> bool:
        return self.operation is None or isinstance(self.operation, Claim)

    # --- Inputs -------------------------------------------------------------------------------------------------------

    def parse(self, text: str) -> Frame | None:
        """Return the message in a text frame, or None for an invalid one."""
        try:
            return self._parse(text)
        except InvalidFrame:
            return None

    def receive_text(self, text: str, now: float) -> Effects:
        return self.receive(self.parse(text), now)

    def receive(self, frame: Frame | None, now: float) -> Effects:
        """Receive a message. None is an invalid one."""
        return self._execute(frame) if self.phase is Phase.EXECUTING else NOTHING

    def receive_bytes(self, now: float) -> Effects:
        """Ignore a binary frame."""
        return NOTHING

    def receive_control(self, now: float) -> Effects:
        """Ignore a ping or pong."""
        return NOTHING

    def advance(self, now: float) -> Effects:
        """Act on a runner that was silent for too long."""
        return self._run(Expire(self._leased_job()))

    def resolve(self, result: Any, now: float) -> Effects:
        operation, self.operation = self.operation, None
        if self.phase is Phase.CLOSED:
            return self._release(result)
        match operation:
            case MarkRunning() | Renew() | Finish():
                return self._reply(operation, result, now)
            case Expire():
                return self._after_silence(result, now)
        return NOTHING

    def fail_operation(self, now: float) -> Effects:
        self.operation = None
        return NOTHING if self.phase is Phase.CLOSED else self._drop()

    def end_connection(self) -> Effects:
        self._close()
        return NOTHING

    def shut_down(self) -> Effects:
        """Close the connection. A job in execution stays as it is."""
        if self.phase is Phase.CLOSED:
            return NOTHING
        self._close()
        return [CloseSocket(GOING_AWAY, SHUTDOWN_REASON)]

    def _parse(self, text: str) -> Frame:
        """Return the message in a text frame. Raises InvalidFrame."""
        raise NotImplementedError

    # --- A job in execution -------------------------------------------------------------------------------------------

    def _execute(self, frame: Frame | None) -> Effects:
        job = self._leased_job()
        match frame:
            case RunningFrame():
                return self._run(MarkRunning(job))
            case HeartbeatFrame():
                can_wait, self._has_beaten = self._has_beaten, True
                return self._run(Renew(job, can_wait))
            case CompletedFrame() | FailedFrame() | CanceledFrame():
                return self._run(Finish(job, frame))
            case ReadyFrame():
                return [SendText(self._ack())]
        return NOTHING

    def _reply(self, operation: MarkRunning | Renew | Finish, reply: Reply, now: float) -> Effects:
        if reply is Reply.REFUSED:
            return self._drop()
        if reply is Reply.CANCEL:
            return [SendText(messages.CANCEL), *self._end_job(CloseReason.JOB_CANCELED, now)]
        acknowledged = SendText(self._ack())
        if isinstance(operation, Finish):
            return [acknowledged, *self._end_job(_reason_of(operation.frame), now)]
        # From the commit on, because the lease is as long from there.
        self.deadline = now + self._silence_seconds
        return [acknowledged]

    def _after_silence(self, outcome: SilenceOutcome, now: float) -> Effects:
        if outcome.retry_seconds is not None and outcome.retry_seconds <= MAX_EXPIRY_DELAY:
            self.deadline = now + outcome.retry_seconds
            return NOTHING
        return self._close_with(self._silence_code(), outcome.reason)

    def _ack(self) -> str:
        """Return the acknowledgement of a message about the job in execution."""
        raise NotImplementedError

    def _end_job(self, reason: CloseReason, now: float) -> Effects:
        """Leave EXECUTING after the last frame about the job."""
        raise NotImplementedError

    def _silence_code(self) -> int:
        raise NotImplementedError

    def _render_reason(self, reason: CloseReason) -> str:
        return reason.quoted

    @property
    def _silence_seconds(self) -> float:
        """The time after which the runner of the job in execution, or an idle runner, is silent."""
        own = self.job.silence_seconds if self.job is not None else None
        return self.silence_seconds if own is None else own

    # --- Steps --------------------------------------------------------------------------------------------------------

    def _leased_job(self) -> LeasedJob:
        assert self.job is not None  # noqa: S101 a session in EXECUTING has a job
        return self.job

    def _run(self, operation: Any) -> Effects:
        self.operation, self.deadline = operation, None
        return [operation]

    def _close_with(self, code: int, reason: CloseReason) -> Effects:
        self._close()
        return [CloseSocket(code, self._render_reason(reason))]

    def _drop(self) -> Effects:
        self._close()
        return [DropSocket()]

    def _close(self) -> None:
        self.phase, self.deadline = Phase.CLOSED, None

    def _release(self, result: Any) -> Effects:
        """Return a job that was claimed while the connection ended."""
        return self._run(Release(result.job)) if isinstance(result, GrantedJob) else NOTHING


class ChannelSession(RunnerSession):
    """The channel: any number of jobs, one after the other."""

    kind = "channel"
    version = ""  # of the runner, as it last reported
    _poll_until = 0.0  # the time of `no_job`

    def receive(self, frame: Frame | None, now: float) -> Effects:
        if self.phase is Phase.IDLE:
            return self._receive_idle(frame, now)
        return super().receive(frame, now)  # which discards frames in POLLING

    def receive_bytes(self, now: float) -> Effects:
        return self._stay_idle(now)

    def receive_control(self, now: float) -> Effects:
        return self._stay_idle(now)

    def advance(self, now: float) -> Effects:
        """Act on a runner that was silent for too long, or repeat a claim that has failed."""
        match self.phase:
            case Phase.IDLE:
                return self._drop()
            case Phase.POLLING:
                return self._after_claim(None, now)
        return super().advance(now)

    def resolve(self, result: Any, now: float) -> Effects:
        if self.phase is not Phase.CLOSED:
            match self.operation:
                case Claim():
                    self.operation = None
                    return self._after_claim(result, now)
                case FinishLate(frame):
                    self.operation = None
                    return self._after_late_result(frame, result, now)
        return super().resolve(result, now)

    def fail_operation(self, now: float) -> Effects:
        if isinstance(self.operation, Claim) and self.phase is not Phase.CLOSED:
            self.operation, self.deadline = None, min(self._poll_until, now + CLAIM_PAUSE)
            return NOTHING  # the claim is repeated until its time is up
        return super().fail_operation(now)

    def _receive_idle(self, frame: Frame | None, now: float) -> Effects:
        match frame:
            case None | FailedFrame(job=None):  # the beginning of a message that names no job
                return self._drop()
            case ReadyFrame(poll_seconds, version):
                self.phase, self._poll_until = Phase.POLLING, now + poll_seconds
                self.version = version or self.version
                return self._run(Claim(self._poll_until))
            case CompletedFrame() | FailedFrame() | CanceledFrame():
                return self._run(FinishLate(frame))
        return self._stay_idle(now)  # late beats of the job before: a reply would be taken for that to `ready`

    def _after_claim(self, granted: GrantedJob | None, now: float) -> Effects:
        if granted is not None:
            self.phase, self.job, self._has_beaten = Phase.EXECUTING, granted.job, False
            self.deadline = now + self._silence_seconds
            return [SendText(granted.frame)]
        if now < self._poll_until:
            return self._run(Claim(self._poll_until))
        return [SendText(messages.NO_JOB), *self._become_idle(now)]

    def _after_late_result(self, frame: FinalFrame, reply: Reply, now: float) -> Effects:
        if reply is Reply.REFUSED:
            return self._drop()
        assert frame.job is not None  # noqa: S101 the channel's messages name their job
        return [SendText(messages.render_ack(frame.job)), *self._become_idle(now)]

    def _stay_idle(self, now: float) -> Effects:
        return self._become_idle(now) if self.phase is Phase.IDLE else NOTHING

    def _become_idle(self, now: float) -> Effects:
        self.phase, self.job = Phase.IDLE, None
        self.deadline = now + self._silence_seconds
        return NOTHING

    def _parse(self, text: str) -> Frame:
        return messages.parse_channel_frame(text)

    def _ack(self) -> str:
        return messages.render_ack(self._leased_job().uuid)

    def _end_job(self, reason: CloseReason, now: float) -> Effects:
        return self._become_idle(now)

    def _silence_code(self) -> int:
        return NORMAL


class JobSession(RunnerSession):
    """The socket of one job, which was claimed by a long poll. It closes after the last frame."""

    kind = "job"

    def __init__(self, *, silence_seconds: float, now: float, job: LeasedJob, has_subprotocol: bool = False) -> None:
        """Begin after the handshake.

        Args:
            silence_seconds: RUNNER_HEARTBEAT_TIMEOUT_SECONDS.
            now: The time.
            job: The job.
            has_subprotocol: The runner has sent its key as subprotocol, so it is one of document 002.
        """
        super().__init__(silence_seconds=silence_seconds, now=now, job=job)
        self._is_of_document = has_subprotocol

    def receive(self, frame: Frame | None, now: float) -> Effects:
        if isinstance(frame, CompletedFrame | FailedFrame) and frame.is_flat:
            self._is_of_document = True
        return super().receive(frame, now)

    def _parse(self, text: str) -> Frame:
        return messages.parse_job_frame(text)

    def _ack(self) -> str:
        return messages.ACK_WITHOUT_JOB

    def _end_job(self, reason: CloseReason, now: float) -> Effects:
        return self._close_with(NORMAL, reason)

    def _silence_code(self) -> int:
        return POLICY_VIOLATION

    def _render_reason(self, reason: CloseReason) -> str:
        return reason.words if self._is_of_document else reason.quoted


def _reason_of(frame: FinalFrame) -> CloseReason:
    match frame:
        case CompletedFrame():
            return CloseReason.JOB_COMPLETED
        case FailedFrame():
            return CloseReason.JOB_FAILED
    return CloseReason.JOB_CANCELED_BY_RUNNER
