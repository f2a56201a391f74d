"""The session against an independent oracle: any order of frames, results, silence, disconnects and shutdown."""

import json
from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from orchestrator.http.asgi.sockets import CloseSocket, DropSocket, SendText
from orchestrator.protocols.bencher.channel.session import (
    ChannelSession,
    Claim,
    CloseReason,
    GrantedJob,
    LeasedJob,
    Release,
    Reply,
    SilenceOutcome,
)

SILENCE = 5
NAMED = UUID(int=7)  # by final messages
EVENTS = {
    "ready": {"poll_timeout": 3},
    "running": {},
    "heartbeat": {},
    "completed": {"job": str(NAMED), "results": []},
    "failed": {"job": str(NAMED), "results": [], "error": ""},
    "canceled": {"job": str(NAMED)},
}
FINAL = {"completed", "failed", "canceled"}
OPERATIONS = {
    "MarkRunning": "running",
    "Renew": "heartbeat",
    "Finish": "final",
    "FinishLate": "late",
    "Claim": "claim",
    "Expire": "expire",
    "Release": "release",
}


class Oracle:
    """Contract 3.4 in the words of the contract: returns what the server does, as short texts."""

    def __init__(self):
        self.state, self.timer, self.job, self.until, self.busy = "IDLE", SILENCE, None, None, None

    def idle(self, now):
        self.state, self.job, self.timer = "IDLE", None, now + SILENCE

    def gone(self):
        self.state, self.timer = "GONE", None

    def begin(self, operation):
        self.busy, self.timer = operation, None
        return [operation]

    def frame(self, event, now):
        if self.state == "IDLE":
            if event is None:
                self.gone()
                return ["drop"]
            if event == "ready":
                self.state, self.until = "POLL", now + 3
                return self.begin("claim")
            if event in FINAL:
                return self.begin("late")
            self.timer = now + SILENCE
        elif self.state == "EXECUTING":
            if event == "ready":
                return [f"ack {self.job}"]
            if event is not None:
                return self.begin("final" if event in FINAL else event)
        return []

    def other_frame(self, now):
        if self.state == "IDLE":
            self.timer = now + SILENCE
        return []

    def silent(self, now):
        if self.state == "POLL":  # after the pause
            return self.claimed(None, now)
        if self.state == "EXECUTING":
            return self.begin("expire")
        self.gone()
        return ["drop"]

    def result(self, outcome, now):
        operation, self.busy = self.busy, None
        if self.state == "GONE":
            return self.begin("release") if operation == "claim" and isinstance(outcome, int) else []
        if operation == "claim":
            return self.claimed(outcome, now)
        if operation == "expire":
            if outcome == "soon":
                self.timer = now + 1
                return []
            if outcome != "error":
                self.gone()
                return ["close 1000 heartbeat_timeout"]
        if outcome in {"refused", "error"}:
            self.gone()
            return ["drop"]
        if operation == "late":
            self.idle(now)
            return [f"ack {NAMED}"]
        if outcome == "cancel":
            self.idle(now)
            return ["cancel"]
        sent = [f"ack {self.job}"]
        if operation == "final":
            self.idle(now)
        else:
            self.timer = now + SILENCE
        return sent

    def claimed(self, outcome, now):
        if isinstance(outcome, int):
            self.state, self.job, self.timer = "EXECUTING", UUID(int=outcome), now + SILENCE
            return [f"job {self.job}"]
        if outcome == "error":
            self.timer = min(self.until, now + 1)
            return []
        if now < self.until:
            return self.begin("claim")
        self.idle(now)
        return ["no_job"]

    def ended(self):
        self.gone()
        return []

    def stopped(self):
        return [] if self.state == "GONE" else [*self.ended(), "close 1001 server shutting down"]


def described(effects):
    found = []
    for effect in effects:
        match effect:
            case SendText(text):
                frame = json.loads(text)
                found.append(" ".join(str(value) for value in frame.values()))
            case CloseSocket(code, reason):
                found.append(f"close {code} {reason.strip(chr(34))}")
            case DropSocket():
                found.append("drop")
            case _:
                found.append(OPERATIONS[type(effect).__name__])
    return found


class Conversation(RuleBasedStateMachine):
    """A runner, its network, the database and the time."""

    def __init__(self):
        super().__init__()
        self.now, self.jobs, self.cancels = 0, 0, {}
        self.session, self.oracle = ChannelSession(silence_seconds=SILENCE, now=0), Oracle()

    def compare(self, effects, expected):
        found = described(effects)
        assert found == expected
        for name in found:
            if name == "cancel":
                self.cancels[self.jobs] = self.cancels.get(self.jobs, 0) + 1
        for effect in effects:
            if isinstance(effect, Claim):
                assert effect.until == self.oracle.until
            if isinstance(effect, Release):
                assert effect.job.uuid == UUID(int=self.jobs)

    @precondition(lambda self: self.session.accepts_frames and self.oracle.state != "GONE")
    @rule(event=st.sampled_from([*EVENTS, None]))
    def text(self, event):
        text = "garbage" if event is None else json.dumps({"event": event, **EVENTS[event]})
        self.compare(self.session.receive_text(text, self.now), self.oracle.frame(event, self.now))

    @precondition(lambda self: self.session.accepts_frames and self.oracle.state != "GONE")
    @rule(receive=st.sampled_from(["receive_bytes", "receive_control"]))
    def other_frame(self, receive):
        self.compare(getattr(self.session, receive)(self.now), self.oracle.other_frame(self.now))

    @rule(seconds=st.integers(1, 4))
    def wait(self, seconds):
        timer = self.session.deadline
        self.now = self.now + seconds if timer is None else min(self.now + seconds, timer)

    @precondition(lambda self: self.session.deadline is not None)
    @rule()
    def silence(self):
        self.now = self.session.deadline
        self.compare(self.session.advance(self.now), self.oracle.silent(self.now))

    @precondition(lambda self: self.oracle.busy == "claim")
    @rule(is_found=st.booleans())
    def end_claim(self, is_found):
        granted = None
        if is_found:
            self.jobs += 1
            job = LeasedJob(UUID(int=self.jobs))
            granted = GrantedJob(job, json.dumps({"event": "job", "uuid": str(job.uuid)}))
        expected = self.oracle.result(self.jobs if is_found else None, self.now)
        self.compare(self.session.resolve(granted, self.now), expected)

    @precondition(lambda self: self.oracle.busy in {"running", "heartbeat", "final", "late"})
    @rule(reply=st.sampled_from(Reply))
    def reply(self, reply):
        if self.oracle.busy in {"final", "late"} and reply is Reply.CANCEL:
            reply = Reply.ACK  # cancel is never the reply to a final message
        expected = self.oracle.result(str(reply), self.now)
        self.compare(self.session.resolve(reply, self.now), expected)

    @precondition(lambda self: self.oracle.busy == "expire")
    @rule(retry=st.sampled_from([None, 1.0, 60.0]))
    def expired(self, retry):
        expected = self.oracle.result("soon" if retry == 1.0 else "over", self.now)
        outcome = SilenceOutcome(CloseReason.HEARTBEAT_TIMEOUT, retry)
        self.compare(self.session.resolve(outcome, self.now), expected)

    @precondition(lambda self: self.oracle.busy == "release")
    @rule()
    def released(self):
        self.compare(self.session.resolve(None, self.now), self.oracle.result(None, self.now))

    @precondition(lambda self: self.oracle.busy is not None)
    @rule()
    def database_fails(self):
        self.compare(self.session.fail_operation(self.now), self.oracle.result("error", self.now))

    @rule()
    def disconnect(self):
        self.compare(self.session.end_connection(), self.oracle.ended())

    @rule()
    def shut_down(self):
        self.compare(self.session.shut_down(), self.oracle.stopped())

    @invariant()
    def timers_agree(self):
        assert self.session.deadline == self.oracle.timer
        assert (self.session.operation is None) == (self.oracle.busy is None)
        if self.session.operation is not None:
            assert self.session.deadline is None, "no timer runs while an operation does"

    @invariant()
    def a_job_is_canceled_at_most_once(self):
        assert all(count == 1 for count in self.cancels.values())


TestConversation = Conversation.TestCase
TestConversation.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
