"""Two operations on one job at the same time: one wins, and the job has one final event.

The two meet between lock and decision (`tests/orchestrator/services/operation_pairs.py`). `PROOF_ROUNDS` makes the
tests longer, and prints the winners.
"""

import functools
import itertools
import os
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier
from typing import Any

import pytest

from leases.models import Lease
from orchestrator.audit.runner import run_audit
from orchestrator.core.cause import Cause
from orchestrator.core.db_scope import release_connection_after
from orchestrator.core.row_batches import RowRunner
from orchestrator.http.errors.problems import ApiError
from orchestrator.maintenance.queues import advance_lanes
from orchestrator.protocols.bencher.authentication import authenticate_runner
from orchestrator.protocols.bencher.channel import operations
from orchestrator.protocols.bencher.channel.claims import claim_for_runner
from orchestrator.protocols.bencher.channel.messages import CanceledFrame, CompletedFrame, FailedFrame
from orchestrator.protocols.bencher.channel.operations import leased_job
from orchestrator.protocols.bencher.channel.session import LeasedJob
from orchestrator.results.processing import process, read_again
from orchestrator.services import cancellation, expiry, late_results, retries, runners
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import AlreadyFinal, LifecycleError, NotRetryable, ResourceConflict
from runtime_jobs.models import Job, JobEvent
from runtime_jobs.states import FINAL_STATES, JobState
from tests.factories import ALICE, OPERATOR
from tests.orchestrator.protocols.bencher.channel.scene import held_by, mark_running, new_runner, new_spec, order, row
from tests.orchestrator.services.operation_pairs import Ring, ring
from workers.models import HardwareSpec, Worker, WorkerSpec

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow, pytest.mark.timeout(3600)]
ROUNDS = int(os.environ.get("PROOF_ROUNDS", "1"))
FINAL = {"job.completed", "job.failed", "job.canceled"}


@dataclass(frozen=True)
class Stage:
    """A runner, another one with the same hardware spec, and a job: in execution by the first one, or waiting."""

    spec: HardwareSpec
    runner: Worker
    other: Worker
    job: LeasedJob | None = None
    waiting: Job | None = None

    @property
    def leased(self) -> LeasedJob:
        assert self.job is not None
        return self.job

    @property
    def job_ulid(self) -> str:
        return self.leased.handle.job_ulid if self.waiting is None else self.waiting.job_ulid


def new_stage() -> Stage:
    spec = new_spec()
    return Stage(spec, new_runner(spec), new_runner(spec, slug="other"))


def tell(pair: tuple[Callable[..., Any], ...], outcomes: Counter[str]) -> None:
    if ROUNDS >= 100:
        names, found = " x ".join(act.__name__ for act in pair), ", ".join(f"{n} {k}" for k, n in outcomes.items())
        sys.stderr.write(f"\n{names:40} {outcomes.total():6} rounds: {found}")


# --- A job in execution -----------------------------------------------------------------------------------------------


def completed(stage):
    job = stage.leased
    outcome = operations.finish(job, CompletedFrame(job.uuid, ({"exit_code": 0},)))
    if outcome.unread_job is not None:
        process(outcome.unread_job, outcome.output)


def late(stage):
    """The same result on another socket of the runner."""
    job = stage.leased
    outcome = operations.finish_late(stage.runner, CompletedFrame(job.uuid, ()))
    if outcome.unread_job is not None:
        process(outcome.unread_job, outcome.output)


def foreign(stage):
    """A result by another runner, which never had the job."""
    outcome = operations.finish_late(stage.other, CompletedFrame(stage.leased.uuid, ()))
    assert outcome.unread_job is None


def failed(stage):
    operations.finish(stage.leased, FailedFrame(stage.leased.uuid, (), "x"))


def stopped(stage):
    operations.finish(stage.leased, CanceledFrame(stage.leased.uuid))


def beat(stage):
    operations.renew_leases([stage.leased])


def running(stage):
    mark_running(stage.leased)


def ready(stage):
    """A claim by another runner finds no job."""
    assert claim_for_runner(stage.other).claimed is None


def canceled(stage):
    cancellation.cancel(job_ulid=stage.job_ulid, actor=ALICE, deadline_seconds=60)


def retried(stage):
    retries.retry(job_ulid=stage.job_ulid, actor=OPERATOR, reason="x")


def expired(stage):
    """The lease expires, and the scheduler ends it."""
    Lease.objects.open().filter(job_id=stage.job_ulid).update(expires_at=database_now())
    expiry.expire(job_ulid=stage.job_ulid)


def ended(stage):
    """The late window ends, and the scheduler fails the job."""
    Job.objects.filter(job_ulid=stage.job_ulid, state=JobState.LOST).update(late_result_at=database_now())
    late_results.give_up(job_ulid=stage.job_ulid)


def read(stage):
    """The scheduler reads a result again whose process has ended."""
    read_again(Job.objects.get(job_ulid=stage.job_ulid))


def rotated(stage):
    runners.rotate_runner_key(worker_id=stage.runner.worker_id, cause=Cause(OPERATOR))


def archived(stage):
    runners.change_runner(worker_id=stage.runner.worker_id, archived=True, cause=Cause(OPERATOR))


MESSAGES = (completed, late, foreign, failed, stopped, beat, running, ready)
ACTS = (*MESSAGES, canceled, retried, expired, ended, read, rotated, archived)
TWICE = (completed, late, failed, stopped, beat, running, read)
PAIRS = [*itertools.combinations(ACTS, 2), *((act, act) for act in TWICE)]


@pytest.mark.parametrize("first", ACTS[:-1], ids=lambda act: act.__name__)
def test_of_two_operations_on_a_job_in_execution_there_is_one_end(first, monkeypatch, capsys):
    stage = new_stage()
    with ring(monkeypatch) as meeting:
        for pair in [pair for pair in PAIRS if pair[0] is first]:
            outcomes: Counter[str] = Counter()
            for number in range(ROUNDS):
                if number % 50 == 0:  # as the scheduler does; the queue of each round's organization else stays behind
                    advance_lanes(RowRunner())
                order(stage.spec)
                scene = Stage(stage.spec, stage.runner, stage.other, held_by(stage.runner))
                running(scene)
                meet(meeting, pair, scene)
                outcomes[row(scene.leased).state] += 1
                settle(scene)
                assert_one_end(scene)
            assert [str(finding) for finding in run_audit(chains=True)] == [], pair
            with capsys.disabled():
                tell(pair, outcomes)


def meet(meeting: Ring, pair, scene: Stage) -> list[Any]:
    """Let both happen. A message of a runner is never refused by an exception, and no other one is unexpected."""
    answers = meeting.meet(*(functools.partial(act, scene) for act in pair))
    for act, answer in zip(pair, answers, strict=True):
        if isinstance(answer, LifecycleError):
            assert act not in MESSAGES, (pair, answer)
            assert isinstance(answer, AlreadyFinal | NotRetryable | ResourceConflict), (pair, answer)
    return answers


def settle(scene: Stage) -> None:
    """End a job that the pair has left open, and restore the runner."""
    stopped(scene)
    ended(scene)
    read(scene)
    if not row(scene.leased).is_final:
        expired(scene)
        ended(scene)
    runners.change_runner(worker_id=scene.runner.worker_id, archived=False, cause=Cause(OPERATOR))


def assert_one_end(scene: Stage) -> None:
    kinds = Counter(JobEvent.objects.of(scene.job_ulid).values_list("event_type", flat=True))
    assert sum(kinds[kind] for kind in FINAL) == 1, kinds
    assert row(scene.leased).is_final
    assert not Lease.objects.open().filter(job_id=scene.job_ulid).exists()


def test_many_sockets_of_one_runner_and_one_job():
    """The same result arrives on several connections."""
    stage = new_stage()
    for _ in range(5):
        order(stage.spec)
        scene = Stage(stage.spec, stage.runner, stage.other, held_by(stage.runner))
        running(scene)
        barrier = Barrier(4)
        with ThreadPoolExecutor(4) as threads:
            acts = [
                threads.submit(release_connection_after(_begin), act, scene, barrier)
                for act in (completed, late, completed, late)
            ]
            assert [act.result(60) for act in acts] == [None] * 4
        kinds = Counter(JobEvent.objects.of(scene.job_ulid).values_list("event_type", flat=True))
        assert (kinds["job.processing"], kinds["job.completed"]) == (1, 1)


def _begin(act, scene, barrier):
    barrier.wait(60)
    act(scene)


# --- A job that waits -------------------------------------------------------------------------------------------------


def claimed(stage):
    return claim_for_runner(stage.runner).claimed


def claimed_again(stage):
    """A second socket of the runner."""
    return claim_for_runner(stage.runner).claimed


def claimed_by_another(stage):
    return claim_for_runner(stage.other).claimed


def parted(stage):
    """The runner no longer provides the hardware spec."""
    runners.remove_runner_spec(worker_id=stage.runner.worker_id, spec_uuid=stage.spec.uuid, cause=Cause(OPERATOR))


def connected(stage):
    """A handshake with the present key, which may be rotated or archived meanwhile."""
    try:
        authenticate_runner(f"Bearer {stage.runner.token}", stage.runner.slug)
    except ApiError as refusal:
        if refusal.status != 401:
            raise


def is_claim(act) -> bool:
    return act in {claimed, claimed_again, claimed_by_another}


WAITING_PAIRS = [
    *((claimed, act) for act in (claimed_again, claimed_by_another, canceled, rotated, archived, parted, expired)),
    *((claimed_by_another, act) for act in (canceled, archived)),
    *itertools.combinations((rotated, archived, parted), 2),
    *((connected, act) for act in (rotated, archived)),
    (rotated, rotated),
]


@pytest.mark.parametrize("pair", WAITING_PAIRS, ids=lambda pair: "-".join(act.__name__ for act in pair))
def test_of_two_operations_on_a_waiting_job_there_is_one_story(pair, monkeypatch, capsys):
    stage = new_stage()
    outcomes: Counter[str] = Counter()
    with ring(monkeypatch) as meeting:
        for _ in range(ROUNDS):
            scene = Stage(stage.spec, stage.runner, stage.other, waiting=order(stage.spec))
            answers = meet_waiting(meeting, pair, scene)
            found = [answer for act, answer in zip(pair, answers, strict=True) if is_claim(act) and answer is not None]
            assert len(found) == Lease.objects.open().filter(job_id=scene.job_ulid).count() <= 1
            outcomes["claimed" if found else row(scene.waiting).state] += 1
            assert_restored(scene, pair, found)
            if rotated in pair and not any(isinstance(answer, LifecycleError) for answer in answers):
                assert_rotated(scene.runner)
    assert [str(finding) for finding in run_audit(chains=True)] == []
    with capsys.disabled():
        tell(pair, outcomes)


def meet_waiting(meeting: Ring, pair, scene: Stage) -> list[Any]:
    answers = meeting.meet(*(functools.partial(act, scene) for act in pair))
    refused = [answer for answer in answers if isinstance(answer, LifecycleError)]
    assert [answer.code for answer in refused] in ([], ["conflict"]), (pair, refused)  # the key of an archived runner
    return answers


def assert_restored(scene: Stage, pair, found: list[Any]) -> None:
    """A runner that was archived or parted gets no job from now on; then end the job and restore the runner."""
    refused = {archived, parted} & set(pair)
    if refused and not found:
        assert claim_for_runner(scene.runner).claimed is None
    for claim in found:
        operations.finish(leased_job(claim.lease, claim.lease.worker), CanceledFrame(None))
    job = row(scene.waiting)
    if job.state not in FINAL_STATES:
        cancellation.cancel(job_ulid=job.job_ulid, actor=ALICE, deadline_seconds=60)
    assert row(scene.waiting).state in FINAL_STATES
    runners.change_runner(worker_id=scene.runner.worker_id, archived=False, cause=Cause(OPERATOR))
    WorkerSpec.objects.get_or_create(worker=scene.runner, spec=scene.spec)


def assert_rotated(runner: Worker) -> None:
    """The old key is refused at once. The runner gets one that the next round knows."""
    with pytest.raises(ApiError) as refusal:
        authenticate_runner(f"Bearer {runner.token}", runner.slug)
    assert refusal.value.status == 401
    _, runner.token = runners.rotate_runner_key(worker_id=runner.worker_id, cause=Cause(OPERATOR))
