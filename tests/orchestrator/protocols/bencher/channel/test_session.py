"""The protocol of the sockets as tables: one row for each rule of contract 3.4, 3.7 and 0.2."""

import asyncio
import json
import time
from uuid import UUID

import pytest

from orchestrator.http.asgi.sockets import CloseSocket, DropSocket, SendText, SocketDriver
from orchestrator.protocols.bencher.channel.messages import (
    CanceledFrame,
    CompletedFrame,
    FailedFrame,
    parse_channel_frame,
)
from orchestrator.protocols.bencher.channel.session import (
    ChannelSession,
    Claim,
    CloseReason,
    Expire,
    Finish,
    FinishLate,
    GrantedJob,
    JobSession,
    LeasedJob,
    MarkRunning,
    Phase,
    Release,
    Renew,
    Reply,
    SilenceOutcome,
)

SILENCE = 90.0
JOB = LeasedJob(UUID("0190a5d4-9d3c-7bbb-8f00-000000000001"), "the lease")
OTHER = UUID("0190a5d4-9d3c-7bbb-8f00-000000000002")
GRANTED = GrantedJob(JOB, '{"event":"job"}')
ACK = SendText(f'{{"event":"ack","job":"{JOB.uuid}"}}')
ACK_OTHER = SendText(f'{{"event":"ack","job":"{OTHER}"}}')
CANCEL = SendText('{"event":"cancel"}')
NO_JOB = SendText('{"event":"no_job"}')
SHUTDOWN = CloseSocket(1001, "server shutting down")


def text(event, **members):
    return json.dumps({"event": event, **members})


READY = text("ready", poll_timeout=30)
RUNNING, HEARTBEAT = text("running"), text("heartbeat")
COMPLETED = text("completed", job=str(OTHER), results=[{"exit_code": 0}])
FAILED = text("failed", job=str(OTHER), results=[], error="x")
CANCELED = text("canceled", job=str(OTHER))
FINAL = [COMPLETED, FAILED, CANCELED]
GARBAGE = ["", "x", "[]", text("unknown"), text("ready", poll_timeout=0), text("ready", poll_timeout=901)]


def idle(now=0.0):
    return ChannelSession(silence_seconds=SILENCE, now=now)


def polling(now=0.0):
    session = idle()
    assert session.receive_text(READY, now) == [Claim(now + 30)]
    return session


def executing(now=0.0):
    session = polling(now)
    assert session.resolve(GRANTED, now) == [SendText(GRANTED.frame)]
    assert (session.phase, session.deadline) == (Phase.EXECUTING, now + SILENCE)
    return session


def of_job(**options):
    return JobSession(silence_seconds=SILENCE, now=0.0, job=JOB, **options)


# --- IDLE -------------------------------------------------------------------------------------------------------------


def test_idle_ready_begins_to_poll_without_an_ack():
    session = idle()
    assert session.receive_text(READY, 5) == [Claim(35)]
    assert (session.phase, session.deadline, session.accepts_frames) == (Phase.POLLING, None, True)


def test_idle_ready_waits_30_seconds_by_default():
    assert idle().receive_text(text("ready"), 5) == [Claim(35)]


@pytest.mark.parametrize("frame", [RUNNING, HEARTBEAT])
def test_idle_late_beats_are_ignored_without_a_reply(frame):
    session = idle()
    assert session.receive_text(frame, 5) == ()
    assert (session.phase, session.deadline) == (Phase.IDLE, 5 + SILENCE)


@pytest.mark.parametrize("frame", GARBAGE)
def test_idle_an_invalid_frame_drops_the_connection(frame):
    session = idle()
    assert session.receive_text(frame, 5) == [DropSocket()]
    assert (session.phase, session.deadline) == (Phase.CLOSED, None)


@pytest.mark.parametrize("frame", FINAL)
def test_idle_a_final_message_is_acknowledged_with_its_own_job(frame):
    session = idle()
    assert session.receive_text(frame, 5) == [FinishLate(parse_channel_frame(frame))]
    assert (session.accepts_frames, session.deadline) == (False, None)
    assert session.resolve(Reply.ACK, 6) == [ACK_OTHER]
    assert (session.phase, session.accepts_frames, session.deadline) == (Phase.IDLE, True, 6 + SILENCE)


@pytest.mark.parametrize("frame", FINAL)
def test_idle_a_refused_final_message_drops_the_connection_without_an_ack(frame):
    session = idle()
    session.receive_text(frame, 5)
    assert session.resolve(Reply.REFUSED, 6) == [DropSocket()]


@pytest.mark.parametrize("receive", ["receive_bytes", "receive_control"])
def test_idle_any_frame_restarts_the_idle_timer(receive):
    session = idle()
    assert getattr(session, receive)(5) == ()
    assert session.deadline == 5 + SILENCE


def test_idle_silence_drops_the_connection():
    session = idle()
    assert session.deadline == SILENCE
    assert session.advance(SILENCE) == [DropSocket()]


def test_idle_the_end_of_the_connection_has_no_effect():
    session = idle()
    assert session.end_connection() == ()
    assert session.phase is Phase.CLOSED


# --- POLL -------------------------------------------------------------------------------------------------------------


def test_poll_a_claimed_job_is_sent():
    session = polling(5)
    assert session.resolve(GRANTED, 6) == [SendText(GRANTED.frame)]
    assert (session.phase, session.job, session.deadline) == (Phase.EXECUTING, JOB, 6 + SILENCE)


def test_poll_no_job_at_the_deadline():
    session = polling(5)
    assert session.resolve(None, 35) == [NO_JOB]
    assert (session.phase, session.deadline) == (Phase.IDLE, 35 + SILENCE)


def test_poll_no_job_is_never_early():
    session = polling(5)
    assert session.resolve(None, 34.999) == [Claim(35)]
    assert session.phase is Phase.POLLING


def test_poll_a_failed_claim_is_repeated():
    session = polling(5)
    for now in (6, 7, 8):
        assert (session.fail_operation(now), session.operation, session.deadline) == ((), None, now + 1)
        assert session.receive_text(READY, now) == session.receive_control(now) == ()
        assert session.advance(now + 1) == [Claim(35)]
    session.fail_operation(34.5)
    assert session.deadline == 35
    assert session.advance(35) == [NO_JOB]
    assert (session.phase, session.deadline) == (Phase.IDLE, 35 + SILENCE)


def test_poll_claims_that_fail_at_once_are_not_repeated_without_a_pause():
    """Through the driver of sockets. A poll of one second has time for one attempt and the pause."""
    attempts, sent = [], []

    async def converse():
        incoming = asyncio.Queue()

        async def perform(operation, _ended):
            attempts.append(operation)
            raise RuntimeError("a fault")

        async def send(message):
            sent.append(message["text"])
            await incoming.put({"type": "websocket.disconnect"})

        await incoming.put({"type": "websocket.receive", "text": text("ready", poll_timeout=1)})
        session = ChannelSession(silence_seconds=SILENCE, now=time.monotonic())
        driver = SocketDriver(session, perform, {"extensions": {}}, incoming.get, send)
        async with asyncio.timeout(60):
            await driver.run()

    asyncio.run(converse())
    assert (len(attempts), sent) == (1, [NO_JOB.text])


def test_poll_the_connection_may_end_during_the_pause():
    for end in ("end_connection", "shut_down"):
        session = polling(5)
        session.fail_operation(6)
        assert list(getattr(session, end)()) == ([SHUTDOWN] if end == "shut_down" else [])
        assert (session.phase, session.deadline) == (Phase.CLOSED, None)


@pytest.mark.parametrize("frame", [READY, RUNNING, HEARTBEAT, *FINAL, *GARBAGE])
def test_poll_text_is_discarded(frame):
    session = polling(5)
    assert session.receive_text(frame, 6) == ()
    assert (session.phase, session.operation) == (Phase.POLLING, Claim(35))


@pytest.mark.parametrize("receive", ["receive_bytes", "receive_control"])
def test_poll_other_frames_are_discarded(receive):
    session = polling(5)
    assert getattr(session, receive)(6) == ()
    assert (session.phase, session.deadline) == (Phase.POLLING, None)


def test_poll_the_end_of_the_connection_ends_the_wait():
    session = polling()
    assert session.end_connection() == ()
    assert session.resolve(None, 1) == ()


def test_poll_a_job_that_is_claimed_as_the_connection_ends_is_given_back():
    session = polling()
    session.end_connection()
    assert session.resolve(GRANTED, 1) == [Release(JOB)]
    assert session.resolve(None, 2) == ()


def test_poll_the_next_ready_is_received_after_no_job():
    session = polling()
    session.resolve(None, 30)
    assert session.receive_text(READY, 31) == [Claim(61)]


# --- EXECUTING --------------------------------------------------------------------------------------------------------

FRAMES = {
    RUNNING: MarkRunning(JOB),
    HEARTBEAT: Renew(JOB, can_wait=False),
    COMPLETED: Finish(JOB, CompletedFrame(OTHER, ({"exit_code": 0},))),
    FAILED: Finish(JOB, FailedFrame(OTHER, (), "x")),
    CANCELED: Finish(JOB, CanceledFrame(OTHER)),
}


@pytest.mark.parametrize("frame", FRAMES)
def test_executing_a_message_is_about_the_current_job(frame):
    session = executing()
    assert session.receive_text(frame, 10) == [FRAMES[frame]]
    assert (session.accepts_frames, session.deadline) == (False, None)


def test_executing_the_first_heartbeat_of_each_job_cannot_wait():
    session = executing()
    for can_wait in (False, True, True):
        assert session.receive_text(HEARTBEAT, 10) == [Renew(JOB, can_wait)]
        session.resolve(Reply.ACK, 11)
    session.receive_text(COMPLETED, 12)
    session.resolve(Reply.ACK, 13)
    session.receive_text(READY, 14)
    session.resolve(GrantedJob(JOB, "{}"), 15)
    assert session.receive_text(HEARTBEAT, 16) == [Renew(JOB, can_wait=False)]


@pytest.mark.parametrize("frame", [RUNNING, HEARTBEAT])
def test_executing_a_valid_message_resets_the_silence_timer(frame):
    session = executing()
    session.receive_text(frame, 10)
    assert session.resolve(Reply.ACK, 11) == [ACK]
    assert (session.phase, session.deadline) == (Phase.EXECUTING, 11 + SILENCE)


@pytest.mark.parametrize("frame", FINAL)
def test_executing_a_final_message_leads_to_idle_on_the_same_socket(frame):
    session = executing()
    session.receive_text(frame, 10)
    assert session.resolve(Reply.ACK, 11) == [ACK]
    assert (session.phase, session.job, session.deadline) == (Phase.IDLE, None, 11 + SILENCE)


@pytest.mark.parametrize("frame", [RUNNING, HEARTBEAT])
def test_executing_a_cancel_is_sent_once_and_leads_to_idle(frame):
    session = executing()
    session.receive_text(frame, 10)
    assert session.resolve(Reply.CANCEL, 11) == [CANCEL]
    assert session.phase is Phase.IDLE
    assert session.receive_text(HEARTBEAT, 12) == ()
    assert session.receive_text(CANCELED, 13) == [FinishLate(CanceledFrame(OTHER))]


@pytest.mark.parametrize("frame", FRAMES)
def test_executing_a_refused_message_drops_the_connection_without_a_reply(frame):
    session = executing()
    session.receive_text(frame, 10)
    assert session.resolve(Reply.REFUSED, 11) == [DropSocket()]


@pytest.mark.parametrize("frame", FRAMES)
def test_executing_a_failed_operation_drops_the_connection_without_a_reply(frame):
    session = executing()
    session.receive_text(frame, 10)
    assert session.fail_operation(11) == [DropSocket()]


@pytest.mark.parametrize("frame", GARBAGE)
def test_executing_an_invalid_frame_is_ignored_and_resets_nothing(frame):
    session = executing()
    assert session.receive_text(frame, 10) == ()
    assert (session.phase, session.deadline) == (Phase.EXECUTING, SILENCE)


@pytest.mark.parametrize("receive", ["receive_bytes", "receive_control"])
def test_executing_other_frames_reset_nothing(receive):
    session = executing()
    assert getattr(session, receive)(10) == ()
    assert session.deadline == SILENCE


def test_executing_ready_is_acknowledged_and_resets_nothing():
    session = executing()
    assert session.receive_text(READY, 10) == [ACK]
    assert (session.phase, session.deadline, session.operation) == (Phase.EXECUTING, SILENCE, None)


def test_executing_the_silence_timer_is_as_long_as_the_lease():
    session = polling()
    session.resolve(GrantedJob(LeasedJob(OTHER, silence_seconds=7), "job"), 1)
    assert session.deadline == 8
    session.receive_text(HEARTBEAT, 2)
    session.resolve(Reply.ACK, 3)
    assert session.deadline == 10
    session.receive_text(COMPLETED, 4)
    session.resolve(Reply.ACK, 5)
    assert session.deadline == 5 + SILENCE


@pytest.mark.parametrize("reason", [CloseReason.HEARTBEAT_TIMEOUT, CloseReason.JOB_TIMEOUT_EXCEEDED])
def test_executing_silence_is_written_before_the_close_frame(reason):
    session = executing()
    assert session.advance(SILENCE) == [Expire(JOB)]
    assert not session.accepts_frames
    assert session.resolve(SilenceOutcome(reason), 91) == [CloseSocket(1000, f'"{reason}"')]
    assert session.phase is Phase.CLOSED


def test_executing_silence_is_checked_again_when_the_lease_expires_a_little_later():
    session = executing()
    session.advance(SILENCE)
    assert session.resolve(SilenceOutcome(CloseReason.HEARTBEAT_TIMEOUT, 0.5), 91) == ()
    assert (session.accepts_frames, session.deadline) == (True, 91.5)
    assert session.advance(91.5) == [Expire(JOB)]


def test_executing_silence_closes_a_socket_whose_job_another_socket_renews():
    session = executing()
    session.advance(SILENCE)
    outcome = SilenceOutcome(CloseReason.HEARTBEAT_TIMEOUT, 60)
    assert session.resolve(outcome, 91) == [CloseSocket(1000, '"heartbeat_timeout"')]


def test_executing_the_end_of_the_connection_leaves_the_job():
    session = executing()
    assert session.end_connection() == ()
    assert session.phase is Phase.CLOSED


@pytest.mark.parametrize("frame", FRAMES)
def test_executing_a_result_after_the_end_of_the_connection_has_no_effect(frame):
    session = executing()
    session.receive_text(frame, 10)
    assert session.end_connection() == ()
    assert session.resolve(Reply.ACK, 11) == ()


def test_a_channel_executes_one_job_after_the_other():
    session = executing()
    session.receive_text(COMPLETED, 10)
    session.resolve(Reply.ACK, 11)
    assert session.receive_text(text("ready", poll_timeout=1), 12) == [Claim(13)]
    assert session.resolve(GrantedJob(LeasedJob(OTHER), "again"), 12) == [SendText("again")]
    session.receive_text(HEARTBEAT, 13)
    assert session.resolve(Reply.ACK, 14) == [ACK_OTHER]


# --- Shutdown ---------------------------------------------------------------------------------------------------------


def test_shutdown_closes_from_any_phase():
    assert idle().shut_down() == [SHUTDOWN]
    assert polling().shut_down() == [SHUTDOWN]
    assert executing().shut_down() == [SHUTDOWN]
    assert of_job().shut_down() == [SHUTDOWN]


def test_shutdown_during_an_operation_sends_no_reply():
    session = executing()
    session.receive_text(HEARTBEAT, 10)
    assert session.shut_down() == [SHUTDOWN]
    assert session.resolve(Reply.ACK, 11) == ()
    assert session.shut_down() == ()


# --- The socket of one job --------------------------------------------------------------------------------------------

ACK_WITHOUT_JOB = SendText('{"event":"ack"}')
ENDINGS = {
    text("completed", results=[]): ("job_completed", "job completed"),
    text("failed", results=[], error="x"): ("job_failed", "job failed"),
    text("canceled"): ("job_canceled_by_runner", "job canceled by runner"),
}


@pytest.mark.parametrize("frame", ENDINGS)
@pytest.mark.parametrize("has_subprotocol", [False, True])
def test_job_socket_closes_after_the_ack_of_a_final_message(frame, has_subprotocol):
    session = of_job(has_subprotocol=has_subprotocol)
    session.receive_text(frame, 1)
    quoted, words = ENDINGS[frame]
    reason = words if has_subprotocol else f'"{quoted}"'
    assert session.resolve(Reply.ACK, 2) == [ACK_WITHOUT_JOB, CloseSocket(1000, reason)]


def test_job_socket_closes_with_words_after_a_flat_result():
    session = of_job()
    session.receive_text(text("completed", exit_code=0), 1)
    assert session.resolve(Reply.ACK, 2) == [ACK_WITHOUT_JOB, CloseSocket(1000, "job completed")]


@pytest.mark.parametrize("frame", [RUNNING, HEARTBEAT])
def test_job_socket_stays_open_after_other_messages(frame):
    session = of_job()
    session.receive_text(frame, 1)
    assert session.resolve(Reply.ACK, 2) == [ACK_WITHOUT_JOB]
    assert (session.phase, session.deadline) == (Phase.EXECUTING, 2 + SILENCE)


def test_job_socket_closes_after_a_cancel():
    session = of_job()
    session.receive_text(HEARTBEAT, 1)
    assert session.resolve(Reply.CANCEL, 2) == [CANCEL, CloseSocket(1000, '"job_canceled"')]


@pytest.mark.parametrize(("has_subprotocol", "reason"), [(False, '"heartbeat_timeout"'), (True, "heartbeat timeout")])
def test_job_socket_closes_with_1008_on_silence(has_subprotocol, reason):
    session = of_job(has_subprotocol=has_subprotocol)
    assert session.deadline == SILENCE
    assert session.advance(SILENCE) == [Expire(JOB)]
    assert session.resolve(SilenceOutcome(CloseReason.HEARTBEAT_TIMEOUT), 91) == [CloseSocket(1008, reason)]


@pytest.mark.parametrize("frame", [READY, *GARBAGE])
def test_job_socket_ignores_invalid_frames(frame):
    session = of_job()
    assert session.receive_text(frame, 1) == ()
    assert session.deadline == SILENCE


def test_job_socket_drops_after_a_refused_message():
    session = of_job()
    session.receive_text(text("completed", exit_code=0), 1)
    assert session.resolve(Reply.REFUSED, 2) == [DropSocket()]
