"""Tests the flush after a test that commits: what it deletes, that it waits for another transaction, and hides no error."""

import psycopg
import pytest
from django.contrib.auth.models import Permission
from django.contrib.contenttypes.models import ContentType
from django.db import OperationalError, connection
from django.test import TransactionTestCase

from runtime_jobs.models import JobEvent, Plan
from tests import conftest, flushing
from tests.factories import claimed, submitted

pytestmark = pytest.mark.django_db(transaction=True)


def filled_tables() -> set[str]:
    names = connection.introspection.django_table_names(only_existing=True, include_views=False)
    with connection.cursor() as cursor:
        cursor.execute(" UNION ALL ".join(f"SELECT '{name}' WHERE EXISTS (SELECT FROM {name})" for name in names))
        return {name for (name,) in cursor.fetchall()} - flushing.KEPT


def flush() -> None:
    TransactionTestCase("run")._fixture_teardown()


def test_no_table_keeps_a_row_not_even_the_append_only_ones():
    submitted()
    claimed()
    assert {"runtime_jobs", JobEvent._meta.db_table} <= filled_tables()
    flush()
    assert filled_tables() == set()


def test_a_large_table_is_truncated(monkeypatch):
    submitted()
    monkeypatch.setattr(flushing, "MAX_BYTES", 0)
    flush()
    assert filled_tables() == set()
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_relation_size(%s::regclass)", [JobEvent._meta.db_table])
        assert cursor.fetchone()[0] == 0


def test_permissions_stay_with_their_ids():
    before = (list(Permission.objects.values()), list(ContentType.objects.values()))
    assert all(before)
    flush()
    assert (list(Permission.objects.values()), list(ContentType.objects.values())) == before


def test_sequences_keep_their_values():
    """A test would not notice that it compares keys of different tables if both began at 1."""
    first = Plan.objects.create(name="first").pk
    flush()
    assert Plan.objects.create(name="second").pk > first


def test_only_the_flush_may_empty_the_event_history():
    submitted()
    flush()
    for statement in ("TRUNCATE runtime_job_events", "TRUNCATE operator_events", "TRUNCATE usage_records"):
        with pytest.raises(Exception, match="append-only"), connection.cursor() as cursor:
            cursor.execute(statement)


def test_a_file_whose_processes_use_the_database_leaves_no_row(request, database_url):
    """An earlier test of the file keeps what they write after the flush of the last test. The next file does not."""
    for following, expected in ((request.node, True), (None, False)):
        teardown = conftest.pytest_runtest_teardown(request.node, following)
        next(teardown)
        Plan.objects.create(name=f"late, {expected}")
        with pytest.raises(StopIteration):
            next(teardown)
        assert Plan.objects.exists() is expected, following


def set_lock_timeout(value: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"SET lock_timeout = {value}")


def test_a_flush_is_repeated_while_another_transaction_has_a_lock(database_url, monkeypatch):
    Plan.objects.create(name="left behind")
    with psycopg.connect(database_url) as other:
        other.execute(f"INSERT INTO {Plan._meta.db_table} SELECT * FROM {Plan._meta.db_table} WHERE false")

        def end_both_after_the_first_attempt(_seconds: float) -> None:
            other.rollback()
            set_lock_timeout("DEFAULT")  # an autovacuum may have a lock too, and is interrupted after a second only

        monkeypatch.setattr(flushing.time, "sleep", end_both_after_the_first_attempt)
        set_lock_timeout("'50ms'")
        try:
            flush()
        finally:
            set_lock_timeout("DEFAULT")
    assert not Plan.objects.exists()


@pytest.mark.parametrize("error", [psycopg.errors.DeadlockDetected, psycopg.errors.LockNotAvailable])
def test_a_flush_that_a_lock_has_ended_is_repeated(monkeypatch, error):
    monkeypatch.setattr(flushing, "PAUSE_SECONDS", 0)
    calls = []

    def fail_once() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise OperationalError from error()

    flushing.retrying(fail_once)
    assert len(calls) == 2


def test_other_errors_are_raised_at_once():
    calls = []

    def fail() -> None:
        calls.append(1)
        raise OperationalError("disk full")

    with pytest.raises(OperationalError, match="disk full"):
        flushing.retrying(fail)
    assert len(calls) == 1
