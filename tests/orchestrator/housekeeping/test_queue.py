"""A task is executed by one process at a time, is repeated after a failure, and is not lost."""

import threading
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection, connections, transaction

from orchestrator.housekeeping import queue
from orchestrator.housekeeping.models import MAX_ERROR_LENGTH, HousekeepingTask
from orchestrator.housekeeping.queue import (
    CLAIM_TIME,
    MAX_PAUSE,
    claim_task,
    create_missing,
    create_standing_tasks,
    pause_after,
    record_failure,
    record_gone,
    record_success,
    release_claim,
    renew_claims,
    request_task,
    request_tasks,
)
from orchestrator.housekeeping.registry import task

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)


@pytest.fixture(autouse=True)
def declared(kinds):
    task("once")(lambda _: None)
    task("hourly", every=lambda: timedelta(hours=1))(lambda _: None)
    task("standing", every=lambda: timedelta(hours=1), is_standing=True)(lambda _: None)


def row(kind: str = "once", subject: str = "1") -> HousekeepingTask:
    return HousekeepingTask.objects.get(kind=kind, subject=subject)


def test_tasks_are_claimed_in_the_order_in_which_they_are_due():
    request_task("once", "late", delay=2 * SECOND, now=NOW)
    request_task("once", "soon", delay=SECOND, now=NOW)
    assert claim_task("a", now=NOW) is None
    assert claim_task("a", now=NOW + 3 * SECOND).subject == "soon"
    assert claim_task("a", now=NOW + 3 * SECOND).subject == "late"
    assert claim_task("a", now=NOW + 3 * SECOND) is None


def test_a_task_of_a_kind_that_this_process_does_not_know_is_left_to_a_newer_one():
    HousekeepingTask.objects.create(kind="newer", subject="", due_at=NOW)
    assert claim_task("a", now=NOW + SECOND) is None


def test_a_task_that_succeeded_once_is_deleted_and_a_recurring_one_is_due_later():
    request_task("once", "1", now=NOW)
    record_success(claim_task("a", now=NOW), now=NOW)
    assert not HousekeepingTask.objects.exists()
    request_task("hourly", "1", now=NOW)
    record_success(claim_task("a", now=NOW), now=NOW + SECOND)
    found = row("hourly")
    assert (found.due_at, found.succeeded_at) == (NOW + SECOND + timedelta(hours=1), NOW + SECOND)
    assert (found.claimed_by, found.claimed_until) == ("", None)


@pytest.mark.parametrize("kind", ["once", "hourly"])
def test_a_request_during_the_execution_causes_another_one(kind):
    request_task(kind, "1", now=NOW)
    claimed = claim_task("a", now=NOW)
    request_task(kind, "1", now=NOW + SECOND)
    assert claim_task("b", now=NOW + SECOND) is None  # not at the same time
    record_success(claimed, now=NOW + 2 * SECOND)
    again = claim_task("b", now=NOW + 2 * SECOND)
    assert again is not None
    record_success(again, now=NOW + 3 * SECOND)
    assert claim_task("b", now=NOW + 3 * SECOND) is None


def test_a_request_brings_a_waiting_task_forward_and_never_back():
    request_task("hourly", "1", delay=timedelta(hours=1), now=NOW)
    request_task("hourly", "1", now=NOW)
    assert row("hourly").due_at == NOW
    request_task("hourly", "1", delay=timedelta(hours=2), now=NOW)
    assert row("hourly").due_at == NOW


def test_the_pause_doubles_with_each_failure_up_to_a_limit():
    assert [pause_after(number).total_seconds() for number in (1, 2, 3, 4)] == [5, 10, 20, 40]
    assert pause_after(1000) == MAX_PAUSE
    request_task("once", "1", now=NOW)
    record_failure(claim_task("a", now=NOW), "no route\0 to host".replace("\0", ""), now=NOW)
    found = row()
    assert (found.failures, found.last_error, found.failed_at) == (1, "no route to host", NOW)
    assert found.due_at == NOW + pause_after(1)
    record_failure(claim_task("a", now=found.due_at), "x" * 5000, jitter=0.5, now=found.due_at)
    again = row()
    assert again.failures == 2
    assert again.due_at == found.due_at + pause_after(2) * 0.5
    assert len(again.last_error) == MAX_ERROR_LENGTH
    record_success(claim_task("a", now=again.due_at), now=again.due_at)
    assert not HousekeepingTask.objects.exists()


def test_a_success_of_a_recurring_task_forgets_its_failures():
    request_task("hourly", "1", now=NOW)
    record_failure(claim_task("a", now=NOW), "no", now=NOW)
    record_success(claim_task("a", now=NOW + 10 * SECOND), now=NOW + 10 * SECOND)
    found = row("hourly")
    assert (found.failures, found.last_error, found.failed_at) == (0, "", NOW)


def test_a_permanent_failure_waits_for_a_new_request():
    request_task("once", "1", now=NOW)
    record_failure(claim_task("a", now=NOW), "never", is_permanent=True, now=NOW)
    assert (row().due_at, row().last_error) == (None, "never")
    assert claim_task("a", now=NOW + timedelta(days=365)) is None
    request_task("once", "1", now=NOW)
    assert claim_task("a", now=NOW) is not None


def test_a_request_during_a_permanent_failure_is_not_lost():
    request_task("once", "1", now=NOW)
    claimed = claim_task("a", now=NOW)
    request_task("once", "1", now=NOW)
    record_failure(claimed, "never", is_permanent=True, now=NOW)
    assert claim_task("a", now=NOW) is not None


def test_a_claim_that_is_not_renewed_ends_and_its_holder_changes_nothing():
    request_task("once", "1", now=NOW)
    stalled = claim_task("a", now=NOW)
    assert claim_task("b", now=NOW + CLAIM_TIME - SECOND) is None
    taken = claim_task("b", now=NOW + CLAIM_TIME)
    assert taken.id == stalled.id
    assert renew_claims([stalled], now=NOW + CLAIM_TIME) == set()
    record_failure(stalled, "late", now=NOW + CLAIM_TIME)
    record_gone(stalled)
    release_claim(stalled)
    record_success(stalled, now=NOW + CLAIM_TIME)
    assert (row().claimed_by, row().failures) == ("b", 0)
    record_success(taken, now=NOW + CLAIM_TIME)
    assert not HousekeepingTask.objects.exists()


def test_a_renewed_claim_lasts_and_a_released_one_ends_at_once():
    request_task("once", "1", now=NOW)
    claimed = claim_task("a", now=NOW)
    assert renew_claims([claimed], now=NOW + CLAIM_TIME - SECOND) == {claimed.id}
    assert claim_task("b", now=NOW + CLAIM_TIME) is None
    release_claim(claimed)
    assert claim_task("b", now=NOW + CLAIM_TIME) is not None


def test_a_task_without_a_subject_any_more_is_deleted_also_if_it_was_requested_again():
    request_task("hourly", "1", now=NOW)
    claimed = claim_task("a", now=NOW)
    request_task("hourly", "1", now=NOW)
    record_gone(claimed)
    assert not HousekeepingTask.objects.exists()


def test_many_tasks_are_requested_by_one_statement(django_assert_num_queries):
    with django_assert_num_queries(1):
        request_tasks("once", ["2", "1", "2"], now=NOW)
    with django_assert_num_queries(0):
        request_tasks("once", [], now=NOW)
    assert sorted(HousekeepingTask.objects.values_list("subject", flat=True)) == ["1", "2"]


def test_missing_tasks_are_created_and_others_stay():
    request_task("hourly", "1", delay=timedelta(hours=1), now=NOW)
    assert create_missing("hourly", ["1", "2"], now=NOW) == 1
    assert row("hourly", "1").due_at == NOW + timedelta(hours=1)
    create_standing_tasks(now=NOW)
    create_standing_tasks(now=NOW + SECOND)
    assert HousekeepingTask.objects.filter(kind="standing", subject="", due_at=NOW).count() == 1


def test_a_standing_task_needs_a_period_and_a_name_of_its_own():
    with pytest.raises(ValueError, match="period"):
        task("other", is_standing=True)(lambda _: None)
    with pytest.raises(ValueError, match="taken"):
        task("once")(lambda _: None)


@pytest.mark.django_db(transaction=True)
def test_a_request_belongs_to_the_transaction_of_its_caller():
    with transaction.atomic():
        request_task("once", "1")
        transaction.set_rollback(True)
    assert not HousekeepingTask.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_each_of_many_tasks_is_claimed_once_by_many_processes():
    request_tasks("once", [str(number) for number in range(60)])
    barrier, found = threading.Barrier(6), []

    def claim_all() -> None:
        try:
            barrier.wait(60)
            while (claimed := claim_task("a")) is not None:
                found.append(claimed.subject)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=claim_all) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(found, key=int) == [str(number) for number in range(60)]


@pytest.mark.django_db(transaction=True)
def test_a_claim_skips_a_locked_row_instead_of_waiting():
    request_tasks("once", ["1", "2"], now=NOW)
    locked, done = threading.Event(), threading.Event()

    def lock() -> None:
        try:
            with transaction.atomic():
                HousekeepingTask.objects.select_for_update().get(subject="1")
                locked.set()
                done.wait(60)
        finally:
            connections.close_all()

    thread = threading.Thread(target=lock)
    thread.start()
    try:
        assert locked.wait(60)
        assert claim_task("a", now=NOW).subject == "2"
        assert claim_task("a", now=NOW) is None
    finally:
        done.set()
        thread.join(60)
    assert claim_task("a", now=NOW).subject == "1"


def test_the_claim_reads_the_index_of_due_tasks():
    request_tasks("once", [str(number) for number in range(2000)], delay=timedelta(days=1), now=NOW)
    HousekeepingTask.objects.filter(subject="7").update(due_at=NOW)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE housekeeping_tasks")
        cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute(
            "EXPLAIN SELECT id FROM housekeeping_tasks WHERE due_at <= %s AND (claimed_until IS NULL OR claimed_until <= %s)"
            " AND kind = ANY (%s) ORDER BY due_at LIMIT 1 FOR UPDATE SKIP LOCKED",
            [NOW, NOW, ["once"]],
        )
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert "housekeeping_tasks_by_due_time" in plan
    assert queue.claim_task("a", now=NOW).subject == "7"
