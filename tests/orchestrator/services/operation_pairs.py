"""Two operations on one job, each on a connection of its own, which meet between lock and decision.

Both start at the same time. Whichever wins the job's lock holds it, undecided, until the other one waits for it (or
has found that it need not)."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from django.db import connection, transaction

from leases import fencing
from orchestrator.services import (
    batch_calls,
    cancellation,
    claim_next,
    claiming,
    expiry,
    heartbeat,
    job_end,
    late_results,
    retries,
    transitions,
    worker_state,
)
from orchestrator.services.batch_calls import WorkerMessage
from orchestrator.services.claim_next import ClaimRequest
from orchestrator.services.claiming import Claimed
from orchestrator.services.heartbeat import HeartbeatUpdate
from orchestrator.services.job_end import CompleteMessage
from orchestrator.step_logs import job_log_writes
from runtime_jobs.errors import LifecycleError
from runtime_jobs.models import Project
from runtime_jobs.states import FailureReason
from tests.factories import (
    ALICE,
    LATE_POLICY,
    OPERATOR,
    WorkerFactory,
    claimed,
    offer,
    submitted,
    submitted_steps,
)
from workers.models import Worker

MOMENT = timedelta(milliseconds=1)
HOUR = timedelta(hours=1)


@dataclass(frozen=True)
class Scene:
    """A leased job, another worker that would take it, and the time at which its lease ends."""

    claim: Claimed
    other: Worker
    ends: datetime
    has_ended: bool = False  # the job settles already

    @property
    def job(self) -> str:
        return self.claim.job.job_ulid

    @property
    def said_at(self) -> datetime:
        """Just before the end of the lease, or just after it if that is past."""
        return self.ends + MOMENT if self.has_ended else self.ends - MOMENT

    def run(self, prefix: str) -> str | None:
        return None if self.has_ended else f"{prefix}_{self.claim.lease.pk}"

    def say(self, say: Callable[..., Any], **words: Any) -> Any:
        """Messages of the holder."""
        lease = self.claim.lease
        return say(lease_ulid=lease.lease_ulid, worker=lease.worker, now=self.said_at, **words)

    def seen_by(self, place: int) -> Scene:
        """Of two claims each has a worker of its own: one worker's claims wait for each other anyway."""
        return self if place == 0 else replace(self, other=self.claim.lease.worker)


def complete_and_claim(scene: Scene) -> Any:
    """Another final message than that of `complete`, with a claim for the same worker."""
    holder = scene.claim.lease.worker
    message = CompleteMessage(scene.run("run_of"))
    return scene.say(
        claim_next.complete_and_claim, message=message, claim=ClaimRequest(offer(holder), acknowledge=True)
    )


def renew_with_others(scene: Scene) -> Any:
    """A heartbeat among those of other workers."""
    lease = scene.claim.lease
    beats = {lease.lease_ulid: WorkerMessage(lease.worker, HeartbeatUpdate())}
    (answer,) = batch_calls.renew_many(beats, now=scene.said_at).values()
    return answer


ACTIONS: dict[str, Callable[[Scene], Any]] = {
    "complete_and_claim": complete_and_claim,
    "acknowledge": lambda scene: scene.say(heartbeat.acknowledge),
    "renew": lambda scene: scene.say(heartbeat.renew),
    "renew_many": renew_with_others,
    "report": lambda scene: scene.say(heartbeat.report, phase="checking_out"),
    "append_log": lambda scene: scene.say(job_log_writes.append_log, seq=0, chunk=b"x"),
    "complete": lambda scene: scene.say(job_end.complete, ingest_run_id=scene.run("run")),
    "fail": lambda scene: scene.say(job_end.fail, reason=FailureReason.WORKER_ERROR),
    "release": lambda scene: scene.say(heartbeat.release),
    "acknowledge_cancel": lambda scene: scene.say(job_end.acknowledge_cancel),
    "stop_by_worker": lambda scene: scene.say(cancellation.stop_by_worker),
    "cancel": lambda scene: cancellation.cancel(
        job_ulid=scene.job, actor=ALICE, deadline_seconds=30, now=scene.said_at
    ),
    "expire": lambda scene: expiry.expire(job_ulid=scene.job, now=scene.ends + MOMENT),
    "revoke": lambda scene: worker_state.revoke(
        job_ulid=scene.job, actor=OPERATOR, reason="x", now=scene.ends - MOMENT
    ),
    "time_out": lambda scene: expiry.time_out(job_ulid=scene.job, now=scene.ends + HOUR),
    "force_cancel": lambda scene: expiry.force_cancel(job_ulid=scene.job, now=scene.ends + HOUR),
    "retry": lambda scene: retries.retry(job_ulid=scene.job, actor=OPERATOR, reason="x", now=scene.ends + HOUR),
    "claim": lambda scene: claiming.claim(
        worker=scene.other, offer=offer(scene.other), acknowledge=True, now=scene.ends + HOUR
    ),
    "complete_late": lambda scene: late_results.complete_late(
        job_ulid=scene.job, worker=scene.claim.lease.worker, now=scene.ends + MOMENT
    ),
    "give_up": lambda scene: late_results.give_up(job_ulid=scene.job, now=scene.ends + 2 * HOUR),
    "settle": lambda scene: late_results.settle(job_ulid=scene.job, now=scene.ends + HOUR),
}
SPOKEN_ENDS = frozenset({"complete_and_claim", "complete", "fail", "release", "acknowledge_cancel", "stop_by_worker"})
ENDS = SPOKEN_ENDS | {"expire", "revoke", "time_out", "force_cancel"}
PROLONG = frozenset({"acknowledge", "renew", "renew_many", "report"})
SAME_MESSAGE = frozenset({"acknowledge_cancel", "stop_by_worker"})
# The job of these is lost before the two meet; with `settle` its result has arrived.
SETTLING = frozenset({"complete_late", "give_up", "settle"})
SETTLED_ONCE = {
    frozenset(pair)
    for pair in (
        *(("give_up", "give_up"), ("give_up", "cancel"), ("give_up", "settle"), ("settle", "settle")),
        *(("give_up", "complete"), ("give_up", "complete_late"), ("give_up", "complete_and_claim")),
        *(("complete_late", "cancel"), ("complete_late", "retry")),
    )
}
PAIRS = list(itertools.combinations_with_replacement(ACTIONS, 2))


def has_one_winner(pair: tuple[str, str]) -> bool:
    """Two ends of one lease, or an expiry and what puts it off: one of them has an effect and the other one has none.

    Elsewhere both may: a renewal and then the end."""
    one, two = pair
    if SETTLING & set(pair):
        return frozenset(pair) in SETTLED_ONCE
    if set(pair) == SAME_MESSAGE:
        return False
    if one == two:
        return one not in SPOKEN_ENDS | PROLONG | {"append_log", "cancel", "time_out"}
    return {one, two} <= ENDS or ("expire" in pair and bool(PROLONG & {one, two}))


def scene_for(pair: tuple[str, str], project: Project, holder: Worker, other: Worker) -> Scene:
    """Made so that each of the two has cause: a lease to acknowledge, a cancel to obey, an end to follow, a next job."""
    if SETTLING & set(pair):
        return settling_scene(pair, project, holder, other)
    submitted(project)
    granted = "acknowledge" in pair
    claim = claimed(holder, acknowledge=granted)
    lease = claim.lease
    if {"acknowledge_cancel", "force_cancel"} & set(pair):
        asked = lease.leased_at + MOMENT
        cancellation.cancel(job_ulid=claim.job.job_ulid, actor=ALICE, deadline_seconds=3000, now=asked)
    if set(pair) <= {"retry", "claim"} and "retry" in pair:
        job_end.fail(lease_ulid=lease.lease_ulid, worker=holder, reason=FailureReason.WORKER_ERROR)
    if pair == ("claim", "claim") or "complete_and_claim" in pair:
        submitted(project)
    return Scene(claim, other, lease.expires_at)


def settling_scene(pair: tuple[str, str], project: Project, holder: Worker, other: Worker) -> Scene:
    """A job whose lease has ended: with a result, or without one."""
    submitted_steps(project, policy=LATE_POLICY)
    claim = claimed(holder, job_types=("steps",))
    lease = claim.lease
    message = {"lease_ulid": lease.lease_ulid, "worker": holder}
    heartbeat.report(**message, phase="executing", now=lease.leased_at + MOMENT)
    lease.refresh_from_db()
    if "settle" in pair:
        job_end.complete(**message, now=lease.expires_at - MOMENT)
    else:
        expiry.expire(job_ulid=claim.job.job_ulid, now=lease.expires_at)
    return Scene(claim, other, lease.expires_at, has_ended=True)


class Gate:
    """Between lock and decision: the first one waits there until the second one waits for the lock."""

    def __init__(self, *, after: int = 0) -> None:
        self.arrived = threading.Event()
        self.open = threading.Event()
        self._passes = after  # of the first one, before it waits

    def pass_through(self) -> None:
        if self.arrived.is_set():
            return
        if self._passes:
            self._passes -= 1
            return
        self.arrived.set()
        self.open.wait(60)


class Ring:
    """Two threads, each with its connection, that meet in as many rounds as one likes."""

    def __init__(self) -> None:
        self.gate = Gate()
        self._threads = [ThreadPoolExecutor(1) for _ in range(2)]
        self._pids = [thread.submit(_pid).result() for thread in self._threads]

    def close(self) -> None:
        for thread in self._threads:
            thread.submit(lambda: connection.close()).result()  # noqa: PLW0108 - the connection is the thread's own
            thread.shutdown()

    def meet(self, *acts: Callable[[], Any]) -> list[Any]:
        """Return what each returned or refused. Any other error is raised."""
        self.gate = Gate()
        start = threading.Barrier(len(acts))
        running = [thread.submit(_at_once, start, act) for thread, act in zip(self._threads, acts, strict=True)]
        while not all(future.done() for future in running):
            if self.gate.arrived.is_set() and (any(future.done() for future in running) or self._somebody_waits()):
                self.gate.open.set()
                break
            threading.Event().wait(0.0005)
        self.gate.open.set()
        return [_answer(future) for future in running]

    def meet_in_order(
        self, first: Callable[[], Any], second: Callable[[], Any], *, place: int, between: Callable[[], Any]
    ) -> list[Any]:
        """Start the second one while the first one is at the gate of this number; call `between` before that."""
        self.gate = Gate(after=place)
        running = [self._threads[0].submit(first)]
        try:
            while not self.gate.arrived.wait(0.0005) and not running[0].done():
                pass
            assert self.gate.arrived.is_set(), running[0].result()
            between()
            running.append(self._threads[1].submit(second))
            while not running[1].done() and not self._somebody_waits():
                threading.Event().wait(0.0005)
        finally:
            self.gate.open.set()
        return [_answer(future) for future in running]

    def _somebody_waits(self) -> bool:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE pid = ANY(%s) AND wait_event_type = 'Lock'", [self._pids]
            )
            return bool(cursor.fetchone()[0])


@contextmanager
def ring(monkeypatch: Any) -> Iterator[Ring]:
    """A ring with a gate after each lock of a job, and after each read without one."""
    made = Ring()
    read_lease, lock_job, take_next = fencing._read_lease_after_lock, transitions.lock_job, claiming.claim_for_each
    read_unlocked = fencing._read_unlocked

    def behind(job: Any, lease: Any, now: Any) -> Any:
        made.gate.pass_through()
        return read_lease(job, lease, now)

    def unlocked(*args: Any) -> Any:
        found = read_unlocked(*args)
        made.gate.pass_through()
        return found

    def locked(job_ulid: str, *, now: Any = None) -> Any:
        found = lock_job(job_ulid, now=now)
        made.gate.pass_through()
        return found

    def taken(*given: Any, **terms: Any) -> Any:
        with transaction.atomic():  # a claim is one statement: it is stopped between that statement and its commit
            found = take_next(*given, **terms)
            made.gate.pass_through()
        return found

    monkeypatch.setattr(fencing, "_read_lease_after_lock", behind)
    monkeypatch.setattr(fencing, "_read_unlocked", unlocked)
    monkeypatch.setattr(transitions, "lock_job", locked)
    monkeypatch.setattr(claiming, "claim_for_each", taken)
    made.gate.open.set()
    try:
        yield made
    finally:
        made.close()


def _pid() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


def _at_once(start: threading.Barrier, act: Callable[[], Any]) -> Any:
    start.wait(60)
    return act()


def _answer(running: Future[Any]) -> Any:
    try:
        return running.result(60)
    except LifecycleError as refused:
        return refused


def had_effect(answer: Any) -> bool:
    """Clocks and claims answer None where there was nothing to do."""
    return answer is not None and not isinstance(answer, LifecycleError)


def winner(pair: tuple[str, str], answers: list[Any]) -> str:
    effects = [had_effect(answer) for answer in answers]
    if all(effects):
        return "both"
    return next((name for name, effect in zip(pair, effects, strict=True) if effect), "neither")


def cast() -> tuple[Worker, Worker]:
    return WorkerFactory(capacity=100_000), WorkerFactory(capacity=100_000)
