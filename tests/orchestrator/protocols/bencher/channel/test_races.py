"""Two messages about one job at the same time: one wins, and the job has one final event."""

import itertools
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from leases.models import Lease
from orchestrator import services
from orchestrator.audit.runner import run_audit
from orchestrator.http.db_scope import release_connection_after
from orchestrator.protocols.bencher.channel import operations
from orchestrator.protocols.bencher.channel.messages import CanceledFrame, CompletedFrame, FailedFrame
from orchestrator.results.processing import process
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import AlreadyFinal
from runtime_jobs.models import Job, JobEvent
from runtime_jobs.states import JobState
from tests.factories import ALICE
from tests.orchestrator.protocols.bencher.channel.scene import held_by, new_runner, new_spec, order, row

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]
ROUNDS = 5
FINAL = {"job.completed", "job.failed", "job.canceled"}


def completed(job):
    outcome = operations.finish(job, CompletedFrame(job.uuid, ({"exit_code": 0},)))
    if outcome.unread_job is not None:
        process(outcome.unread_job, outcome.output)


def late(job):
    outcome = operations.finish_late(job.handle.worker, CompletedFrame(job.uuid, ()))
    if outcome.unread_job is not None:
        process(outcome.unread_job, outcome.output)


def failed(job):
    operations.finish(job, FailedFrame(job.uuid, (), "x"))


def stopped(job):
    operations.finish(job, CanceledFrame(job.uuid))


def beat(job):
    operations.renew_leases([job])


def running(job):
    operations.mark_running(job)


def canceled(job):
    services.cancel(job_ulid=job.handle.job_ulid, actor=ALICE, deadline_seconds=60)


def expired(job):
    """The lease expires, and the scheduler ends it."""
    Lease.objects.open().filter(job_id=job.handle.job_ulid).update(expires_at=database_now())
    services.expire(job_ulid=job.handle.job_ulid)


def ended(job):
    """The late window ends, and the scheduler fails the job."""
    Job.objects.filter(job_ulid=job.handle.job_ulid, state=JobState.LOST).update(late_result_at=database_now())
    services.give_up(job_ulid=job.handle.job_ulid)


ACTS = (completed, late, failed, stopped, beat, running, canceled, expired, ended)
PAIRS = [*itertools.combinations(ACTS, 2), (completed, completed), (late, late), (failed, failed), (stopped, stopped)]


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: "-".join(act.__name__ for act in pair))
def test_a_pair_of_messages(pair):
    spec = new_spec()
    runner = new_runner(spec)
    with ThreadPoolExecutor(2) as threads:
        for _ in range(ROUNDS):
            order(spec)
            job = held_by(runner)
            running(job)
            barrier = Barrier(2)
            together = [threads.submit(release_connection_after(_begin), act, job, barrier) for act in pair]
            for act in together:
                error = act.exception(60)
                assert error is None or isinstance(error, AlreadyFinal), repr(error)  # of the client's cancel only
            _settle(job)
            kinds = Counter(JobEvent.objects.of(job.handle.job_ulid).values_list("event_type", flat=True))
            assert sum(kinds[kind] for kind in FINAL) == 1, kinds
            assert row(job).is_final
            assert not Lease.objects.open().filter(job_id=job.handle.job_ulid).exists()
    assert [str(finding) for finding in run_audit(chains=True)] == []


def _begin(act, job, barrier):
    barrier.wait(60)
    act(job)


def _settle(job):
    """End a job that the pair has left open: its runner ends it, or its late window ends."""
    stopped(job)
    ended(job)
    if not row(job).is_final:
        expired(job)
        ended(job)


def test_many_sockets_of_one_runner_and_one_job():
    """The same result arrives on several connections."""
    spec = new_spec()
    runner = new_runner(spec)
    for _ in range(5):
        order(spec)
        job = held_by(runner)
        running(job)
        barrier = Barrier(4)
        with ThreadPoolExecutor(4) as threads:
            acts = [
                threads.submit(release_connection_after(_begin), act, job, barrier)
                for act in (completed, late, completed, late)
            ]
            assert [act.result(60) for act in acts] == [None] * 4
        kinds = Counter(JobEvent.objects.of(job.handle.job_ulid).values_list("event_type", flat=True))
        assert (kinds["job.processing"], kinds["job.completed"]) == (1, 1)
