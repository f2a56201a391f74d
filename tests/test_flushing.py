"""A flush waits for another transaction, and hides no other error."""

import psycopg
import pytest
from django.db import OperationalError, connection
from django.test import TransactionTestCase

from runtime_jobs.models import Plan
from tests import flushing

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_flush_is_repeated_while_another_transaction_has_a_lock(database_url, monkeypatch):
    Plan.objects.create(name="left behind")
    with psycopg.connect(database_url) as other:
        other.execute(
            f"SELECT 1 FROM {Plan._meta.db_table}"
        )  # a lock that TRUNCATE waits for, until the end of the transaction
        monkeypatch.setattr(flushing.time, "sleep", lambda _seconds: other.rollback())
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = '50ms'")
        try:
            TransactionTestCase("run")._fixture_teardown()
        finally:
            with connection.cursor() as cursor:
                cursor.execute("RESET lock_timeout")
    assert not Plan.objects.exists()


def test_other_errors_are_raised_at_once(monkeypatch):
    calls = []

    def flush() -> None:
        calls.append(1)
        raise OperationalError("disk full")

    with pytest.raises(OperationalError, match="disk full"):
        flushing.retrying(flush)()
    assert len(calls) == 1
