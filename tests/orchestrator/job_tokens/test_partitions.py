"""The partitions of used tokens: created ahead or when they are missed, and dropped by the day."""

import os
import sys
import time
from datetime import UTC, datetime, timedelta

import pytest
from django.core.management import call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext

from orchestrator.job_tokens.claims import TokenPurpose, new_token
from orchestrator.job_tokens.models import UsedToken
from orchestrator.job_tokens.partitions import (
    create_partitions,
    drop_expired_partitions,
    expired_tokens,
    partition_days,
    partition_name,
)
from orchestrator.job_tokens.tasks import keep_partitions
from orchestrator.job_tokens.verification import use_token
from orchestrator.maintenance import pruning
from runtime_jobs.db_time import database_now

pytestmark = pytest.mark.django_db
PROOF_TOKENS = int(os.environ.get("PROOF_TOKENS", "20000"))
LONG_AGO = datetime(2020, 1, 5, 12, tzinfo=UTC)
IDS = {"runner_id": 1, "job_id": 2, "run_id": 3, "repository_id": 4, "fence": 1, "chain": 0}


def token_of(now: datetime):
    return new_token(TokenPurpose.API, **IDS, now=now)


def test_migrations_create_the_next_days():
    today = database_now().astimezone(UTC).date()
    assert set(partition_days()) >= {today + timedelta(days=number) for number in range(7)}


def test_a_token_is_used_once_and_its_row_is_in_the_partition_of_its_expiry():
    create_partitions(LONG_AGO.date(), 1)
    token = token_of(LONG_AGO)
    assert [use_token(token, now=LONG_AGO) for _ in range(3)] == [True, False, False]
    row = UsedToken.objects.get()
    assert (row.jti, row.expires_at, row.runner_id, row.job_id) == (token.jti, token.expires_at, 1, 2)
    with connection.cursor() as cursor:
        cursor.execute("SELECT tableoid::regclass::text FROM actions_used_tokens")
        assert cursor.fetchall() == [(partition_name(LONG_AGO.date()),)]


def test_a_token_at_midnight_belongs_to_the_new_day():
    create_partitions(LONG_AGO.date(), 2)
    token = token_of(datetime(2020, 1, 5, 23, 45, tzinfo=UTC))
    assert token.expires_at == datetime(2020, 1, 6, tzinfo=UTC)
    assert use_token(token, now=LONG_AGO)


def test_creating_again_changes_nothing():
    assert create_partitions(LONG_AGO.date(), 3) == [LONG_AGO.date() + timedelta(days=number) for number in range(3)]
    assert create_partitions(LONG_AGO.date(), 3) == []
    assert create_partitions(LONG_AGO.date(), 4) == [LONG_AGO.date() + timedelta(days=3)]


def test_a_day_is_dropped_thirty_days_after_its_last_token_has_expired():
    create_partitions(LONG_AGO.date(), 2)
    assert use_token(token_of(LONG_AGO), now=LONG_AGO)
    end_of_day = datetime(2020, 1, 6, tzinfo=UTC)
    assert drop_expired_partitions(end_of_day + timedelta(days=30) - timedelta(seconds=1)) == {}
    assert UsedToken.objects.count() == 1
    assert drop_expired_partitions(end_of_day + timedelta(days=30)).keys() == {LONG_AGO.date()}
    assert UsedToken.objects.count() == 0
    assert LONG_AGO.date() not in partition_days()


def insert_tokens(number: int, *, expires_at: datetime) -> None:
    """So many used tokens of one time, written by the database itself."""
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL statement_timeout = 0")
        cursor.execute(
            "INSERT INTO actions_used_tokens (expires_at, jti, runner_id, job_id, used_at)"
            " SELECT %s, lpad(n::text, 32, '0'), 1, 1, %s FROM generate_series(1, %s) n",
            [expires_at, expires_at - timedelta(minutes=15), number],
        )


def reads_of(table: str) -> tuple[int, int, int]:
    """Return how often this transaction has scanned a table, its rows, and its index."""
    with connection.cursor() as cursor:
        columns = "seq_scan, seq_tup_read, coalesce(idx_scan, 0)"
        cursor.execute(f"SELECT {columns} FROM pg_stat_xact_all_tables WHERE relname = %s", [table])
        return cursor.fetchone()


def test_a_day_of_tokens_is_dropped_without_reading_one_and_no_live_token_with_it():
    """Contract 4.8, 4. `make proof` inserts ten million: the number changes nothing but the time of the inserts."""
    live_until = LONG_AGO + timedelta(days=1)  # its 30 days are not over
    create_partitions(LONG_AGO.date(), 2)
    insert_tokens(PROOF_TOKENS, expires_at=LONG_AGO)
    insert_tokens(3, expires_at=live_until)
    now = datetime(2020, 1, 6, tzinfo=UTC) + timedelta(days=30)
    expired, live = partition_name(LONG_AGO.date()), partition_name(live_until.date())
    before = reads_of(expired), reads_of(live)
    assert list(expired_tokens(now)) == [LONG_AGO.date()]
    assert (reads_of(expired), reads_of(live)) == before
    with CaptureQueriesContext(connection) as queries:
        began = time.monotonic()
        assert list(drop_expired_partitions(now)) == [LONG_AGO.date()]
        seconds = time.monotonic() - began
    sys.stdout.write(f"{PROOF_TOKENS:,} used tokens dropped in {seconds * 1000:.1f} ms\n")
    statements = [query["sql"] for query in queries]
    assert [text for text in statements if "actions_used_tokens_" in text and "pg_stat" not in text] == [
        f"DROP TABLE {expired}"
    ]
    assert not [text for text in statements if text.startswith("DELETE") or "count(" in text]
    assert reads_of(live) == before[1]
    assert (UsedToken.objects.count(), partition_days()[0]) == (3, live_until.date())


def test_the_command_drops_the_tokens_of_a_day_and_keeps_those_of_the_next(monkeypatch, capsys):
    create_partitions(LONG_AGO.date(), 2)
    insert_tokens(5, expires_at=LONG_AGO)
    insert_tokens(3, expires_at=LONG_AGO + timedelta(days=1))
    fixed = datetime(2020, 1, 6, tzinfo=UTC) + timedelta(days=30)
    monkeypatch.setattr(pruning, "database_now", lambda: fixed)
    call_command("prune", "--dry-run")
    assert UsedToken.objects.count() == 8
    call_command("prune")
    assert "actions_used_tokens" in capsys.readouterr().out
    assert UsedToken.objects.count() == 3
    call_command("prune")
    assert UsedToken.objects.count() == 3


def test_the_task_creates_and_drops_and_may_be_repeated():
    create_partitions(LONG_AGO.date(), 1)
    keep_partitions("")
    keep_partitions("")
    today = database_now().astimezone(UTC).date()
    assert set(partition_days()) >= {today + timedelta(days=number) for number in range(7)}
    assert LONG_AGO.date() not in partition_days()


@pytest.mark.django_db(transaction=True)
def test_a_call_creates_the_partition_that_it_misses():
    """An installation whose housekeeping does not run for a week loses no call."""
    from tests.orchestrator.protocols.shithub.world import register, start_run  # noqa: PLC0415

    runner = register()
    start_run()
    claimed = runner.client.claim()
    days = partition_days()
    with connection.cursor() as cursor:
        for day in days:
            cursor.execute(f"DROP TABLE {partition_name(day)}")
    try:
        assert claimed.run().status_code == 200
        assert UsedToken.objects.count() == 1
    finally:
        create_partitions(min(days), len(days))
