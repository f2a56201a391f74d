"""The audit finds what no operation does to a job that settles."""

import pytest
from django.db import connection

from orchestrator.audit.runner import run_audit
from orchestrator.services import expiry, heartbeat, job_end, late_results
from orchestrator.services.job_end import ReadResult
from runtime_jobs.states import FailureReason, JobState
from tests.factories import LATE_POLICY, claimed, submitted_steps
from tests.orchestrator.services.conftest import after
from tests.orchestrator.services.test_heartbeat import row, speak

pytestmark = pytest.mark.django_db


@pytest.fixture
def audited():
    """These tests break things on purpose."""


@pytest.fixture
def lost():
    submitted_steps(policy=LATE_POLICY)
    claim = claimed(job_types=("steps",))
    heartbeat.report(**speak(claim, phase="executing", now=claim.lease.leased_at))
    expiry.expire(job_ulid=claim.job.job_ulid, now=after(claim.lease.leased_at, 120))
    return claim


@pytest.fixture
def late(lost):
    """Succeeded by a late result."""
    now = after(lost.lease.leased_at, 130)
    job_end.complete(**speak(lost, now=now))
    late_results.settle(job_ulid=lost.job.job_ulid, now=now)
    return lost


@pytest.fixture
def given_up(lost):
    late_results.give_up(job_ulid=lost.job.job_ulid, now=row(lost.lease).late_result_at)
    return lost


def findings(sql: str) -> set[str]:
    """Change rows as the owner of the database could, and return what the audit then finds."""
    assert run_audit() == []
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL orchestrator.maintenance = 'update'")
        cursor.execute(sql)
        assert cursor.rowcount > 0
    return {finding.code for finding in run_audit()}


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE runtime_job_events SET worker_id = 'wrk_x' WHERE to_state = 'processing'",
        "UPDATE runtime_job_events SET fence = 7 WHERE to_state = 'processing'",
        "UPDATE runtime_jobs SET late_result_at = created_at",
        "UPDATE runtime_jobs SET late_result_at = NULL",
    ],
    ids=["another worker", "another fence", "after the window", "without a window"],
)
def test_a_late_result_that_should_not_have_counted_is_found(late, sql):
    assert findings(sql) == {"I9"}


@pytest.mark.parametrize("column", ["needs_processing = false", "late_result_seconds = 0"])
def test_a_state_that_the_policy_does_not_allow_is_found(late, column):
    assert findings(f"UPDATE runtime_jobs SET {column}") == {"I9b"}


def test_a_success_that_nobody_has_read_is_found(late):
    sql = "UPDATE runtime_job_events SET from_state = 'executing' WHERE to_state = 'succeeded'"
    assert findings(sql) >= {"I9b", "I9"}


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE runtime_jobs SET late_result_at = late_result_at + interval '1 s'",
        "UPDATE runtime_job_events SET payload_json = '{\"reason\": \"worker_error\"}' WHERE event_type = 'job.lost'",
    ],
    ids=["too early", "another reason"],
)
def test_a_lost_job_that_should_not_have_failed_so_is_found(given_up, sql):
    assert findings(sql) == {"I9c"}


def test_a_result_that_failed_without_being_read_is_found(db):
    submitted_steps(policy=LATE_POLICY)
    claim = claimed(job_types=("steps",))
    heartbeat.report(**speak(claim, phase="executing"))
    job_end.complete(**speak(claim))
    job = late_results.settle(job_ulid=claim.job.job_ulid, read_result=ReadResult(FailureReason.RESULT_MISSING))
    assert job.state == JobState.FAILED
    sql = "UPDATE runtime_job_events SET from_state = 'executing' WHERE to_state = 'failed'"
    assert "I9c" in findings(sql)


def test_an_open_lease_of_a_job_that_settles_is_found(lost):
    assert findings("UPDATE runtime_worker_leases SET state = 'active', completed_at = NULL") == {"I2"}


def test_rules_that_the_trigger_would_refuse_are_found(lost):
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute("ALTER TABLE runtime_jobs DISABLE TRIGGER guard_job")
    assert findings("UPDATE runtime_jobs SET late_result_at = NULL") == {"I31"}
    with connection.cursor() as cursor:
        cursor.execute("UPDATE runtime_jobs SET late_result_at = now(), status = 'failed'")
    assert {finding.code for finding in run_audit()} == {"I30"}
