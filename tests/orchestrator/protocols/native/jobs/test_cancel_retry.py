"""Cancel and retry over HTTP: done, requested, or refused with the job's state. Repetitions change nothing."""

import pytest

from orchestrator.services import cancellation, job_end
from runtime_jobs.models import Job
from runtime_jobs.states import FailureReason
from tests.api_client import refused
from tests.db_snapshot import nothing_lost
from tests.factories import ALICE, claimed, submitted

pytestmark = pytest.mark.django_db
JOBS = "/v1/runtime/jobs"


@pytest.fixture
def job(organization):
    return submitted(organization.projects.get())


def end(job, how):
    if how == "canceled":
        return cancellation.cancel(job_ulid=job.job_ulid, actor=ALICE, deadline_seconds=30)
    held = claimed()
    if how == "failed":
        return job_end.fail(
            lease_ulid=held.lease.lease_ulid, worker=held.lease.worker, reason=FailureReason.WORKER_ERROR
        )
    return job_end.complete(lease_ulid=held.lease.lease_ulid, worker=held.lease.worker, ingest_run_id="run_1")


def test_what_waits_is_canceled_at_once_and_a_repeat_changes_nothing(alice, job):
    first = alice.post(f"{JOBS}/{job.job_ulid}/cancel", {"reason": "not needed"})
    assert (first.status_code, first.json()["status"]) == (200, "canceled")
    assert first.json()["failure"] == {"reason": "requested", "class": None, "message": "not needed"}
    with nothing_lost():
        again = alice.post(f"{JOBS}/{job.job_ulid}/cancel", {"reason": "other"})
    assert (again.status_code, again.content) == (200, first.content)


@pytest.mark.parametrize("acknowledge", [True, False])
def test_what_is_held_is_asked_for_and_a_repeat_keeps_the_first_word(alice, job, acknowledge):
    claimed(acknowledge=acknowledge)
    first = alice.post(f"{JOBS}/{job.job_ulid}/cancel", {"reason": "first"})
    assert first.status_code == 202
    assert (first.json()["status"], first.json()["cancel_requested"]) == ("queued" if acknowledge else "running", True)
    with nothing_lost():
        again = alice.post(f"{JOBS}/{job.job_ulid}/cancel", {"reason": "second"})
    assert (again.status_code, again.content) == (202, first.content)


@pytest.mark.parametrize(("how", "status"), [("succeeded", "uploaded"), ("failed", "failed")])
def test_what_has_ended_otherwise_says_how(alice, job, how, status):
    end(job, how)
    document = refused(lambda: alice.post(f"{JOBS}/{job.job_ulid}/cancel"), 409, "already_final")
    assert (document["status"], document["job_status"]) == (409, status)


@pytest.mark.parametrize("body", [{"reason": 7}, {"reason": None}, {"reason": "x" * 1001}, {"reason": ["x"]}])
@pytest.mark.parametrize("action", ["cancel", "retry"])
def test_a_reason_is_a_text(alice, job, action, body):
    refused(lambda: alice.post(f"{JOBS}/{job.job_ulid}/{action}", body), 400, "invalid")


def test_a_retry_says_why(alice, job):
    end(job, "failed")
    for body in ({}, b"", {"reason": ""}):
        refused(lambda body=body: alice.post(f"{JOBS}/{job.job_ulid}/retry", body), 400, "invalid")
    changed = {"reason": "again", "execution": {"command": ["other"]}}
    refused(lambda: alice.post(f"{JOBS}/{job.job_ulid}/retry", changed), 400, "unknown_field")


@pytest.mark.parametrize("how", ["failed", "canceled"])
def test_a_retry_is_a_new_job_that_points_back(alice, job, how):
    end(job, how)
    made = alice.post(f"{JOBS}/{job.job_ulid}/retry", {"reason": "again"})
    assert made.status_code == 201
    newer = made.json()
    assert made["Location"] == f"{JOBS}/{newer['job_id']}"
    assert (newer["retry_of"], newer["root_job_id"], newer["attempt"]) == (job.job_ulid, job.job_ulid, 2)
    assert (newer["status"], newer["cancel_requested"]) == ("queued", False)
    assert alice.get(f"{JOBS}/{job.job_ulid}").json()["retries"] == [newer["job_id"]]
    document = refused(lambda: alice.post(f"{JOBS}/{job.job_ulid}/retry", {"reason": "more"}), 409, "already_retried")
    assert document["newer_job_id"] == newer["job_id"]


@pytest.mark.parametrize(
    ("how", "code", "status"), [(None, "not_final", "queued"), ("succeeded", "already_final", "uploaded")]
)
def test_only_what_failed_or_was_canceled_is_retried(alice, job, how, code, status):
    if how:
        end(job, how)
    assert (
        refused(lambda: alice.post(f"{JOBS}/{job.job_ulid}/retry", {"reason": "x"}), 409, code)["job_status"] == status
    )


def test_what_runs_is_not_retried(alice, job):
    claimed()
    document = refused(lambda: alice.post(f"{JOBS}/{job.job_ulid}/retry", {"reason": "x"}), 409, "not_final")
    assert document["job_status"] == "running"


def test_a_job_shows_its_place_in_the_queue_while_it_waits(alice, job, organization):
    second = submitted(organization.projects.get())
    assert alice.get(f"{JOBS}/{second.job_ulid}").json()["queue_position"] == 2
    claimed()
    assert alice.get(f"{JOBS}/{second.job_ulid}").json()["queue_position"] == 1
    assert alice.get(f"{JOBS}/{job.job_ulid}").json()["queue_position"] is None


def test_a_reason_names_no_capability(alice, job, organization):
    token = alice.headers["Authorization"].split()[1]
    alice.post(f"{JOBS}/{job.job_ulid}/cancel", {"reason": f"I pasted {token}\x07"})
    assert token not in (Job.objects.get().cancel_message or "")
    assert token not in str(alice.get(f"{JOBS}/{job.job_ulid}/events").json())
