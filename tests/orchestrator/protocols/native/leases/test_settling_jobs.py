"""Jobs that settle over the native API: they run as far as a client sees, and a heartbeat past the limit is stale."""

from datetime import timedelta

import pytest
from django.db.models import F

from orchestrator.services import heartbeat, late_results, worker_state
from orchestrator.services.job_end import ReadResult
from runtime_jobs.models import Job
from runtime_jobs.states import FailureReason, JobState
from tests.api_client import refused
from tests.factories import LATE_POLICY, OPERATOR, claimed, submitted_steps

pytestmark = pytest.mark.django_db


@pytest.fixture
def claim(organization, worker):
    submitted_steps(organization.projects.get(), policy=LATE_POLICY)
    found = claimed(worker, job_types=("steps",))
    heartbeat.report(lease_ulid=found.lease.lease_ulid, worker=worker, phase="executing")
    return found


def send(wendy, claim, message, body=None):
    return wendy.post(f"/v1/runtime/leases/{claim.lease.lease_ulid}/{message}", body or {})


DONE = {"result": {"status": "succeeded", "exit_code": 0}}
FAILED = {"result": {"status": "failed", "reason": "worker_error"}}


def test_a_job_that_settles_runs_as_far_as_a_client_sees(alice, wendy, claim):
    path = f"/v1/jobs/{claim.job.job_ulid}"
    assert send(wendy, claim, "fail", FAILED).json()["status"] == "running"
    lost = alice.get(path).json()
    assert (lost["status"], lost["state"], lost["failure"], lost["finished_at"]) == ("running", "lost", None, None)
    assert send(wendy, claim, "complete", DONE).json()["status"] == "running"
    assert alice.get(path).json()["state"] == "processing"
    listed = alice.get("/v1/jobs?org_slug=sandtrace&status=running").json()["results"]
    assert [job["job_id"] for job in listed] == [claim.job.job_ulid]
    assert refused(lambda: alice.post(f"{path}/cancel"), 409, "already_final")["job_status"] == "running"
    late_results.settle(job_ulid=claim.job.job_ulid, read_result=ReadResult(FailureReason.RESULT_UNREADABLE, "line 3"))
    failure = {"reason": "result_unreadable", "class": "job", "message": "line 3"}
    assert alice.get(path).json()["failure"] == failure
    events = [event["event_type"] for event in alice.get(f"{path}/events").json()["results"]]
    assert events[-3:] == ["job.lost", "job.processing", "job.failed"]


def test_a_lost_job_is_canceled_at_once(alice, claim):
    worker_state.revoke(job_ulid=claim.job.job_ulid, actor=OPERATOR, reason="x")
    answer = alice.post(f"/v1/jobs/{claim.job.job_ulid}/cancel")
    assert (answer.status_code, answer.json()["status"]) == (200, "canceled")


@pytest.mark.parametrize("many", [False, True])
def test_a_heartbeat_past_the_limit_is_stale_and_has_ended_the_job(wendy, claim, many):
    Job.objects.filter(pk=claim.job.pk).update(executing_at=F("executing_at") - timedelta(seconds=361))
    lease_id = claim.lease.lease_ulid
    if many:
        (entry,) = wendy.post("/v1/runtime/leases/heartbeat", {"leases": [{"lease_id": lease_id}]}).json()["results"]
        assert (entry["status"], entry["error"]["code"]) == (409, "stale_lease")
        document = entry["error"]
    else:
        answer = send(wendy, claim, "heartbeat")
        document = answer.json()
        assert (answer.status_code, document["code"]) == (409, "stale_lease")
    assert (document["reason"], document["job_status"]) == ("lease_revoked", "failed")
    job = Job.objects.get(pk=claim.job.pk)
    assert (job.state, job.failure_reason) == (JobState.FAILED, FailureReason.TIMED_OUT)
