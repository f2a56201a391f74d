"""Failures of a row or a task do not end the round or the process of the scheduler."""

import time
from datetime import timedelta

import pytest
from django.db import InterfaceError, OperationalError
from psycopg.errors import (
    AdminShutdown,
    ConnectionFailure,
    DeadlockDetected,
    DiskFull,
    IdleInTransactionSessionTimeout,
    LockNotAvailable,
)

from config.databases import TIMEOUTS
from leases.models import LaneHead, Lease, Limit, LimitKind, LimitScope, QueueHead
from leases.scheduling import periodic
from leases.scheduling.limits import LimitTarget
from leases.states import OPEN
from orchestrator.checks import scheduler_takeover
from orchestrator.core import metrics_aggregation
from orchestrator.core.clock_beat import ClockBeat
from orchestrator.core.metrics_models import Count
from orchestrator.core.row_batches import RowRunner
from orchestrator.maintenance import leases as maintenance_leases
from orchestrator.maintenance import queues
from orchestrator.processes import scheduler as scheduler_module
from orchestrator.processes.leadership import Leadership, LeadershipLost
from orchestrator.processes.scheduler import FAILED_RUNS_TO_YIELD, Scheduler, Task
from orchestrator.services import dependency_propagation, expiry, job_end
from runtime_jobs.db_errors import is_database_unavailable
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import NotFound
from runtime_jobs.models import EndedDependency, Job
from runtime_jobs.states import JobState
from tests.factories import ProjectFactory, claimed, limited, submitted
from tests.orchestrator.services.conftest import after

pytestmark = pytest.mark.django_db
ROWS = [{"job_ulid": name} for name in ("rtj_a", "rtj_b", "rtj_c")]


def failing(error, cause=None, *, names=("rtj_a",)):
    """An operation that fails for these rows, and the rows for which it was called."""
    tried = []

    def operation(*, job_ulid, now=None):
        tried.append(job_ulid)
        if job_ulid in names:
            raise error from cause
        return job_ulid

    return operation, tried


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (OperationalError("deadlock"), DeadlockDetected()),
        (OperationalError("disk full"), DiskFull()),
        (NotFound("gone"), None),
        (Lease.DoesNotExist(), None),
        (ZeroDivisionError(), None),
    ],
)
def test_a_row_that_fails_is_logged_and_the_others_are_processed(error, cause, caplog):
    operation, tried = failing(error, cause)
    rows = RowRunner("test")
    assert rows.each(operation, ROWS) == 2
    assert tried == ["rtj_a", "rtj_b", "rtj_c"]
    assert "operation of {'job_ulid': 'rtj_a'} failed" in caplog.text
    assert "Traceback" in caplog.text
    assert rows.failed_rows == 1


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (OperationalError("gone"), AdminShutdown()),
        (OperationalError("gone"), ConnectionFailure()),
        (InterfaceError("closed"), None),
    ],
)
def test_a_lost_connection_ends_the_round(error, cause):
    operation, tried = failing(error, cause)
    with pytest.raises(type(error)):
        RowRunner("test").each(operation, ROWS)
    assert tried == ["rtj_a"]


def test_a_row_that_fails_is_left_alone_for_longer_each_time_and_hides_no_other():
    now = [0.0]
    operation, tried = failing(ValueError())
    rows = RowRunner("test", monotonic=lambda: now[0])
    for seconds in (0, 0.5, 1, 2, 3, 6.9, 7):
        now[0] = seconds
        rows.each(operation, ROWS[:1])
    assert len(tried) == 4, "at 0, 1, 3 and 7"
    assert rows.suspended("job_ulid") == ["rtj_a"]


def test_more_failing_leases_than_a_page_holds_keep_no_other_from_its_end(monkeypatch):
    """The first page is full of leases whose end fails: the next round takes those behind them."""
    monkeypatch.setattr(maintenance_leases, "BATCH", 2)
    project = ProjectFactory()
    leases = []
    for _ in range(3):
        submitted(project)
        leases.append(claimed(acknowledge=True).lease)
    broken = {lease.job_id for lease in leases[:2]}
    original = expiry.expire

    def expire(*, job_ulid, now):
        if job_ulid in broken:
            raise RuntimeError("a bug")
        return original(job_ulid=job_ulid, now=now)

    monkeypatch.setattr(expiry, "expire", expire)
    rows = RowRunner("expire_leases")
    for _ in range(2):
        maintenance_leases.expire_leases(rows, now=after(leases[2].leased_at, 31))
    assert Lease.objects.filter(state__in=OPEN).count() == 2
    assert Job.objects.get(job_ulid=leases[2].job_id).state == JobState.QUEUED


def raising(error):
    def run(_rows):
        raise error

    return run


def test_a_task_that_fails_stops_no_other_and_is_counted(caplog):
    ran = []
    tasks = (Task("broken", raising(RuntimeError("a bug"))), Task("whole", lambda _rows: ran.append(1)))
    scheduler = Scheduler(period=1, tasks=tasks)
    assert scheduler.round()
    assert ran == [1]
    assert "task broken failed" in caplog.text
    assert Count.objects.get(name="scheduler_task_failures", detail="broken").value == 1
    assert Count.objects.get(name="scheduler_takeovers").value == 1


def test_the_beat_is_written_before_the_first_task():
    beats = []
    tasks = (Task("first", lambda _rows: beats.append(ClockBeat.objects.get().leader)),)
    scheduler = Scheduler(period=1, tasks=tasks)
    scheduler.round()
    assert beats == [scheduler.name]


def test_a_long_round_writes_beats_between_its_rows(monkeypatch):
    monkeypatch.setattr(scheduler_module, "BEAT_SECONDS", 0.0)
    seen = []

    def operation(*, job_ulid):
        seen.append(ClockBeat.objects.get().beat_at)

    Scheduler(period=1, tasks=(Task("long", lambda rows: rows.each(operation, ROWS)),)).round()
    assert len(set(seen)) == 3


def test_a_leader_whose_task_goes_on_failing_lets_another_one_lead():
    leader = Scheduler(period=1, tasks=(Task("broken", raising(RuntimeError("a bug"))),))
    standby = Leadership("standby", takeover_seconds=6)
    for _ in range(FAILED_RUNS_TO_YIELD):
        assert leader.round()
        leads = ClockBeat.objects.get().released_at is None
        assert leads == (leader.leadership.term is not None)
        assert not leads or not standby.hold()
    assert standby.hold(), "the row is released"
    assert not leader.round()
    assert ClockBeat.objects.get().leader == "standby"


def test_without_a_standby_it_leads_again_and_tolerates_more(monkeypatch):
    monkeypatch.setattr(scheduler_module, "YIELD_SECONDS", 0.0)
    ran = []
    tasks = (Task("broken", raising(RuntimeError("a bug"))), Task("whole", lambda _rows: ran.append(1)))
    scheduler = Scheduler(period=1, tasks=tasks)
    led = [scheduler.round() for _ in range(20)]
    assert all(led)
    assert len(ran) == 20, "the other tasks run in every round"
    assert ClockBeat.objects.get().term == 4, "it yielded after 3, 5 more and 11 more failures"


def test_a_leader_that_another_one_has_replaced_stops_in_the_middle_of_its_round(caplog):
    ran = []

    def replaced(_rows):
        ClockBeat.objects.update(term=99, leader="other")

    scheduler = Scheduler(period=1, tasks=(Task("a", replaced), Task("b", lambda _rows: ran.append(1))))
    scheduler._beat_due = float("-inf")
    original = scheduler_module.BEAT_SECONDS
    scheduler_module.BEAT_SECONDS = 0.0
    try:
        with pytest.raises(LeadershipLost):
            scheduler.round()
    finally:
        scheduler_module.BEAT_SECONDS = original
    assert ran == []
    assert ClockBeat.objects.get().leader == "other"
    assert not scheduler.round(), "it stands by"


def test_a_former_leader_does_not_hold_the_same_term_of_another_process():
    former, new = Leadership("former", takeover_seconds=6), Leadership("new", takeover_seconds=6)
    assert former.hold()
    ClockBeat.objects.all().delete()
    assert new.hold()
    assert former.term == new.term, "terms are counted anew"
    assert not former.hold()
    assert new.hold()
    former.term = new.term
    former.release()
    beat = ClockBeat.objects.get()
    assert (beat.leader, beat.released_at) == ("new", None)


def test_a_beat_of_the_release_before_counts_as_one_of_a_leader():
    ClockBeat.objects.create(pk=1, leader="old:1", beat_at=database_now())
    new = Leadership("new", takeover_seconds=6)
    assert not new.hold()
    ClockBeat.objects.update(beat_at=database_now() - timedelta(seconds=7))
    assert new.hold()


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OperationalError("gone"), ""),  # `runtime_jobs.db_outage` has logged it
        (IdleInTransactionSessionTimeout("gone"), "the session has ended: gone"),
        (NotFound("gone"), "a round failed"),
        (Lease.DoesNotExist(), "a round failed"),
        (ZeroDivisionError(), "a round failed"),
    ],
)
def test_the_process_outlives_a_round_that_failed(monkeypatch, caplog, error, message):
    """Only errors of the database were caught: after each restart another one ended the process at the same row."""

    def round_(_self):
        raise error

    monkeypatch.setattr(Scheduler, "round", round_)
    monkeypatch.setattr("orchestrator.processes.scheduler.connection.close", lambda: None)
    Scheduler(period=0.01).run(once=True)
    assert message in caplog.text
    assert bool(caplog.records) == bool(message)


def test_numbers_that_cannot_be_counted_end_no_round(monkeypatch, caplog):
    def advance(_self):
        raise OperationalError("statement timeout") from DeadlockDetected()

    monkeypatch.setattr(metrics_aggregation.EventCounter, "advance", advance)
    assert Scheduler(period=1).round()
    assert "task count_metrics failed" in caplog.text


def test_what_is_no_trouble_with_the_connection_is_not_away():
    assert not is_database_unavailable(ValueError())
    assert is_database_unavailable(OperationalError())


def test_a_piece_that_cannot_be_done_keeps_no_other_from_its_turn(monkeypatch, caplog):
    subject = LimitTarget(LimitScope.POOL, "", "shared-linux")
    limited(subject, kind=LimitKind.PAUSE, max_active=0, until=database_now() + timedelta(hours=1))
    Limit.objects.update(until=database_now())

    def locked():
        raise OperationalError("lock timeout") from LockNotAvailable()

    monkeypatch.setattr(periodic, "activate_due", locked)
    assert Scheduler(period=1).round()
    assert not Limit.objects.exists()
    assert "task activate_due_queues failed" in caplog.text


def test_every_task_of_scheduling_runs():
    names = [task.name for task in scheduler_module.TASKS]
    assert len(set(names)) == len(names)
    assert {task.__name__ for task in (*queues.EVERY_ROUND, *queues.SLOW)} <= set(names)


def test_a_dependent_that_fails_is_tried_once_a_round_and_stops_no_other(monkeypatch, caplog):
    project = ProjectFactory()
    first = submitted(project)
    dependents = [submitted(project, depends_on=(first,)) for _ in range(3)]
    monkeypatch.setattr(dependency_propagation, "INLINE_LIMIT", 0)
    job_end.complete(lease_ulid=(claim := claimed()).lease.lease_ulid, worker=claim.lease.worker, ingest_run_id="r")
    assert EndedDependency.objects.count() == 1
    tried, original = [], dependency_propagation._apply_status

    def apply_status(uow, job, status, now):
        if job.pk == dependents[0].pk:
            tried.append(job.pk)
            raise RuntimeError("a bug")
        return original(uow, job, status, now)

    monkeypatch.setattr(dependency_propagation, "_apply_status", apply_status)
    dependency_propagation.propagate_pending(limit=200)
    assert Job.objects.filter(state=JobState.QUEUED).count() == 2
    assert len(tried) == 2, "once with its page, once alone"
    monkeypatch.setattr(dependency_propagation, "_apply_status", original)
    dependency_propagation.propagate_pending(limit=200)
    assert Job.objects.filter(state=JobState.QUEUED).count() == 3


def test_running_jobs_that_are_not_due_are_not_loaded(monkeypatch, django_assert_max_num_queries):
    project = ProjectFactory()
    now = database_now()
    for seconds in (300, 360):
        submitted(project, timeout_seconds=seconds)
        lease = claimed().lease
        Job.objects.filter(job_ulid=lease.job_id).update(state=JobState.EXECUTING, executing_at=now)
    loaded = []
    original = Job.from_db.__func__
    monkeypatch.setattr(Job, "from_db", classmethod(lambda cls, *a: loaded.append(1) or original(cls, *a)))
    due = []
    monkeypatch.setattr(expiry, "time_out", lambda job_ulid, now: due.append(job_ulid))
    rows = RowRunner()
    with django_assert_max_num_queries(2):
        maintenance_leases.time_out_phases(rows, now=after(now, 360))
    assert (due, loaded) == ([], [])
    maintenance_leases.time_out_phases(rows, now=after(now, 361))
    assert (len(due), loaded) == (1, [])
    maintenance_leases.time_out_phases(RowRunner(), now=after(now, 421))
    assert len(due) == 3
    Job.objects.update(state=JobState.STARTING, executing_at=None)  # else the audit after the test finds it


@pytest.mark.parametrize(("takeover", "codes"), [(6, []), (15, ["orchestrator.E003"]), (1, ["orchestrator.E003"])])
def test_a_takeover_that_would_come_too_late_is_refused(settings, takeover, codes):
    settings.CLOCK_TAKEOVER_SECONDS = takeover
    assert [message.id for message in scheduler_takeover()] == codes


def test_a_statement_that_hangs_ends_before_a_standby_takes_over(settings):
    seconds = float(TIMEOUTS["clock"]["statement_timeout"].removesuffix("s"))
    assert seconds < settings.CLOCK_TAKEOVER_SECONDS


def test_a_queue_that_becomes_due_between_two_rounds_is_unblocked_at_its_time(monkeypatch):
    """`nextEligibleAt` of its jobs; before, they waited for the next round."""
    submitted()
    scheduler, original, seconds = Scheduler(period=30, tasks=()), periodic.activate_due, periodic.seconds_to_next_due
    looks = []

    def activate():
        original()
        scheduler.stopping.set()

    monkeypatch.setattr(periodic, "activate_due", activate)
    assert scheduler.round()

    def look():
        """Reach a limit after the first look of the pause."""
        looks.append(seconds())
        if len(looks) == 1:
            for model in (LaneHead, QueueHead):  # the later one is not due before the end of the test
                model.objects.update(eligible_at=database_now() + timedelta(seconds=0.5 if model is QueueHead else 60))
        return looks[-1]

    monkeypatch.setattr(periodic, "seconds_to_next_due", look)
    began = time.monotonic()
    scheduler._wait()
    assert 0.4 < time.monotonic() - began < 15
    assert QueueHead.objects.get().eligible_at is None
    assert LaneHead.objects.get().eligible_at is not None
