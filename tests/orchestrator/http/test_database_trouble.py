"""A statement that waits too long, a deadlock, a value that cannot be stored: a problem document, and nothing half done."""

import contextlib
import threading

import psycopg
import pytest
from django.db import DatabaseError, connection

from orchestrator.core.cause import Cause
from orchestrator.core.unit_of_work import MAX_ATTEMPTS, operation
from orchestrator.services import worker_state
from runtime_jobs.models import Job
from tests.api_client import Caller, problem_of
from tests.db_snapshot import nothing_lost
from tests.factories import OPERATOR, SUBMIT_BODY, OrganizationFactory, ProjectFactory, api_token, claimed, submitted
from tests.live_server import eventually

pytestmark = pytest.mark.django_db(transaction=True)
JOBS = "/v1/runtime/jobs"


@pytest.fixture
def project():
    return ProjectFactory(organization=OrganizationFactory(slug="sandtrace"))


@pytest.fixture
def alice(project):
    return Caller(api_token(project.organization))


@pytest.fixture
def elsewhere(database_url):
    """Another session on the same database, in a transaction of its own."""
    with psycopg.connect(database_url) as session:
        yield session
        session.rollback()


def busy(call):
    """Call while a row is locked. Without a statement timeout only the lock timeout ends the wait."""
    with connection.cursor() as cursor:
        cursor.execute("SET statement_timeout = 0; SET lock_timeout = '300ms'")
    try:
        with nothing_lost():
            response = call()
    finally:
        with connection.cursor() as cursor:
            cursor.execute("RESET statement_timeout; RESET lock_timeout")
    assert (response.status_code, problem_of(response)["code"]) == (503, "busy")
    assert response["Retry-After"] == "1"


def test_a_job_that_somebody_else_holds_is_busy(alice, project, elsewhere):
    job = submitted(project)
    elsewhere.execute("SELECT FROM runtime_jobs WHERE job_ulid = %s FOR UPDATE", [job.job_ulid])
    busy(lambda: alice.post(f"{JOBS}/{job.job_ulid}/cancel"))
    elsewhere.rollback()
    assert alice.post(f"{JOBS}/{job.job_ulid}/cancel").status_code == 200


def test_the_messages_of_its_holder_are_busy_too_and_may_be_sent_again(project, elsewhere):
    job = submitted(project)
    lease = claimed().lease
    worker = Caller(worker_state.rotate_worker_token(worker_id=lease.worker_id, cause=Cause(OPERATOR)))
    elsewhere.execute("SELECT FROM runtime_jobs WHERE job_ulid = %s FOR UPDATE", [job.job_ulid])
    failed = {"result": {"status": "failed", "reason": "worker_error"}}
    busy(lambda: worker.post(f"/v1/runtime/leases/{lease.lease_ulid}/fail", failed))
    elsewhere.rollback()
    assert worker.post(f"/v1/runtime/leases/{lease.lease_ulid}/fail", failed).status_code == 200


def test_a_statement_that_takes_too_long_is_given_up(alice, elsewhere):
    elsewhere.execute("LOCK TABLE runtime_jobs IN ACCESS EXCLUSIVE MODE")
    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = 0; SET statement_timeout = '300ms'")
    try:
        response = alice.get(JOBS)
        assert (response.status_code, problem_of(response)["code"]) == (503, "busy")
    finally:
        with connection.cursor() as cursor:
            cursor.execute("RESET lock_timeout; RESET statement_timeout")


@pytest.mark.parametrize(
    ("state", "status", "code"),
    [
        ("40P01", 503, "busy"), ("40001", 503, "busy"), ("55P03", 503, "busy"), ("57014", 503, "busy"), ("53300", 503, "busy"),
        ("57P01", 503, "database_unavailable"), ("57P03", 503, "database_unavailable"), ("08006", 503, "database_unavailable"),
        ("53100", 503, "database_unavailable"), ("53200", 503, "database_unavailable"), ("58030", 503, "database_unavailable"),
        ("57P02", 503, "database_unavailable"), ("57P05", 503, "database_unavailable"), ("08P01", 503, "database_unavailable"),
        ("25P02", 503, "busy"), ("25P03", 503, "busy"), ("25P04", 503, "busy"),
        # Read-only: a stand-by, or a primary that was demoted. A statement that another client of a pooler has prepared.
        ("25006", 503, "database_unavailable"), ("26000", 503, "database_unavailable"), ("42P05", 503, "database_unavailable"),
        ("23505", 409, "conflict"), ("22001", 400, "invalid"), ("22P05", 400, "invalid"),
        # A missing table: the migrations of this release have not run yet.
        ("42P01", 503, "database_unavailable"),
        ("23514", 500, "internal_error"), ("XX000", 500, "internal_error"),
    ],
)  # fmt: skip
def test_each_kind_of_trouble_has_its_answer(alice, monkeypatch, state, status, code):
    def trouble(*_, **__):
        with connection.cursor() as cursor:
            cursor.execute(f"DO $$ BEGIN RAISE EXCEPTION 'secret' USING ERRCODE = '{state}'; END $$")

    monkeypatch.setattr("orchestrator.services.bulk_submit.submit", trouble)
    response = alice.post(JOBS, SUBMIT_BODY)
    document = problem_of(response)
    assert (response.status_code, document["code"]) == (status, code)
    assert ("Retry-After" in response) == (status == 503)
    assert "secret" not in response.content.decode()
    if code == "busy":  # one text for all of its causes: it must not name one of them only
        assert "a lock, a time limit or the number of connections" in document["detail"]


def test_of_a_deadlock_the_verb_is_tried_again(project, elsewhere):
    """Two sessions lock two jobs in opposite order, until PostgreSQL ends the operation and not the other session.

    It ends the session whose wait of a second is over first. On a machine under load that may be the other one.
    """
    one, two = submitted(project), submitted(project)
    tried = []

    @operation
    def take_both(_):
        tried.append("once")
        for job in (one, two):
            Job.objects.locked().get(pk=job.pk)
        return Job.objects.filter(pk=one.pk).update(priority=7)

    def act():
        try:
            answers.append(take_both())
        finally:
            connection.close()

    for _ in range(10):
        tried.clear()
        answers = []
        elsewhere.execute("SELECT FROM runtime_jobs WHERE id = %s FOR UPDATE", [two.pk])
        other = threading.Thread(target=act)
        other.start()
        eventually(somebody_waits)
        with contextlib.suppress(psycopg.errors.DeadlockDetected):
            elsewhere.execute("SELECT FROM runtime_jobs WHERE id = %s FOR UPDATE", [one.pk])
        elsewhere.rollback()
        other.join(timeout=20)
        if len(tried) > 1:
            break
    assert (tried, answers) == (["once", "once"], [1])
    one.refresh_from_db()
    assert one.priority == 7


def somebody_waits():
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
        return cursor.fetchone()[0]


@pytest.mark.parametrize(
    ("state", "expected"), [("40P01", MAX_ATTEMPTS), ("40001", MAX_ATTEMPTS), ("55P03", 1), ("57014", 1), ("23505", 1)]
)
def test_only_what_left_nothing_behind_is_tried_again_and_not_for_ever(state, expected):
    tried = []

    @operation
    def never(_):
        tried.append("once")
        with connection.cursor() as cursor:
            cursor.execute(f"DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '{state}'; END $$")

    with pytest.raises(DatabaseError):
        never()
    assert len(tried) == expected
