"""A reader of much data ends its snapshot within a limit of time."""

import time

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from runtime_jobs.read_snapshot import SnapshotTimeout, read_snapshot
from tests.factories import submitted

pytestmark = pytest.mark.django_db(transaction=True)


def execute_until(end, cursor):
    while time.monotonic() < end:
        cursor.execute("SELECT 1")


def test_a_snapshot_ends_in_a_long_statement_and_after_many_short_ones():
    with pytest.raises(SnapshotTimeout, match="SNAPSHOT_SECONDS"), read_snapshot(0.3), connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(60)")
    with pytest.raises(SnapshotTimeout), read_snapshot(0.3), connection.cursor() as cursor:
        execute_until(time.monotonic() + 60, cursor)
    assert not connection.in_atomic_block


def test_an_audit_that_takes_too_long_ends_with_one_line(settings):
    submitted()
    settings.SNAPSHOT_SECONDS = 0.001
    with pytest.raises(CommandError, match=r"The snapshot was open for .* seconds"):
        call_command("audit")
