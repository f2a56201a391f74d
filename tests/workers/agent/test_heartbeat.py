from __future__ import annotations

import itertools
import logging
from typing import Any

import pytest

from tests.workers.agent.conftest import a_lease
from tests.workers.agent.scripted import wait_until
from workers.agent.active_leases import ActiveLease, ActiveLeases
from workers.agent.errors import LeaseRejected, RequestRefused, ServerConflict, ServerUnreachable
from workers.agent.heartbeat import HeartbeatSender
from workers.agent.http.client import HeartbeatResponse
from workers.agent.http.wire import LeasePayload
from workers.agent.lease_watchdog import LeaseWatchdog


class Clock:
    """A monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Answers:
    """Replaces the client: each heartbeat takes the next of `answers`, and `costs` seconds."""

    def __init__(self, clock: Clock, *answers: HeartbeatResponse | Exception, costs: float = 0.0) -> None:
        self._clock = clock
        self.answers = list(answers)
        self.costs = costs
        self.sent: list[tuple[float, dict[str, Any], float]] = []
        self.calls: list[int] = []  # for how many leases each call for many was

    def heartbeat(self, lease: LeasePayload, progress: dict[str, Any], *, within: float) -> HeartbeatResponse:
        self.sent.append((self._clock.now, progress, within))
        self._clock.now += min(self.costs, within)
        answer = self.answers.pop(0) if self.answers else HeartbeatResponse()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def heartbeat_many(self, told: Any, *, within: float) -> list[HeartbeatResponse | Exception]:
        self.calls.append(len(told))
        self.sent += [(self._clock.now, progress, within) for _, progress in told]
        if self.answers and isinstance(self.answers[0], ServerUnreachable):
            raise self.answers.pop(0)
        return [self.answers.pop(0) if self.answers else HeartbeatResponse() for _ in told]


class Listener:
    def __init__(self) -> None:
        self.heard: list[Any] = []

    def canceled(self, reason: str | None, deadline_seconds: float | None) -> None:
        self.heard.append(("canceled", reason, deadline_seconds))

    def extended(self, deadline: float) -> None:
        pass

    def lost(self, why: str) -> None:
        self.heard.append(("lost", why))


class Stage:
    """A heartbeat, a trust window and one lease, all on one clock, without threads."""

    def __init__(self, *answers: HeartbeatResponse | Exception, costs: float = 0.0, **changes: Any) -> None:
        self.clock = Clock()
        self.client = Answers(self.clock, *answers, costs=costs)
        self.leases = ActiveLeases()
        self.heartbeat = HeartbeatSender(self.client, self.leases, self.clock)  # type: ignore[arg-type] # a stand-in
        self.window = LeaseWatchdog(self.leases, self.clock)
        self.listener = Listener()
        self.active = ActiveLease(a_lease(**changes), self.listener, local_deadline=0.0)
        self.active.extend(self.clock())
        self.heartbeat.add(self.active)

    def pass_time(self, seconds: float) -> None:
        until = self.clock.now + seconds
        while self.clock.now < until:
            self.clock.now += 0.25
            self.heartbeat.send_due()
            self.window.check()


def test_a_lease_is_renewed_about_every_interval_and_not_in_step() -> None:
    stage = Stage()
    stage.pass_time(200)
    times = [at for at, _, _ in stage.client.sent]
    gaps = {round(later - earlier, 2) for earlier, later in itertools.pairwise(times)}
    assert all(16 <= gap <= 24.5 for gap in gaps)
    assert len(gaps) > 1
    assert stage.listener.heard == []


def test_the_job_is_stopped_before_the_server_may_give_it_away() -> None:
    stage = Stage(*[ServerUnreachable("away")] * 1000)
    begun = stage.clock.now
    stage.pass_time(200)
    assert stage.listener.heard == [("lost", "no response from the server")]
    # TTL 120, two seconds of grace, five of safety.
    assert stage.active.local_deadline - begun == 113
    assert stage.client.sent[-1][0] < begun + 113, "a lease that was given up is not renewed"


def test_trust_counts_from_before_the_question_not_from_its_answer() -> None:
    stage = Stage(HeartbeatResponse(), *[ServerUnreachable("away")] * 1000, costs=8.0)
    stage.pass_time(300)
    asked_at = stage.client.sent[0][0]
    assert stage.active.local_deadline == asked_at + 113


def test_a_refused_heartbeat_renews_nothing() -> None:
    stage = Stage(*[RequestRefused(401, "unauthenticated", "")] * 1000)
    before = stage.active.local_deadline
    stage.pass_time(60)
    assert stage.active.local_deadline == before
    stage.pass_time(100)
    assert stage.listener.heard == [("lost", "no response from the server")]


def test_an_answer_after_trouble_makes_it_good_again() -> None:
    stage = Stage(*[ServerUnreachable("away")] * 4, HeartbeatResponse())
    before = stage.active.local_deadline
    stage.pass_time(60)
    assert stage.active.local_deadline > before
    assert stage.active.failures == 0


def test_after_trouble_the_next_try_comes_sooner_than_the_interval() -> None:
    stage = Stage(*[ServerUnreachable("away")] * 3)
    stage.pass_time(40)
    times = [at for at, _, _ in stage.client.sent]
    assert times[1] - times[0] < 2
    assert times[2] - times[1] < 3


def test_the_server_may_ask_for_more_patience() -> None:
    stage = Stage(ServerUnreachable("busy", retry_after=9.0))
    stage.pass_time(60)
    times = [at for at, _, _ in stage.client.sent]
    assert times[1] - times[0] >= 9


def test_no_heartbeat_waits_past_the_end_of_trust() -> None:
    stage = Stage(*[ServerUnreachable("away")] * 1000, costs=10.0)
    stage.pass_time(200)
    assert all(at + within <= stage.active.local_deadline + 0.1 for at, _, within in stage.client.sent)


def test_a_lease_that_is_not_trusted_any_more_is_not_renewed_either() -> None:
    stage = Stage()
    stage.clock.now = stage.active.local_deadline
    stage.heartbeat.send_due()
    assert stage.client.sent == []


def test_a_stale_lease_is_reported_once_and_held_no_more() -> None:
    stage = Stage(LeaseRejected("lease_revoked"))
    stage.pass_time(200)
    assert stage.listener.heard == [("lost", "lease_revoked")]
    assert len(stage.client.sent) == 1


def test_a_cancel_is_reported_with_its_deadline_until_the_job_ends() -> None:
    stage = Stage(
        HeartbeatResponse(cancel_requested=True, cancel_reason="requested", cancel_deadline_seconds=30.0),
        HeartbeatResponse(cancel_requested=True, cancel_reason="requested", cancel_deadline_seconds=9.0),
    )
    stage.pass_time(52)
    assert stage.listener.heard == [("canceled", "requested", 30.0), ("canceled", "requested", 9.0)]


def test_a_phase_goes_along_once_and_at_once() -> None:
    stage = Stage()
    stage.heartbeat.report_phase(stage.active, "executing")
    stage.pass_time(60)
    bodies = [body for _, body, _ in stage.client.sent]
    assert bodies[0] == {"phase": "executing", "progress": {"current_step": "executing", "step_index": 2}}
    assert bodies[1:]
    assert not any(bodies[1:])
    assert stage.client.sent[0][0] <= 1000.5


def test_a_phase_is_not_recorded_before_its_time_and_not_forgotten_over_another_heartbeat() -> None:
    stage = Stage(heartbeat_interval_seconds=0.4, lease_ttl_seconds=20)
    begun = stage.clock.now
    stage.heartbeat.report_phase(stage.active, "executing", delay=3.0)
    stage.pass_time(4)
    reported = [at - begun for at, body, _ in stage.client.sent if body]
    assert len(stage.client.sent) > 5
    assert len(reported) == 1
    assert 3 <= reported[0] <= 3.25


def test_a_phase_is_reported_again_when_nobody_heard_it() -> None:
    stage = Stage(ServerUnreachable("away"))
    stage.heartbeat.report_phase(stage.active, "executing")
    stage.pass_time(10)
    assert [body.get("phase") for _, body, _ in stage.client.sent] == ["executing", "executing"]


def test_a_phase_that_was_overtaken_does_not_cost_the_lease() -> None:
    stage = Stage(ServerConflict("illegal_move", "", {}))
    before = stage.active.local_deadline
    stage.heartbeat.report_phase(stage.active, "executing")
    stage.pass_time(10)
    assert [body.get("phase") for _, body, _ in stage.client.sent] == ["executing", None]
    assert stage.active.local_deadline > before


def test_a_conflict_without_a_phase_is_not_repeated_without_end() -> None:
    stage = Stage(*[ServerConflict("odd", "", {})] * 1000)
    stage.pass_time(30)
    assert len(stage.client.sent) < 12


def test_a_short_lease_leaves_time_to_stop_and_time_to_work() -> None:
    stage = Stage(lease_ttl_seconds=4, heartbeat_interval_seconds=1)
    assert stage.active.local_deadline == stage.clock.now + 3


def test_a_silent_server_is_logged_once_not_with_every_try(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    stage = Stage(*[ServerUnreachable("away")] * 3)
    stage.pass_time(60)
    assert [record.message for record in caplog.records if "heartbeat" in record.message] == [
        "heartbeat failed job=rtj_01jjob error='away'",
        "heartbeats succeed again job=rtj_01jjob",
    ]


def test_the_threads_do_it_by_themselves() -> None:
    clock = Clock()
    client = Answers(clock)
    leases = ActiveLeases()
    heartbeat = HeartbeatSender(client, leases)  # type: ignore[arg-type] # a stand-in; the real clock
    window = LeaseWatchdog(leases)
    heartbeat.start()
    window.start()
    listener, other = Listener(), Listener()
    heartbeat.add(
        active := ActiveLease(a_lease(heartbeat_interval_seconds=0.05), listener, local_deadline=float("inf"))
    )
    heartbeat.add(ActiveLease(a_lease(), other, local_deadline=0.0))
    wait_until(lambda: len(client.sent) >= 3)
    wait_until(lambda: other.heard == [("lost", "no response from the server")])
    heartbeat.remove(active)
    assert listener.heard == []
    heartbeat.close()
    window.close()
    heartbeat._thread.join(5)
    assert not heartbeat._thread.is_alive()


def beside(stage: Stage, number: int) -> list[tuple[ActiveLease, Listener]]:
    """So many more leases that are held with the first."""
    made = [ActiveLease(a_lease(), Listener(), local_deadline=0.0) for _ in range(number)]
    for active in made:
        active.extend(stage.clock())
        stage.heartbeat.add(active)
    return [(active, active.owner) for active in made]  # type: ignore[misc] # they are Listeners


def test_leases_that_are_due_together_are_renewed_by_one_call() -> None:
    stage = Stage()
    others = beside(stage, 7)
    before = [active.local_deadline for active, _ in others]
    stage.pass_time(200)
    assert sum(number > 1 for number in stage.client.calls) >= len(stage.client.calls) // 2
    assert len(stage.client.calls) < 40, "eight leases and ten rounds are 80 heartbeats"
    assert all(active.local_deadline > earlier + 100 for (active, _), earlier in zip(others, before, strict=True))
    assert stage.listener.heard == []


def test_each_lease_hears_its_own_answer() -> None:
    stage = Stage(
        HeartbeatResponse(),
        LeaseRejected("lease_revoked"),
        HeartbeatResponse(cancel_requested=True, cancel_reason="requested", cancel_deadline_seconds=12.0),
        RequestRefused(400, "invalid", ""),
    )
    (_, second), (third, canceled), (fourth, _) = beside(stage, 3)
    helds = [stage.active, *[active for active in stage.leases.all() if active is not stage.active]]
    for active in helds:
        active.due = stage.clock()
    ordered = [stage.active, next(active for active in helds if active.owner is second), third, fourth]
    stage.heartbeat._send(ordered)
    assert stage.client.calls == [4]
    assert second.heard == [("lost", "lease_revoked")]
    assert canceled.heard == [("canceled", "requested", 12.0)]
    assert [active.failures for active in ordered] == [0, 0, 0, 1]
    assert len(stage.leases.all()) == 3


def test_a_call_for_many_that_is_not_answered_is_everybodys_trouble() -> None:
    stage = Stage(ServerUnreachable("away"))
    others = [active for active, _ in beside(stage, 2)]
    helds = [stage.active, *others]
    stage.heartbeat._send(helds)
    assert [active.failures for active in helds] == [1, 1, 1]
    assert all(active.due < stage.clock() + 3 for active in helds), "the next try comes soon"


def test_a_phase_and_a_progress_go_along_in_a_call_for_many() -> None:
    stage = Stage()
    ((other, _),) = beside(stage, 1)
    stage.heartbeat.report_phase(stage.active, "executing")
    stage.heartbeat.report_progress(other, {"percent": 5})
    stage.heartbeat.send_due()
    assert stage.client.calls == [2]
    bodies = [body for _, body, _ in stage.client.sent]
    assert {"progress": {"percent": 5}} in bodies
    assert [body["phase"] for body in bodies if "phase" in body] == ["executing"]
    assert (stage.active.phase, other.progress) == (None, None)
