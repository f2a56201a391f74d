"""The audit finds what no call of a runner does to steps and tokens."""

import pytest
from django.db import connection

from orchestrator.audit.runner import run_audit
from orchestrator.job_tokens.models import UsedToken
from runtime_jobs.models import Job, JobStep
from tests.orchestrator.protocols.shithub.world import actions_spec, register, start_run

pytestmark = pytest.mark.django_db


@pytest.fixture
def session():
    """A runner that ended one job, began another, and was given a third."""
    runner = register(capacity=3)
    start_run(specs=[actions_spec(job_key=key) for key in ("a", "b", "c")])
    ended, begun, _claimed = (runner.client.claim(capacity=3) for _ in range(3))
    ended.run()
    ended.log(b"hello\n")
    ended.end_step(0)
    ended.end("failure")
    begun.run()
    begun.runner.post(f"{begun.path}/token")
    return runner, ended, begun


def codes() -> set[str]:
    return {finding.code for finding in run_audit(chains=True)}


def test_a_session_breaks_no_invariant(session):
    assert run_audit(chains=True) == []


def test_used_tokens_are_the_calls_that_count(session):
    """Accepted calls and the client's errors use a token; nothing else does."""
    runner, ended, begun = session
    assert UsedToken.objects.filter(job_id=ended.job["id"]).count() == 4, "running, chunk, step, end"
    begun.token = runner.client.post(f"{begun.path}/token").json()["token"]
    before = UsedToken.objects.count()
    first = begun.token
    assert begun.check_cancel().status_code == 200
    assert begun.call("cancel-check", token=first).status_code == 401
    assert begun.call("cancel-check", token="wrong").status_code == 401
    assert begun.call("cancel-check", token=begun.job["checkout_token"]).status_code == 401
    assert ended.log(b"late\n").status_code == 401, "its last token was used by the end"
    assert begun.call("status", {"status": "queued"}).status_code == 400
    assert UsedToken.objects.count() == before + 2
    assert run_audit(chains=True) == []


def test_an_open_step_of_an_ended_job_is_found(session):
    _, ended, _ = session
    JobStep.objects.filter(pk=ended.steps[1]["id"]).update(status="queued", conclusion=None, completed_at=None)
    assert codes() == {"A1"}


def test_a_step_without_a_job_is_found(session):
    with connection.cursor() as cursor:
        cursor.execute("UPDATE runtime_job_steps SET job_ulid = 'rtj_gone' WHERE index = 1 AND status = 'skipped'")
    assert "A2" in codes()


def test_a_token_of_another_runner_is_found(session):
    other = register("runner-2")
    UsedToken.objects.filter(job_id=Job.objects.earliest("pk").pk).update(runner_id=other.row.pk)
    assert "A3" in codes()


def test_a_begun_job_without_a_used_token_is_found(session):
    _, ended, _ = session
    UsedToken.objects.filter(job_id=ended.job["id"]).delete()
    assert codes() == {"A4"}


@pytest.mark.parametrize(
    ("table", "columns", "code"),
    [
        ("step_logs", "stored_bytes = stored_bytes + 1", "I40"),
        ("runtime_job_log_chunks", "chunk = 'other'", "I40"),
        ("step_logs", "waiting_count = 1", "I41"),
        ("step_logs", "closed_at = NULL", "I42"),
        ("runtime_job_steps", "log_byte_count = log_byte_count + 1", "I42"),
    ],
)
def test_a_log_whose_rows_disagree_is_found(session, table, columns, code):
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE {table} SET {columns}")
        assert cursor.rowcount > 0
    assert codes() == {code}
