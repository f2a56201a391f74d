from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.workers.agent.conftest import claim_body
from tests.workers.agent.scripted import Answer, Asked, Handler, ScriptedServer, hang_up, problem, stale, wait_until
from workers.agent import claim_loop, retry
from workers.agent.claim_loop import ActiveJob, ClaimLoop
from workers.agent.errors import WorkerStartError
from workers.agent.http.client import ClaimOffer, OrchestratorClient
from workers.agent.readiness import Unready
from workers.agent.slots import WorkerSlots

JOB = Answer(201, claim_body())
NONE = Answer(204)


class FakeAttempt:
    """Runs until it is let go, abandoned or silenced."""

    def __init__(self, claimed: ActiveJob, *, stubborn: bool = False) -> None:
        self.claimed = claimed
        self.go = threading.Event()
        self.stubborn = stubborn
        self.heard: list[str] = []

    def run(self) -> None:
        self.go.wait(20)

    def abandon(self) -> None:
        self.heard.append("abandon")
        if not self.stubborn:
            self.go.set()

    def stop_reporting(self) -> None:
        self.heard.append("silence")
        self.go.set()


class Stage:
    """A loop in a thread of its own, with fake attempts."""

    def __init__(self, client: OrchestratorClient, tmp_path: Path, capacity: int = 1) -> None:
        self.attempts: list[FakeAttempt] = []
        self.stubborn = False
        self.error: Exception | None = None
        self.slots = WorkerSlots(capacity, tmp_path / "slots")
        self.unready: Unready | None = None
        offer = ClaimOffer("wrk_01jworker", "shared-linux", {"linux": True})
        self.loop = ClaimLoop(
            client=client, offer=offer, slots=self.slots, start_attempt=self.begin, unready=lambda: self.unready,
            wait_seconds=0.1,
        )  # fmt: skip
        self.thread = threading.Thread(target=self.run, daemon=True)

    def begin(self, claimed: ActiveJob) -> FakeAttempt:
        self.attempts.append(FakeAttempt(claimed, stubborn=self.stubborn))
        return self.attempts[-1]

    def run(self, *, once: bool = False) -> None:
        try:
            self.loop.run(once=once)
        except WorkerStartError as refusal:
            self.error = refusal

    def start(self) -> None:
        self.thread.start()

    def end(self) -> None:
        self.loop.abandon()
        if self.thread.is_alive():
            self.thread.join(10)
            assert not self.thread.is_alive()
        self.slots.close()


@pytest.fixture
def stage(
    client: OrchestratorClient, server: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Stage]:
    monkeypatch.setattr(retry.random, "uniform", lambda low, high: 0.02)
    monkeypatch.setattr(claim_loop, "SHUTDOWN_SECONDS", 30)
    monkeypatch.setattr(claim_loop, "REFUSED_SECONDS", 0.1)
    server.on("leases", Answer(204, wait=0.02))
    made = Stage(client, tmp_path, capacity=2)
    yield made
    made.end()


def keys(server: ScriptedServer) -> list[str]:
    return [asked.headers["Idempotency-Key"] for asked in server.received("leases")]


def test_no_more_jobs_are_claimed_than_there_are_slots(stage: Stage, server: ScriptedServer) -> None:
    server.on("leases", JOB)
    stage.start()
    wait_until(lambda: len(stage.attempts) == 2)
    asked = len(server.received("leases"))
    time.sleep(0.2)  # a third claim would have been sent by now
    assert len(server.received("leases")) == asked == 2
    assert {attempt.claimed.slot for attempt in stage.attempts} == set(stage.slots.numbers)
    stage.attempts[0].go.set()
    wait_until(lambda: len(stage.attempts) == 3)
    assert stage.attempts[2].claimed.slot == stage.attempts[0].claimed.slot


def test_every_answered_claim_has_a_key_of_its_own(stage: Stage, server: ScriptedServer) -> None:
    stage.start()
    wait_until(lambda: len(keys(server)) >= 5)
    assert len(set(keys(server)[:5])) == 5


def test_a_claim_whose_answer_was_lost_is_asked_again_under_its_key(stage: Stage, server: ScriptedServer) -> None:
    server.on("leases", hang_up, Answer(503), Answer(500, b"<html>"), JOB, NONE)
    stage.start()
    wait_until(lambda: len(keys(server)) >= 5)
    first = keys(server)[:5]
    assert len(set(first[:4])) == 1
    assert first[4] != first[0]


def test_a_key_that_was_used_for_something_else_is_not_used_again(stage: Stage, server: ScriptedServer) -> None:
    server.on("leases", problem(409, "idempotency_conflict"), NONE)
    stage.start()
    wait_until(lambda: len(keys(server)) >= 2)
    assert keys(server)[0] != keys(server)[1]


def test_draining_finishes_what_runs_and_claims_no_more(stage: Stage, server: ScriptedServer) -> None:
    claimed, drained = threading.Event(), threading.Event()

    def waits(handler: Handler, _: Asked) -> None:
        claimed.set()
        drained.wait(60)
        handler.answer(NONE)

    server.on("leases", JOB, waits, NONE)
    stage.start()
    assert claimed.wait(60)
    wait_until(lambda: stage.attempts)
    stage.loop.drain()
    drained.set()
    time.sleep(0.3)  # a third claim would have been sent by now
    assert stage.thread.is_alive()
    assert stage.attempts[0].heard == []
    stage.attempts[0].go.set()
    stage.thread.join(60)
    assert not stage.thread.is_alive()
    assert len(server.received("leases")) == 2


def test_a_job_that_comes_while_it_drains_is_given_back_at_once(stage: Stage, server: ScriptedServer) -> None:
    def drains(handler: Handler, _: Asked) -> None:
        stage.loop.drain()
        handler.answer(JOB)

    server.on("leases", drains)
    server.on("release", hang_up, Answer())
    stage.start()
    stage.thread.join(60)
    assert [asked.json["unable"] for asked in server.received("release")] == [False, False]
    assert stage.attempts == []
    assert [stage.slots.take(within=0) for _ in stage.slots.numbers] == list(stage.slots.numbers), "all are free"


def test_abandoning_tells_every_job_and_waits_for_its_last_words(stage: Stage, server: ScriptedServer) -> None:
    server.on("leases", JOB, JOB, NONE)
    stage.start()
    wait_until(lambda: len(stage.attempts) == 2)
    stage.loop.abandon()
    stage.thread.join(60)
    assert not stage.thread.is_alive()
    assert [attempt.heard for attempt in stage.attempts] == [["abandon"], ["abandon"]]


def test_a_job_that_talks_too_long_is_silenced(
    stage: Stage, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_loop, "SHUTDOWN_SECONDS", 0.3)
    stage.stubborn = True
    server.on("leases", JOB, NONE)
    stage.start()
    wait_until(lambda: stage.attempts)
    stage.loop.abandon()
    stage.thread.join(5)
    assert not stage.thread.is_alive()
    assert stage.attempts[0].heard == ["abandon", "silence"]


def test_once_is_one_claim_and_its_job(stage: Stage, server: ScriptedServer) -> None:
    server.on("leases", JOB)
    stage.thread = threading.Thread(target=lambda: stage.run(once=True))
    stage.start()
    wait_until(lambda: stage.attempts)
    assert stage.thread.is_alive()
    stage.attempts[0].go.set()
    stage.thread.join(5)
    assert len(server.received("leases")) == 1
    assert server.received("leases")[0].json["wait_seconds"] == claim_loop.WAIT_SECONDS_ONCE


def test_once_ends_when_there_is_no_work(stage: Stage, server: ScriptedServer) -> None:
    stage.run(once=True)
    assert len(server.received("leases")) == 1


def test_once_gets_its_answer_through_trouble(stage: Stage, server: ScriptedServer) -> None:
    server.on("leases", hang_up, Answer(503), NONE)
    stage.run(once=True)
    assert len(server.received("leases")) == 3


def test_an_older_process_of_a_worker_ends_and_says_why(stage: Stage, server: ScriptedServer) -> None:
    server.on("leases", stale("lease_ended"))
    stage.run()
    assert "newer process" in str(stage.error)


def test_a_refusal_ends_a_single_claim_and_not_a_worker(stage: Stage, server: ScriptedServer) -> None:
    server.on("leases", problem(403, "worker_mismatch"))
    stage.run(once=True)
    assert "worker_mismatch" in str(stage.error)
    stage.error = None
    server.on("leases", problem(401, "unauthenticated"), JOB, NONE)
    stage.start()
    # It continues after a 401, so that a rotated token is used.
    wait_until(lambda: stage.attempts)


def test_a_job_that_cannot_be_read_costs_nobody_but_itself(stage: Stage, server: ScriptedServer) -> None:
    odd = Answer(201, claim_body(execution__least_isolation="microvm"))
    server.on("leases", odd, JOB, NONE)
    stage.start()
    wait_until(lambda: stage.attempts)
    assert len(server.received("release")) == 1


def test_a_worker_that_is_not_ready_claims_nothing_and_says_so(
    stage: Stage, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_loop, "UNREADY_SECONDS", 0.01)
    server.on("unready", Answer(503))  # what the server does not learn is true all the same
    stage.unready = Unready("disk_low", "No room.")
    stage.start()
    time.sleep(0.3)
    assert [asked.json for asked in server.asked] == [{"reason": "disk_low", "message": "No room."}]
    stage.unready = None
    wait_until(lambda: server.received("leases"))


def test_a_job_claimed_just_before_the_end_hears_of_it(stage: Stage, server: ScriptedServer) -> None:
    server.on("leases", JOB, NONE)
    begin = stage.loop._start_attempt

    def late(claimed: ActiveJob) -> FakeAttempt:
        attempt = begin(claimed)
        stage.loop._abandoning.set()
        return attempt  # type: ignore[return-value] # it is one

    stage.loop._start_attempt = late
    stage.start()
    wait_until(lambda: stage.attempts and stage.attempts[0].heard == ["abandon"])


def many(*numbers: int, **changes: Any) -> Answer:
    leases = [claim_body(job_id=f"rtj_{number}", **changes) | {"lease_id": f"rtl_{number}"} for number in numbers]
    return Answer(201, {"leases": leases})


def asked_for(server: ScriptedServer) -> list[int | None]:
    return [asked.json.get("max_leases") for asked in server.received("leases")]


def test_one_claim_asks_for_all_free_slots_and_for_the_last_one_alone(stage: Stage, server: ScriptedServer) -> None:
    server.on("leases", many(1, 2), NONE)
    stage.start()
    wait_until(lambda: len(stage.attempts) == 2)
    assert {attempt.claimed.lease.job.job_id for attempt in stage.attempts} == {"rtj_1", "rtj_2"}
    assert {attempt.claimed.slot for attempt in stage.attempts} == set(stage.slots.numbers)
    assert asked_for(server) == [2]
    stage.attempts[0].go.set()
    wait_until(lambda: len(server.received("leases")) > 1)
    assert asked_for(server)[1] is None


def test_slots_for_which_there_was_no_job_are_free_again(stage: Stage, server: ScriptedServer) -> None:
    server.on("leases", many(1), JOB, NONE)
    stage.start()
    wait_until(lambda: len(stage.attempts) == 2)
    assert asked_for(server)[:2] == [2, None]


def test_a_lost_answer_is_asked_for_again_as_it_was(stage: Stage, server: ScriptedServer) -> None:
    """Another number would be another request under the same key."""
    server.on("leases", JOB, hang_up, hang_up, many(2), NONE)
    stage.start()
    wait_until(lambda: len(server.received("leases")) >= 2)
    stage.attempts[0].go.set()  # a second slot is free now
    wait_until(lambda: len(stage.attempts) == 2)
    assert len(set(keys(server)[1:4])) == 1
    assert asked_for(server)[1:4] == [None] * 3


def test_of_many_jobs_one_that_cannot_be_read_costs_nobody_but_itself(stage: Stage, server: ScriptedServer) -> None:
    odd, fine = many(1, execution__least_isolation="microvm").body, many(2).body
    server.on("leases", Answer(201, {"leases": [*odd["leases"], *fine["leases"]]}), NONE)
    server.on("release", hang_up)
    stage.start()
    wait_until(lambda: stage.attempts)
    assert stage.attempts[0].claimed.lease.job.job_id == "rtj_2"
    assert len(server.received("release")) == 1
    wait_until(lambda: len(keys(server)) > 1)
    assert len(set(keys(server)[:2])) == 2, "its trouble is no trouble of the claim"
