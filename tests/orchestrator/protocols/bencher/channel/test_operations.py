"""Each message in each status of its job: one test for each cell of contract 3.6, and the rules beside it."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from django.db import transaction
from django.forms import model_to_dict

from leases.models import Lease
from orchestrator.http.auth import authentication
from orchestrator.maintenance.pruning import delete_everything
from orchestrator.protocols.bencher.channel import endpoints, operations
from orchestrator.protocols.bencher.channel.messages import CanceledFrame, CompletedFrame, FailedFrame
from orchestrator.protocols.bencher.channel.session import CloseReason, Reply
from orchestrator.protocols.bencher.states import job_status
from orchestrator.results.outputs import encode_output, output_name, read_output
from orchestrator.results.processing import store_output
from orchestrator.services import cancellation, expiry, heartbeat, job_end, late_results
from runtime_jobs.db_time import database_now
from runtime_jobs.models import Job, JobEvent
from runtime_jobs.states import JobState
from tests.factories import ALICE
from tests.orchestrator.protocols.bencher.channel.scene import (
    REPOSITORY,
    held_by,
    mark_running,
    new_runner,
    new_spec,
    order,
    row,
)
from workers.models import Worker

pytestmark = pytest.mark.django_db(transaction=True)
ACK, CANCEL, REFUSED = Reply.ACK, Reply.CANCEL, Reply.REFUSED
RESULTS = ({"exit_code": 0, "stdout": '{"a": {"latency": {"value": 1}}}'},)


@pytest.fixture
def runner():
    spec = new_spec()
    found = new_runner(spec)
    order(spec)
    return found


@pytest.fixture
def store(tmp_path, settings):
    backend = "orchestrator.core.durable_files.DurableFileStorage"
    settings.STORAGES = settings.STORAGES | {"outputs": {"BACKEND": backend, "OPTIONS": {"location": tmp_path}}}


# --- The ways to each status ------------------------------------------------------------------------------------------


def pending(job):
    heartbeat.release(lease_ulid=job.handle.lease_ulid, worker=job.handle.worker)


def claimed(job):
    pass


def started(job):
    """Acknowledged by a heartbeat: still claimed."""
    assert beat(job) is ACK


def running(job):
    assert mark_running(job) is ACK


def requested(job):
    """A cancel was requested natively, and the runner does not know it yet."""
    running(job)
    cancellation.cancel(job_ulid=job.handle.job_ulid, actor=ALICE, deadline_seconds=60)


def completed(job):
    running(job)
    job_end.complete(lease_ulid=job.handle.lease_ulid, worker=job.handle.worker)


def processed(job):
    completed(job)
    late_results.settle(job_ulid=job.handle.job_ulid)


def lost(job):
    """The runner was silent."""
    running(job)
    expiry.expire(job_ulid=job.handle.job_ulid, now=database_now() + timedelta(seconds=91))


def failed(job):
    """The late window has ended."""
    lost(job)
    late_results.give_up(job_ulid=job.handle.job_ulid, now=database_now() + timedelta(days=1))


def canceled(job):
    running(job)
    cancellation.stop_by_worker(lease_ulid=job.handle.lease_ulid, worker=job.handle.worker)


def timed_out(job):
    """The job exceeded its time limit while its runner sent heartbeats."""
    running(job)
    now = database_now()
    for seconds in range(60, 361, 60):
        heartbeat.renew(
            lease_ulid=job.handle.lease_ulid, worker=job.handle.worker, now=now + timedelta(seconds=seconds - 1)
        )
    expiry.time_out(job_ulid=job.handle.job_ulid, now=now + timedelta(seconds=362))


WAYS = {
    pending: "pending",
    claimed: "claimed",
    started: "claimed",
    running: "running",
    completed: "completed",
    processed: "processed",
    lost: "failed",
    failed: "failed",
    requested: "canceled",
    canceled: "canceled",
    timed_out: "canceled",
}

WAYS_BY_NAME = {way.__name__: way for way in WAYS}

# --- The messages -----------------------------------------------------------------------------------------------------


def run(job):
    return mark_running(job)


def beat(job):
    return operations.renew_leases([job])[job.handle.lease_ulid]


def complete(job):
    return operations.finish(job, CompletedFrame(job.uuid, RESULTS)).reply


def fail(job):
    return operations.finish(job, FailedFrame(job.uuid, RESULTS, "no image")).reply


def stop(job):
    return operations.finish(job, CanceledFrame(job.uuid)).reply


MESSAGES = {"running": run, "heartbeat": beat, "completed": complete, "failed": fail, "canceled": stop}
# Reply, and after `>` the status of the job where that changes.
TABLE = """
            running      heartbeat  completed      failed      canceled
pending     ack          ack        refused        refused     refused
claimed     ack>running  ack        refused        ack>failed  ack>canceled
started     ack>running  ack        refused        ack>failed  ack>canceled
running     ack          ack        ack>processed  ack>failed  ack>canceled
completed   ack          ack        ack            ack         refused
processed   ack          ack        ack            ack         refused
lost        ack          ack        ack>completed  ack         refused
failed      ack          ack        ack            ack         refused
requested   cancel       cancel     ack            ack         ack
canceled    cancel       cancel     ack            ack         ack
timed_out   cancel       cancel     ack            ack         ack
"""
_NAMES, *_ROWS = [line.split() for line in TABLE.strip().splitlines()]
CELLS = [(message, name, cell) for name, *cells in _ROWS for message, cell in zip(_NAMES, cells, strict=True)]
HELD = {"claimed", "started", "running", "requested"}  # a beat renews the lease, a final message may end it


def image(job):
    """The rows of the job, its leases and its events."""
    leases = [model_to_dict(lease) for lease in Lease.objects.filter(job_id=job.handle.job_ulid)]
    return model_to_dict(row(job)), leases, JobEvent.objects.of(job.handle.job_ulid).count()


@pytest.mark.parametrize(("message", "name", "cell"), CELLS, ids=[f"{message}-{name}" for message, name, _ in CELLS])
def test_a_message_in_a_status(runner, message, name, cell):
    job, way, send = held_by(runner), WAYS_BY_NAME[name], MESSAGES[message]
    way(job)
    before = image(job)
    assert job_status(row(job)) == WAYS[way]
    reply, _, status = cell.partition(">")
    assert send(job) == reply
    assert job_status(row(job)) == (status or WAYS[way])
    if not status and (name not in HELD or reply == "refused"):
        assert image(job) == before, "nothing has changed"
    assert send(job) == reply, "a repetition has the same reply"


def test_the_table_has_every_cell():
    assert set(_NAMES) == set(MESSAGES)
    assert [name for name, *_ in _ROWS] == list(WAYS_BY_NAME)


# --- Rules beside the table -------------------------------------------------------------------------------------------


def test_running_acknowledges_and_starts_in_one_transaction(runner):
    job = held_by(runner)
    running(job)
    kinds = JobEvent.objects.of(job.handle.job_ulid).order_by("seq").values_list("event_type", "to_state", "xid")
    (started_kind, *_, first), (progress_kind, state, second) = list(kinds)[-2:]
    assert (started_kind, progress_kind, state) == ("job.started", "job.progress", JobState.EXECUTING)
    assert first == second
    assert row(job).executing_at is not None


def test_a_repeated_running_keeps_the_start(runner):
    job = held_by(runner)
    running(job)
    started_at = row(job).executing_at
    running(job)
    assert row(job).executing_at == started_at


def test_a_final_message_to_a_canceled_job_frees_its_slot(runner):
    job = held_by(runner)
    requested(job)
    assert complete(job) is ACK
    assert row(job).state == JobState.CANCELED
    assert not Lease.objects.open().exists()


def test_a_heartbeat_above_the_time_limit_cancels_the_job(runner, settings):
    job = held_by(runner)
    running(job)
    found = row(job)
    found.executing_at -= timedelta(seconds=361)
    found.save(update_fields=["executing_at"])
    assert beat(job) is CANCEL
    assert job_status(row(job)) == "canceled"
    assert row(job).failure_reason == "timed_out"


def test_a_heartbeat_at_the_time_limit_is_acknowledged(runner):
    job = held_by(runner)
    running(job)
    found = row(job)
    found.executing_at -= timedelta(seconds=350)
    found.save(update_fields=["executing_at"])
    assert beat(job) is ACK


def test_many_runners_are_renewed_together_and_a_stale_one_alone_is_refused():
    spec = new_spec()
    jobs = []
    for number in range(5):
        order(spec)
        jobs.append(held_by(new_runner(spec, slug=f"runner-{number}")))
        running(jobs[-1])
    canceled_job = jobs[2]
    cancellation.stop_by_worker(lease_ulid=canceled_job.handle.lease_ulid, worker=canceled_job.handle.worker)
    replies = operations.renew_leases(jobs)
    assert [replies[job.handle.lease_ulid] for job in jobs] == [ACK, ACK, CANCEL, ACK, ACK]


def test_a_job_that_retention_has_deleted_is_canceled_and_costs_no_other_heartbeat():
    spec, jobs = new_spec(), []
    for number in range(2):
        order(spec)
        jobs.append(held_by(new_runner(spec, slug=f"runner-{number}")))
    failed(jobs[1])
    delete_everything(now=database_now() + timedelta(days=4000))
    assert not Job.objects.filter(job_ulid=jobs[1].handle.job_ulid).exists()
    replies = operations.renew_leases(jobs)
    assert [replies[job.handle.lease_ulid] for job in jobs] == [ACK, CANCEL]


def test_a_late_result_of_an_unknown_job_is_acknowledged(runner):
    job = held_by(runner)
    running(job)
    before = image(job)
    other = new_runner(slug="other")
    for worker, uuid in ((runner, other.uuid), (other, job.uuid)):
        for frame in (CompletedFrame(uuid, RESULTS), FailedFrame(uuid, (), "x"), CanceledFrame(uuid)):
            assert operations.finish_late(worker, frame).reply is ACK
    assert image(job) == before


@pytest.mark.parametrize(("way", "status"), [(running, "processed"), (lost, "completed"), (failed, "failed")])
def test_a_late_result_finds_its_lease_by_job_and_runner(runner, way, status):
    job = held_by(runner)
    way(job)
    outcome = operations.finish_late(runner, CompletedFrame(job.uuid, RESULTS))
    assert outcome.reply is ACK
    assert job_status(row(job)) == status
    assert (outcome.unread_job is not None) == (status == "completed")


@pytest.mark.parametrize("way", [claimed, running, completed])
def test_a_late_result_of_an_earlier_lease_changes_nothing(runner, way):
    """The runner did not receive the job, and another one has it now."""
    earlier = held_by(runner)
    heartbeat.release(lease_ulid=earlier.handle.lease_ulid, worker=runner)
    job = held_by(new_runner(*runner.specs.all(), slug="other"))
    assert job.uuid == earlier.uuid
    way(job)
    before = image(job)
    for frame in (CompletedFrame(job.uuid, RESULTS), FailedFrame(job.uuid, (), "x"), CanceledFrame(job.uuid)):
        assert operations.finish_late(runner, frame).reply is ACK
    assert image(job) == before


def test_a_late_result_of_a_job_that_never_ran_is_refused(runner):
    job = held_by(runner)
    assert operations.finish_late(runner, CompletedFrame(job.uuid, RESULTS)).reply is REFUSED
    assert job_status(row(job)) == "claimed"


@pytest.mark.parametrize(("send", "expected"), [(complete, "completed"), (fail, "failed")])
def test_a_final_message_counts_although_its_lease_has_just_expired(runner, send, expected):
    """The scheduler process has not ended the lease yet."""
    job = held_by(runner)
    running(job)
    Lease.objects.update(expires_at=database_now() - timedelta(seconds=1))
    assert send(job) is ACK
    assert job_status(row(job)) == expected


FIRST, SECOND = encode_output([{"stdout": "first"}]), encode_output(RESULTS)


def output_of(job) -> bytes | None:
    name = output_name(row(job))
    return None if name is None else read_output(REPOSITORY, name)


def store_first(job) -> None:
    """The job has an output, as after a `failed` message."""
    Job.objects.filter(job_ulid=job.handle.job_ulid).update(result=store_output(row(job), FIRST))


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("is_ended", [False, True])
def test_a_result_after_the_late_window_leaves_the_output(runner, is_ended):
    """Also if no scheduler process has ended the job yet."""
    job = held_by(runner)
    lost(job)
    store_first(job)
    Job.objects.update(late_result_at=database_now() - timedelta(seconds=1))
    if is_ended:
        late_results.give_up(job_ulid=job.handle.job_ulid)
    outcome = operations.finish_late(runner, CompletedFrame(job.uuid, RESULTS))
    assert (outcome.reply, outcome.unread_job, row(job).state) == (ACK, None, JobState.FAILED)
    assert output_of(job) == FIRST


@pytest.mark.usefixtures("store")
def test_a_result_within_the_late_window_replaces_the_output(runner):
    job = held_by(runner)
    lost(job)
    store_first(job)
    operations.finish_late(runner, CompletedFrame(job.uuid, RESULTS))
    assert (output_of(job), row(job).state) == (SECOND, JobState.PROCESSING)


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("send", [complete, fail])
def test_a_final_message_that_does_not_count_leaves_the_output(runner, send):
    """The lease has expired, and the job has no late window."""
    job = held_by(runner)
    running(job)
    store_first(job)
    Job.objects.update(late_result_seconds=0)
    Lease.objects.update(expires_at=database_now() - timedelta(seconds=1))
    assert send(job) is ACK
    assert (output_of(job), row(job).state) == (FIRST, JobState.FAILED)


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("has_late_window", [True, False])
@pytest.mark.parametrize("send", [complete, fail])
def test_a_window_that_ends_while_the_store_writes_leaves_the_output(runner, monkeypatch, send, has_late_window):
    """The output is written before the transaction that decides whether its result counts."""
    job = held_by(runner)
    (lost if has_late_window else running)(job)
    store_first(job)
    expected = row(job).state if has_late_window and send is fail else JobState.FAILED
    original, past = store_output, database_now() - timedelta(seconds=1)

    def store(*arguments):
        found = original(*arguments)
        if has_late_window:
            Job.objects.update(late_result_at=past)
        else:
            Job.objects.update(late_result_seconds=0)
            Lease.objects.update(expires_at=past)
        return found

    monkeypatch.setattr(operations, "store_output", store)
    assert send(job) is ACK
    assert (output_of(job), row(job).state) == (FIRST, expected)


def test_a_heartbeat_under_an_expired_lease_renews_nothing(runner):
    job = held_by(runner)
    running(job)
    Lease.objects.update(expires_at=database_now() - timedelta(seconds=1))
    before = image(job)
    assert beat(job) is ACK
    assert image(job) == before


def test_silence_ends_the_lease(runner):
    job = held_by(runner)
    running(job)
    Lease.objects.update(expires_at=database_now() - timedelta(seconds=1))
    outcome = operations.expire(job)
    assert (outcome.reason, outcome.retry_seconds) == (CloseReason.HEARTBEAT_TIMEOUT, None)
    assert job_status(row(job)) == "failed"


def test_silence_above_the_time_limit_cancels(runner):
    job = held_by(runner)
    running(job)
    past = database_now() - timedelta(seconds=1)
    found = row(job)
    found.executing_at -= timedelta(seconds=400)
    found.save(update_fields=["executing_at"])
    Lease.objects.update(expires_at=past)
    assert operations.expire(job).reason is CloseReason.JOB_TIMEOUT_EXCEEDED
    assert job_status(row(job)) == "canceled"


def test_a_lease_that_another_socket_renews_is_not_ended(runner):
    job = held_by(runner)
    running(job)
    outcome = operations.expire(job)
    assert outcome.retry_seconds == pytest.approx(90, abs=10)
    assert job_status(row(job)) == "running"


@pytest.mark.parametrize("text", ["nul \0", "x" * 100_000, "\x1b[31m"])
def test_any_error_text_can_be_stored(runner, text):
    job = held_by(runner)
    running(job)
    assert operations.finish(job, FailedFrame(job.uuid, (), text)).reply is ACK
    assert job_status(row(job)) == "failed"
    assert "\0" not in (row(job).failure_message or "")


def test_a_heartbeat_shows_that_a_runner_is_online_and_a_locked_row_delays_no_other(monkeypatch):
    spec, runners, jobs = new_spec(), [], []
    for number in range(2):
        order(spec)
        runners.append(new_runner(spec, slug=f"runner-{number}"))
        jobs.append(held_by(runners[-1]))
    Worker.objects.update(last_seen_at=None)
    monkeypatch.setattr(authentication, "_touched", {})
    with ThreadPoolExecutor(1) as threads, transaction.atomic():
        Worker.objects.select_for_update().get(pk=runners[0].pk)
        replies = threads.submit(endpoints._renew_leases, jobs, set()).result(30)
    assert set(replies.values()) == {ACK}
    assert [Worker.objects.get(pk=runner.pk).last_seen_at is None for runner in runners] == [True, False]
    endpoints._renew_leases(jobs, set())
    assert all(Worker.objects.values_list("last_seen_at", flat=True))
