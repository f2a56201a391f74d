"""Operations that read without locks: two statements, and the result of a transaction whatever happens in between."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction
from django.test.utils import CaptureQueriesContext

from leases import fencing
from leases.errors import StaleLease
from leases.models import Lease
from orchestrator.core import unit_of_work
from orchestrator.core.bulk_write import Changes, write_changes
from orchestrator.services import batch_calls, cancellation, claiming, expiry, heartbeat, job_end, worker_state
from orchestrator.services.heartbeat import HeartbeatUpdate
from orchestrator.services.job_end import CompleteMessage, FailMessage
from orchestrator.step_logs import job_log_writes
from runtime_jobs.errors import Conflict, LifecycleError
from runtime_jobs.models import Job, JobEvent
from runtime_jobs.states import FailureReason
from tests.factories import ALICE, OPERATOR, ProjectFactory, WorkerFactory, claimed, offer, submitted, submitted_steps
from tests.live_server import eventually
from tests.orchestrator.services.test_clock_after_locks import waits_for_a_lock
from tests.orchestrator.services.test_heartbeat import speak

pytestmark = pytest.mark.django_db(transaction=True)

READ, WRITE = "SELECT t.", "SELECT written.* FROM  write_changes"


@pytest.fixture
def claim():
    """A job without a run on an active lease."""
    submitted_steps()
    return claimed(job_types=("steps",))


@pytest.fixture
def granted():
    submitted_steps()
    return claimed(job_types=("steps",), acknowledge=True)


@pytest.fixture
def read_again(monkeypatch) -> list[str]:
    """The operations that were repeated in a transaction."""
    repeated: list[str] = []
    original = unit_of_work._run_in_transaction

    def recorded(retries, function, /, *args, **kwargs):
        repeated.append(function.__name__.removeprefix("_"))
        return original(retries, function, *args, **kwargs)

    monkeypatch.setattr(unit_of_work, "_run_in_transaction", recorded)
    return repeated


def sent(call: Callable[[], Any]) -> list[str]:
    with CaptureQueriesContext(connection) as captured:
        call()
    return [query["sql"] for query in captured.captured_queries]


def meanwhile(monkeypatch, change: Callable[[], Any]) -> None:
    """Make this change, in a session of its own, after the read of the next operation."""
    original = fencing._read_unlocked

    def and_then(*args):
        monkeypatch.setattr(fencing, "_read_unlocked", original)
        found = original(*args)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(_closing, change).result(30)
        return found

    monkeypatch.setattr(fencing, "_read_unlocked", and_then)


def _closing(act: Callable[[], Any]) -> Any:
    try:
        return act()
    finally:
        connection.close()


MESSAGES: dict[str, Callable[[Any], Any]] = {
    "acknowledge": lambda given: heartbeat.acknowledge(**speak(given)),
    "renew": lambda given: heartbeat.renew(**speak(given, now=given.lease.leased_at + timedelta(seconds=5))),
    "renew to a phase": lambda given: heartbeat.renew(**speak(given, phase="executing", progress={"percent": 1})),
    "stop_by_worker": lambda given: cancellation.stop_by_worker(**speak(given)),
    "report": lambda given: heartbeat.report(**speak(given, phase="checking_out")),
    "complete": lambda given: job_end.complete(**speak(given, exit_code=0, result={"steps": []})),
    "fail": lambda given: job_end.fail(**speak(given, reason=FailureReason.OUT_OF_MEMORY)),
    "release": lambda given: heartbeat.release(**speak(given)),
    "acknowledge_many": lambda given: batch_calls.acknowledge_many(
        batch_calls.messages_of(given.lease.worker, {given.lease.lease_ulid: None})
    ),
    "renew_many": lambda given: batch_calls.renew_many(
        batch_calls.messages_of(given.lease.worker, {given.lease.lease_ulid: HeartbeatUpdate(phase="executing")})
    ),
    "complete_many": lambda given: batch_calls.complete_many(
        batch_calls.messages_of(given.lease.worker, {given.lease.lease_ulid: CompleteMessage()})
    ),
    "fail_many": lambda given: batch_calls.fail_many(
        batch_calls.messages_of(given.lease.worker, {given.lease.lease_ulid: FailMessage(FailureReason.OUT_OF_MEMORY)})
    ),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_is_one_read_and_one_write(granted, name):
    statements = sent(lambda: MESSAGES[name](granted))
    assert [statement.split(",")[0][: len(WRITE)].startswith((READ, WRITE)) for statement in statements] == [True, True]


def test_a_cancel_that_is_acknowledged_is_one_read_and_one_write(claim):
    cancellation.cancel(job_ulid=claim.job.job_ulid, actor=ALICE, deadline_seconds=30)
    assert len(sent(lambda: job_end.acknowledge_cancel(**speak(claim)))) == 2


def test_a_repeated_message_is_one_read(claim):
    complete = lambda: job_end.complete(**speak(claim, exit_code=0))  # noqa: E731
    complete()
    assert len(sent(complete)) == 1


def test_a_heartbeat_updates_only_the_lease(claim):
    before = Job.objects.get(pk=claim.job.pk)
    heartbeat.renew(**speak(claim, now=claim.lease.leased_at + timedelta(seconds=5)))
    [version] = (
        Job.objects.filter(pk=claim.job.pk).extra(select={"version": "xmin::text"}).values_list("version", flat=True)
    )
    assert Job.objects.get(pk=claim.job.pk).updated_at == before.updated_at
    heartbeat.renew(**speak(claim, now=claim.lease.leased_at + timedelta(seconds=9)))
    assert [version] == list(
        Job.objects.filter(pk=claim.job.pk).extra(select={"version": "xmin::text"}).values_list("version", flat=True)
    )


CHANGES: dict[str, Callable[[Any], Any]] = {
    "another heartbeat": lambda given: heartbeat.renew(
        **speak(given, progress={"percent": 7}, now=given.lease.leased_at + timedelta(seconds=3))
    ),
    "a cancel request": lambda given: cancellation.cancel(
        job_ulid=given.job.job_ulid, actor=ALICE, deadline_seconds=30
    ),
    "a chunk of the log": lambda given: job_log_writes.append_log(**speak(given, seq=0, chunk=b"x")),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", MESSAGES)
def test_a_change_after_the_read_is_seen(claim, monkeypatch, read_again, name, change):
    meanwhile(monkeypatch, lambda: CHANGES[change](claim))
    MESSAGES[name](claim)
    job = Job.objects.get(pk=claim.job.pk)
    seen = {
        "another heartbeat": job.progress is not None or name in {"release", "renew to a phase"},
        "a cancel request": job.cancel_requested_at is not None,
        "a chunk of the log": job.log_bytes == 1,
    }
    assert seen[change]
    only_lease = name == "renew" and change != "another heartbeat"  # it counts as earlier than the change of the job
    if name not in {"acknowledge", "acknowledge_many"} and not only_lease:  # it is acknowledged: nothing to write
        operation = "decide_optimistically" if name.endswith("_many") else name.split(" ")[0]
        assert operation in read_again, "it was decided again, under the lock"
    seqs = list(JobEvent.objects.of(job.job_ulid).values_list("seq", flat=True))
    assert seqs == list(range(1, job.event_seq + 1))


ENDS: dict[str, Callable[[Any], Any]] = {
    "complete": lambda given: job_end.complete(**speak(given, exit_code=1)),
    "revoke": lambda given: worker_state.revoke(job_ulid=given.job.job_ulid, actor=OPERATOR, reason="x"),
    "expire": lambda given: expiry.expire(
        job_ulid=given.job.job_ulid, now=given.lease.expires_at + timedelta(seconds=1)
    ),
    "requeue and claim again": lambda given: (
        heartbeat.release(**speak(given)),
        claiming.claim(worker=given.lease.worker, offer=offer(given.lease.worker, job_types=("steps",))),
    ),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize(
    "name", [name for name in MESSAGES if not name.endswith(("_many", "_workers")) and name != "acknowledge"]
)
def test_an_end_after_the_read_refuses_the_message(claim, monkeypatch, name, end):
    if (name, end) == ("release", "requeue and claim again"):
        pytest.skip("the same message again is no refusal")
    meanwhile(monkeypatch, lambda: ENDS[end](claim))
    with pytest.raises((StaleLease, Conflict)):
        MESSAGES[name](claim)
    lease = Lease.objects.get(pk=claim.lease.pk)
    assert lease.completed_at is not None
    assert JobEvent.objects.of(claim.job.job_ulid).count() == Job.objects.get(pk=claim.job.pk).event_seq


def test_a_lease_that_expires_between_read_and_write_is_refused(claim, monkeypatch):
    """Time alone changes no row: the write compares the clock."""
    original = fencing._read_unlocked

    def read_early(*args):
        Lease.objects.filter(pk=claim.lease.pk).update(expires_at=claim.lease.leased_at + timedelta(days=1))
        [locked] = original(*args)
        past = locked.lease.leased_at
        args[-1].live_until = past
        Lease.objects.filter(pk=claim.lease.pk).update(expires_at=past)
        return [locked]

    monkeypatch.setattr(fencing, "_read_unlocked", read_early)
    with pytest.raises(StaleLease):
        job_end.complete(**speak(claim))


def test_a_refusal_is_confirmed_under_the_lock(claim, monkeypatch, read_again):
    """The commit in flight decides, not the snapshot before it: a heartbeat that is about to commit keeps the lease."""
    Lease.objects.filter(pk=claim.lease.pk).update(expires_at=claim.lease.leased_at)
    later = claim.lease.leased_at + timedelta(days=1)
    meanwhile(monkeypatch, lambda: Lease.objects.filter(pk=claim.lease.pk).update(expires_at=later))
    assert job_end.complete(**speak(claim, exit_code=0)).state == "succeeded"
    assert read_again == ["complete"]


def test_a_refused_entry_is_confirmed_under_the_lock(claim, monkeypatch, read_again):
    Lease.objects.filter(pk=claim.lease.pk).update(expires_at=claim.lease.leased_at)
    later = claim.lease.leased_at + timedelta(days=1)
    meanwhile(monkeypatch, lambda: Lease.objects.filter(pk=claim.lease.pk).update(expires_at=later))
    name = claim.lease.lease_ulid
    results = batch_calls.complete_many(
        batch_calls.messages_of(claim.lease.worker, {name: CompleteMessage(), "rtl_none": CompleteMessage()})
    )
    assert [type(result).__name__ for result in results.values()] == ["Ended", "StaleLease"]
    assert read_again == ["decide_in_transaction"]


@pytest.mark.parametrize("table", [Job, Lease])
@pytest.mark.parametrize("number", [1, 2])
def test_the_write_waits_for_the_lock_and_then_sees_the_change(table, number):
    """The comparison has a snapshot after the wait, not the one of the statement."""
    project, worker = ProjectFactory(), WorkerFactory(capacity=9)
    for _ in range(number):
        submitted(project)
    names = [given.lease.lease_ulid for given in claiming.claim_many(worker=worker, offer=offer(worker), limit=number)]
    found = fencing._read_unlocked(dict.fromkeys(names, worker), None, versions := fencing.RowVersions())
    claim, row = found[-1], found[-1].job if table is Job else found[-1].lease
    for given in found:
        given.job.log_bytes, given.lease.final_digest = 9, "changed"
    changes = Changes(
        jobs=[given.job for given in found] if table is Job else [], leases=[given.lease for given in found]
    )
    locked, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction.atomic():
            table.objects.select_for_update(no_key=True).get(pk=row.pk)
            locked.set()
            go_on.wait(30)
            table.objects.filter(pk=row.pk).update(state=row.state)

    with ThreadPoolExecutor(2) as pool:
        holder = pool.submit(_closing, hold)
        assert locked.wait(30)
        writing = pool.submit(_closing, lambda: write_changes(changes, versions=versions))
        _until_one_waits()
        go_on.set()
        holder.result(30)
        assert writing.result(30) is False
    assert Job.objects.get(pk=claim.job.pk).log_bytes == 0
    assert Lease.objects.get(pk=claim.lease.pk).final_digest is None


def _until_one_waits() -> None:
    eventually(waits_for_a_lock, 30)


def test_a_row_that_is_gone_is_an_error(claim):
    job = Job.objects.get(pk=claim.job.pk)
    job.pk += 1
    with pytest.raises(DatabaseError, match="updated 0 of 1"):
        write_changes(Changes(jobs=[job]))


def test_a_change_of_a_row_that_was_not_read_is_an_error(claim):
    with pytest.raises(KeyError):
        write_changes(Changes(jobs=[claim.job]), versions=fencing.RowVersions())


def test_only_an_error_of_the_decision_is_repeated(claim, monkeypatch, read_again):
    """A lost connection may have committed: the caller must learn of it."""

    def lost(*_, **__):
        raise unit_of_work.OperationalError("connection lost")

    monkeypatch.setattr(unit_of_work, "write_changes", lost)
    with pytest.raises(unit_of_work.OperationalError):
        job_end.complete(**speak(claim))
    assert read_again == []


def test_refusals_are_those_of_a_transaction(claim):
    """No refusal of the optimistic attempt reaches the caller: the message names the final status."""
    job_end.complete(**speak(claim, exit_code=0))
    for refused in (
        lambda: heartbeat.renew(**speak(claim)),
        lambda: job_end.fail(**speak(claim, reason=FailureReason.OUT_OF_MEMORY)),
        lambda: heartbeat.release(**speak(claim)),
    ):
        with pytest.raises(LifecycleError):
            refused()
    other = WorkerFactory()
    with pytest.raises(StaleLease):
        heartbeat.renew(lease_ulid=claim.lease.lease_ulid, worker=other)


def test_two_jobs_of_one_call_are_locked_in_the_order_of_their_keys(read_again):
    project, worker = ProjectFactory(), WorkerFactory(capacity=9)
    for _ in range(3):
        submitted(project)
    names = [given.lease.lease_ulid for given in claiming.claim_many(worker=worker, offer=offer(worker), limit=3)]
    results = batch_calls.renew_many(
        batch_calls.messages_of(worker, dict.fromkeys(reversed(names), HeartbeatUpdate(phase="executing")))
    )
    assert list(results) == list(reversed(names))
    assert "renew_many" not in read_again


def test_one_job_of_several_leases_is_locked_before_the_leases():
    project, worker = ProjectFactory(), WorkerFactory(capacity=9)
    submitted(project), submitted(project)
    first, second = claiming.claim_many(worker=worker, offer=offer(worker), limit=2)
    names = [first.lease.lease_ulid, second.lease.lease_ulid]
    updates = {names[0]: HeartbeatUpdate(phase="executing"), names[1]: HeartbeatUpdate()}
    now = first.lease.leased_at + timedelta(seconds=5)  # so that both leases get longer
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            Job.objects.select_for_update(no_key=True).get(pk=first.job.pk)
            renewing = pool.submit(
                _closing, lambda: batch_calls.renew_many(batch_calls.messages_of(worker, updates), now=now)
            )
            _until_one_waits()
            Lease.objects.select_for_update(no_key=True, nowait=True).get(pk=first.lease.pk)
        assert list(renewing.result(30)) == names
