"""The backend: what the pool hands out is alive, and times come in UTC."""

import asyncio
import select
from datetime import UTC, datetime
from urllib.parse import urlsplit

import psycopg
import pytest
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.db import DataError, InternalError, OperationalError, connection, transaction
from django.db.models.expressions import RawSQL

from config.postgres.backend.base import DatabaseWrapper, MonitoredConnection, UnpreparedCursor, is_alive
from leases.models import LimitSlot
from runtime_jobs.models import Job
from runtime_jobs.states import LEASED_STATES
from tests.conftest import STATE_DIR
from tests.loopback_listener import LoopbackListener

pytestmark = pytest.mark.django_db(transaction=True)

# Without the autovacuum workers, which the suite's role may not end.
OTHERS = (
    "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    " AND backend_type = 'client backend'"
)


@pytest.fixture
def other():
    """Open a connection to the same database outside of any pool."""
    parameters = connection.get_connection_params()
    given = {name: parameters[name] for name in ("dbname", "user", "password", "host", "port") if name in parameters}
    with psycopg.connect(**given, autocommit=True) as opened:
        yield opened


def test_connections_that_died_in_the_pool_are_not_handed_out(other):
    connection.ensure_connection()
    connection.close()
    killed = other.execute(f"SELECT count(*) FILTER (WHERE pg_terminate_backend(pid, 10000)) {OTHERS}").fetchone()[0]
    assert killed >= 1
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        assert cursor.fetchone() == (1,)


def test_a_word_that_nobody_waited_for_is_no_death(other):
    connection.ensure_connection()
    held = connection.connection
    held.execute("LISTEN somebody")
    other.execute("NOTIFY somebody")
    assert _is_readable(held)
    assert is_alive(held)
    held.execute("UNLISTEN *")


def test_a_connection_that_the_server_ended_is_dead(other):
    other.execute("SELECT 1")
    assert is_alive(other)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s, 10000)", [other.info.backend_pid])
    assert _is_readable(other)
    assert not is_alive(other)


def test_a_pooled_connection_is_handed_out_without_waiting_for_its_socket(monkeypatch):
    """Setting autocommit on a connection that has it went through psycopg's `wait`, as a statement does."""
    connection.ensure_connection()
    connection.close()
    waits, wait = [], psycopg.Connection.wait
    monkeypatch.setattr(psycopg.Connection, "wait", lambda *given, **more: waits.append(1) or wait(*given, **more))
    connection.ensure_connection()
    assert waits == []
    assert connection.connection.autocommit
    with transaction.atomic():
        assert not connection.connection.autocommit
    assert connection.connection.autocommit


def _is_readable(held):
    return bool(select.select([held.fileno()], [], [], 10)[0])


def test_times_are_read_in_utc():
    with connection.cursor() as cursor:
        cursor.execute("SELECT '2026-01-02 03:04:05.000006+02'::timestamptz")
        (found,) = cursor.fetchone()
    assert found == datetime(2026, 1, 2, 1, 4, 5, 6, tzinfo=UTC)
    assert found.utcoffset().total_seconds() == 0


def test_rows_with_more_values_than_a_statement_has_are_several_statements():
    LimitSlot.objects.bulk_create(LimitSlot(limit_id=1, n=number) for number in range(20_000))
    assert LimitSlot.objects.count() == 20_000


def test_what_is_asked_again_is_planned_already():
    for _ in range(6):
        with connection.cursor() as cursor:
            cursor.execute("SELECT %s::integer + 4711", [1])
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE '%%+ 4711'")
        assert cursor.fetchone() == (1,)


def test_queries_of_the_orm_are_planned_for_their_values():
    """A plan for any states could not use the partial index of leased jobs."""
    for _ in range(6):
        Job.objects.filter(state__in=LEASED_STATES, priority=4713).exists()
        Job.objects.filter(state__in=LEASED_STATES, priority=4713).update(priority=4714)
        Job.objects.filter(state__in=LEASED_STATES, priority=4713)[:2].count()
        Job.objects.filter(state__in=LEASED_STATES, priority=4713).delete()
        plan = Job.objects.filter(state__in=LEASED_STATES, priority=4713).explain()
        assert "ANY ('{" in plan or "using jobs_held" in plan, "the states are parameters"
        assert "$" not in plan
    with connection.cursor() as cursor:
        cursor.execute("SHOW plan_cache_mode")
        assert cursor.fetchone() == ("auto",)
        cursor.execute("SELECT statement FROM pg_prepared_statements WHERE statement LIKE '%%\"priority\" =%%'")
        assert cursor.fetchall() == []


def test_the_log_of_the_server_shows_no_values_of_the_orm(other):
    """PostgreSQL logs a statement that fails, waits for a lock or is slow. A session key is a credential."""
    log = STATE_DIR / "postgres.log"
    key, password = "secretsessionkey0123456789abcdef", "pbkdf2_sha256$secret"
    begin = log.stat().st_size
    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '2s'")  # deadlock_timeout, after which a wait is logged, is 1 s
        cursor.execute("SHOW log_parameter_max_length")  # of statements that are logged because they are slow
        assert cursor.fetchone() == ("0",)
    other.execute("BEGIN")
    other.execute("LOCK TABLE django_session, auth_user IN ACCESS EXCLUSIVE MODE")
    for statement in (
        lambda: Session.objects.get(session_key=key),
        lambda: Session.objects.filter(session_key=key).delete(),
        lambda: User.objects.filter(username="nobody").update(password=password),
    ):
        with pytest.raises(OperationalError):
            statement()
    other.execute("ROLLBACK")
    with connection.cursor() as cursor:
        cursor.execute("RESET lock_timeout")
    logged = log.read_bytes()[begin:].decode(errors="replace")
    assert logged.count("canceling statement due to lock timeout") == 3
    assert "still waiting for" in logged
    assert 'FROM "django_session" WHERE' in logged
    assert [secret for secret in (key, password) if secret in logged] == []


def test_an_error_in_a_query_of_the_orm_lets_later_statements_be_prepared():
    with pytest.raises(DataError):
        Job.objects.filter(pk=RawSQL("1 / 0", [])).exists()
    with connection.cursor() as cursor:
        assert not isinstance(cursor.cursor, UnpreparedCursor)


class Pooler(LoopbackListener):
    """Names a server process of its own invention to each client, as poolers do, and forwards all else."""

    def __init__(self, socket_path: str) -> None:
        super().__init__()
        self._socket_path = socket_path

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_unix_connection(self._socket_path)
        sending = asyncio.create_task(_forward(reader, to_server))
        message = b""
        while message != b"Z":  # ready for a query
            message = await from_server.readexactly(1)
            length = await from_server.readexactly(4)
            body = await from_server.readexactly(int.from_bytes(length) - 4)
            writer.write(message + length + (b"\x00\x00\x00\x07" + body[4:] if message == b"K" else body))
        await _forward(from_server, writer)
        await sending
        to_server.close()


async def _forward(reader, writer):
    while piece := await reader.read(1 << 16):
        writer.write(piece)
        await writer.drain()
    writer.close()


def test_behind_a_pooler_nothing_is_prepared_unless_the_operator_says_that_it_may_be():
    parameters = connection.get_connection_params()
    with Pooler(f"{parameters['host']}/.s.PGSQL.5432") as pooler:
        over_tcp = {"HOST": "127.0.0.1", "PORT": urlsplit(pooler.url).port}
        for place, detects_pooler, prepares in [(over_tcp, True, False), (over_tcp, False, True), ({}, True, True)]:
            given = connection.settings_dict | place
            given["OPTIONS"] = given["OPTIONS"] | {"pool": None, "detect_pooler": detects_pooler, "sslmode": "disable"}
            other = DatabaseWrapper(given)
            try:
                for _ in range(5):
                    with other.cursor() as cursor:
                        cursor.execute("SELECT 1")
                prepared = other.connection.execute("SELECT count(*) FROM pg_prepared_statements").fetchone()[0]
                assert bool(prepared) == prepares, (place, detects_pooler)
            finally:
                other.close()


def test_a_session_that_cannot_write_is_closed_and_the_thread_gets_another_one():
    connection.ensure_connection()
    held = connection.connection
    held.execute("SET default_transaction_read_only = on")
    with pytest.raises(InternalError, match="read-only"):
        User.objects.create(username="ada")
    assert held.closed
    User.objects.create(username="ada")
    assert isinstance(connection.connection, MonitoredConnection)
    connection.connection.execute("SET default_transaction_read_only = on")
    with transaction.atomic(), pytest.raises(InternalError, match="read-only"):
        User.objects.create(username="eve")
    assert [user.username for user in User.objects.all()] == ["ada"]
