"""The scheduler's task: one job for each time, whatever is missed, overlaps, is refused, or happens at once."""

import threading
from datetime import timedelta

import pytest
from django.db import connection

from orchestrator.core.cause import Cause
from orchestrator.http.api.schedule_jobs import configured_submitter
from orchestrator.schedules import due
from orchestrator.schedules.models import Schedule, ScheduleTick
from orchestrator.schedules.operations import change_schedule, run_schedule, submit_due_job
from orchestrator.services import cancellation
from runtime_jobs.errors import ResourceConflict
from runtime_jobs.models import IdempotencyKey, Job, Organization, Project
from runtime_jobs.states import JobState
from tests.factories import ALICE, OPERATOR, PlanFactory
from tests.orchestrator.schedules.world import JOB, NOON, make_schedule, outcomes, run_round
from tests.suite_functions import audit_findings

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def audited(request):
    """Check the invariants after each test."""
    yield
    if {"db", "transactional_db"} & set(request.fixturenames):
        assert audit_findings(chains=True) == []


def after(minutes, seconds=0):
    return NOON + timedelta(minutes=minutes, seconds=seconds)


def test_a_job_is_submitted_at_its_time_and_no_other():
    schedule = make_schedule(cron="30 12 * * *", job=JOB | {"priority": "low"})
    assert run_round(after(29, 59)) == 0
    assert run_round(after(30)) == 1
    job = Job.objects.get()
    assert (job.org_slug, job.job_type, job.spec["payload"], job.state) == (
        "sandtrace", "scan", {"imageRef": "nginx"}, JobState.QUEUED,
    )  # fmt: skip
    assert (job.trigger_kind, job.trigger_actor, job.correlation_id, job.priority) == (
        "schedule", "each minute", schedule.schedule_ulid, 50,
    )  # fmt: skip
    assert job.created_at == after(30)
    assert run_round(after(30)) == run_round(after(31)) == 0
    schedule.refresh_from_db()
    assert schedule.next_at == after(30) + timedelta(days=1)
    assert outcomes(schedule) == [("12:30", "submitted")]


def test_a_job_has_its_time_as_idempotency_key():
    schedule = make_schedule()
    run_round(after(1))
    key = IdempotencyKey.objects.get()
    assert (key.principal, key.key, key.result_id) == (
        f"schedule:{schedule.schedule_ulid}", "2026-05-11T12:01:00+00:00", Job.objects.get().job_ulid,
    )  # fmt: skip
    # A database whose time went back, or a position that was restored: the time is due again, with its first job.
    Schedule.objects.update(next_at=after(1))
    ScheduleTick.objects.all().delete()
    run_round(after(1))
    assert Job.objects.count() == 1
    assert ScheduleTick.objects.get().job_ulid == Job.objects.get().job_ulid


@pytest.mark.parametrize(
    ("missed", "rounds"),
    [
        ("latest", [("12:01", "missed"), ("12:05", "submitted")]),
        ("skip", [("12:01", "missed"), ("12:05", "submitted")]),
        ("all", [(f"12:0{minute}", "submitted") for minute in range(1, 6)]),
    ],
)
def test_missed_times_follow_the_policy(missed, rounds):
    schedule = make_schedule(missed=missed)
    for _ in range(6):
        run_round(after(5, 30))
    assert outcomes(schedule) == rounds
    submitted = [outcome for _, outcome in rounds].count("submitted")
    assert Job.objects.count() == submitted
    schedule.refresh_from_db()
    assert schedule.next_at == after(6)
    if missed != "all":
        assert ScheduleTick.objects.get(outcome="missed").missed_before == after(5)


def test_a_round_takes_one_time_of_each_schedule(monkeypatch):
    late = make_schedule(name="late", missed="all")
    run_round(after(0))
    other = make_schedule(late.organization, name="other", now=after(3))
    assert run_round(after(4, 30)) == 2
    assert (outcomes(late), outcomes(other)) == ([("12:01", "submitted")], [("12:04", "submitted")])
    monkeypatch.setattr(due, "MAX_SCHEDULES", 1)
    Schedule.objects.filter(pk=other.pk).update(next_at=after(4))
    ScheduleTick.objects.filter(schedule=other).delete()
    assert run_round(after(4, 30)) == 1
    assert [tick.due_at for tick in late.ticks.order_by("id")] == [after(1), after(2)], "the longest due is the first"


def test_overlapping_jobs_are_allowed_unless_a_policy_differs():
    make_schedule()
    for minute in (1, 2):
        run_round(after(minute))
    assert set(Job.objects.values_list("state", "concurrency_key")) == {("queued", "")}
    assert Job.objects.count() == 2


def test_a_time_is_skipped_while_a_job_has_not_ended():
    schedule = make_schedule(overlap="skip")
    for minute in (1, 2):
        run_round(after(minute))
    assert outcomes(schedule) == [("12:01", "submitted"), ("12:02", "overlapped")]
    job = Job.objects.get()
    cancellation.cancel(job_ulid=job.job_ulid, actor=ALICE, deadline_seconds=0, now=after(2))
    run_round(after(3))
    assert outcomes(schedule)[-1] == ("12:03", "submitted")


def test_an_earlier_job_is_canceled():
    schedule = make_schedule(overlap="cancel")
    for minute in (1, 2):
        run_round(after(minute))
    first, second = Job.objects.order_by("id")
    assert (first.state, first.cancel_reason, second.state) == ("canceled", "superseded", "queued")
    assert first.concurrency_key == second.concurrency_key == f"schedule/{schedule.schedule_ulid}"


def test_a_queued_job_waits_for_the_earlier_one():
    make_schedule(overlap="queue")
    for minute in (1, 2):
        run_round(after(minute))
    assert [job.state for job in Job.objects.all()] == ["queued", "queued"]
    assert len(set(Job.objects.values_list("concurrency_key", flat=True))) == 1


def test_a_refusal_is_recorded_and_the_time_is_over():
    schedule = make_schedule()
    Project.objects.update(enabled=False)
    run_round(after(1))
    tick = ScheduleTick.objects.get()
    assert (tick.outcome, tick.error_code, tick.job_ulid) == ("refused", "project_not_enabled", None)
    assert tick.message
    assert not Job.objects.exists()
    assert not IdempotencyKey.objects.exists(), "nothing of a refused job is stored"
    Project.objects.update(enabled=True)
    assert run_round(after(1)) == 0
    run_round(after(2))
    assert outcomes(schedule) == [("12:01", "refused"), ("12:02", "submitted")]


def test_a_job_that_is_not_valid_any_more_is_refused():
    schedule = make_schedule()
    Schedule.objects.update(job=JOB | {"spec": {"payload": 7}})
    run_round(after(1))
    tick = ScheduleTick.objects.get()
    assert (tick.outcome, tick.error_code) == ("refused", "invalid")
    assert "payload" in tick.message
    assert outcomes(schedule) == [("12:01", "refused")]


def test_a_quota_refuses_a_time_as_any_submit():
    schedule = make_schedule()
    plan = PlanFactory(name="small", max_queued=64)
    Organization.objects.update(plan=plan)
    for minute in range(1, 66):
        run_round(after(minute))
    assert outcomes(schedule)[-1] == ("13:05", "refused")
    assert ScheduleTick.objects.latest("id").error_code == "queue_full"
    assert Job.objects.count() == 64


def test_a_paused_schedule_submits_nothing_and_misses_nothing():
    schedule = make_schedule()
    name = schedule.schedule_ulid
    paused = change_schedule(schedule_ulid=name, changes={"status": "paused"}, cause=Cause(ALICE, now=after(0, 30)))
    assert paused.next_at is None
    assert run_round(after(5)) == 0
    resumed = change_schedule(schedule_ulid=name, changes={"status": "active"}, cause=Cause(ALICE, now=after(10, 30)))
    assert resumed.next_at == after(11)
    run_round(after(11))
    assert outcomes(schedule) == [("12:11", "submitted")]


def test_a_change_of_the_times_counts_from_now_on_and_of_the_job_keeps_the_time():
    schedule = make_schedule()
    name = schedule.schedule_ulid
    kept = change_schedule(
        schedule_ulid=name, changes={"job": JOB | {"priority": "low"}}, cause=Cause(ALICE, now=after(3))
    )
    assert kept.next_at == after(1), "it is due, and stays due"
    moved = change_schedule(schedule_ulid=name, changes={"cron": "15 * * * *"}, cause=Cause(ALICE, now=after(3)))
    assert moved.next_at == after(15)


def test_a_job_is_submitted_by_hand_also_while_paused():
    schedule = make_schedule(overlap="skip")
    name = schedule.schedule_ulid
    change_schedule(schedule_ulid=name, changes={"status": "paused"}, cause=Cause(OPERATOR, now=NOON))
    outcome = run_schedule(
        schedule_ulid=name, submitter=configured_submitter(), cause=Cause(OPERATOR, "now", now=after(0, 5))
    )
    assert (outcome.job.trigger_kind, outcome.job.trigger_actor) == ("manual", "olga")
    tick = ScheduleTick.objects.get()
    assert (tick.is_manual, tick.job_ulid, tick.due_at) == (True, outcome.job.job_ulid, after(0, 5))
    with pytest.raises(ResourceConflict):
        run_schedule(schedule_ulid=name, submitter=configured_submitter(), cause=Cause(OPERATOR, now=after(0, 6)))
    schedule.refresh_from_db()
    assert schedule.next_at is None


def test_a_schedule_that_fails_does_not_hold_up_the_others(monkeypatch, caplog):
    broken, sound = make_schedule(name="broken"), make_schedule(name="sound")
    submit = submit_due_job

    def fail_once(*, schedule_ulid, **arguments):
        if schedule_ulid == broken.schedule_ulid:
            raise RuntimeError("planted")
        return submit(schedule_ulid=schedule_ulid, **arguments)

    monkeypatch.setattr("orchestrator.schedules.due.submit_due_job", fail_once)
    assert run_round(after(1)) == 1
    assert (outcomes(broken), outcomes(sound)) == ([], [("12:01", "submitted")])
    assert "planted" in caplog.text
    monkeypatch.undo()
    assert run_round(after(1)) == 1


@pytest.mark.django_db(transaction=True)
def test_two_schedulers_at_one_tick_submit_one_job():
    """Both have found the schedule due. The barrier is before the operation, the lock decides within it."""
    schedule = make_schedule()
    barrier, ticks = threading.Barrier(2), []

    def fire():
        try:
            connection.ensure_connection()
            barrier.wait(60)
            ticks.append(
                submit_due_job(schedule_ulid=schedule.schedule_ulid, submitter=configured_submitter(), now=after(1))
            )
        finally:
            connection.close()

    for _ in range(5):
        Schedule.objects.update(next_at=after(1))
        ScheduleTick.objects.all().delete()
        IdempotencyKey.objects.all().delete()
        before = Job.objects.count()
        threads = [threading.Thread(target=fire) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert Job.objects.count() == before + 1
        assert sum(tick is not None for tick in ticks) == 1
        ticks.clear()
