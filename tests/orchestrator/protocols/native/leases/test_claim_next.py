"""`claim_next` of a completion and a failure over HTTP: its bounds, its answers and its refusals."""

import pytest

from leases.models import Lease
from orchestrator.services import worker_state
from tests.api_client import refused
from tests.factories import OPERATOR, WorkerFactory, submitted, submitted_steps
from workers.models import Worker

pytestmark = pytest.mark.django_db
LEASES = "/v1/runtime/leases"
COMPLETED = {"status": "succeeded", "exit_code": 0}
FAILED = {"status": "failed", "reason": "worker_error"}
OLD, NEW = "01KKYGMFJF4J9S26HZD0H93J0R", "01KKYGN4Z3FKEF0G4TGM6G3B1J"


@pytest.fixture
def jobs(organization):
    return [submitted_steps(organization.projects.get()) for _ in range(3)]


def claim_body(worker, **changes):
    return {"worker_id": worker.worker_id, "job_types": ["steps", "runtime"]} | changes


@pytest.fixture
def lease(wendy, worker, jobs):
    return wendy.post(LEASES, claim_body(worker)).json()["lease_id"]


def finish(wendy, lease, claim_next, *, result=COMPLETED, **headers):
    operation = "fail" if result is FAILED else "complete"
    return wendy.post(f"{LEASES}/{lease}/{operation}", {"result": result, "claim_next": claim_next}, **headers)


@pytest.mark.parametrize(("result", "status"), [(COMPLETED, "succeeded"), (FAILED, "failed")])
def test_the_answer_has_the_next_lease_as_a_claim_answers_it(wendy, worker, jobs, lease, result, status):
    answer = finish(wendy, lease, claim_body(worker), result=result)
    assert answer.status_code == 200
    document = answer.json()
    assert (document["job_id"], document["status"]) == (jobs[0].job_ulid, status)
    following = document["next_lease"]
    assert following["job"]["job_id"] == jobs[1].job_ulid
    by_claim = wendy.post(LEASES, claim_body(worker)).json()
    assert following.keys() == by_claim.keys()
    assert following["job"].keys() == by_claim["job"].keys()
    assert wendy.post(f"{LEASES}/{following['lease_id']}/heartbeat", {}).status_code == 200


def test_a_repeat_has_the_same_answer(wendy, worker, lease):
    first, again = (finish(wendy, lease, claim_body(worker, acknowledge=True)) for _ in range(2))
    assert again.json() == first.json()
    assert Lease.objects.open().count() == 1


def test_without_a_job_the_next_lease_is_null(wendy, worker, organization):
    submitted_steps(organization.projects.get())
    lease = wendy.post(LEASES, claim_body(worker)).json()["lease_id"]
    assert finish(wendy, lease, claim_body(worker)).json()["next_lease"] is None


@pytest.mark.parametrize("claim_next", [None, ...])
def test_without_the_field_nothing_is_claimed_or_answered(wendy, lease, claim_next):
    body = {"result": COMPLETED} | ({} if claim_next is ... else {"claim_next": claim_next})
    answer = wendy.post(f"{LEASES}/{lease}/complete", body)
    assert answer.json().keys() == {"job_id", "status"}
    assert not Lease.objects.open().exists()


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"wait_seconds": 0}, "unknown_field"),
        ({"max_leases": 1}, "unknown_field"),
        ({"worker_id": 7}, "invalid"),
        ({"job_types": []}, "invalid"),
        ({"acknowledge": "yes"}, "invalid"),
    ],
)
def test_a_wrong_claim_refuses_the_completion(wendy, worker, lease, changes, code):
    document = refused(lambda: finish(wendy, lease, claim_body(worker, **changes)), 400, code)
    assert any(name.startswith("claim_next") for name in document["errors"])
    assert Lease.objects.open().get().lease_ulid == lease


def test_the_worker_and_the_pool_of_the_claim_are_checked_before_the_completion(wendy, worker, lease):
    other = WorkerFactory()
    refused(lambda: finish(wendy, lease, claim_body(other)), 403, "worker_mismatch")
    refused(lambda: finish(wendy, lease, claim_body(worker, pool="gpu")), 403, "pool_forbidden")
    assert Lease.objects.open().get().lease_ulid == lease


def test_a_refused_completion_claims_nothing(wendy, worker, jobs, lease):
    worker_state.revoke(job_ulid=jobs[0].job_ulid, actor=OPERATOR, reason="test")
    for result in (COMPLETED, FAILED):
        refused(lambda result=result: finish(wendy, lease, claim_body(worker), result=result), 409, "stale_lease")
    assert not Lease.objects.open().exists()


def test_a_replaced_process_completes_and_gets_no_lease(wendy, worker, lease):
    Worker.objects.filter(pk=worker.pk).update(session=NEW.lower())
    answer = finish(wendy, lease, claim_body(worker), **{"Worker-Session": OLD})
    assert answer.json()["next_lease"] is None
    assert answer.json()["status"] == "succeeded"


def test_a_runtime_job_comes_with_its_egress(wendy, worker, organization, lease):
    organization.egress = ["registry.example.org"]
    organization.save()
    job = submitted(organization.projects.get())
    answer = finish(wendy, lease, claim_body(worker, job_types=["runtime"])).json()
    assert answer["next_lease"]["job"]["job_id"] == job.job_ulid
    assert answer["next_lease"]["job"]["execution"]["egress"] == ["registry.example.org"]


@pytest.mark.parametrize(("operation", "result"), [("complete", COMPLETED), ("fail", FAILED)])
def test_a_call_for_many_leases_has_no_claim(wendy, worker, lease, operation, result):
    entry = {"lease_id": lease, "result": result, "claim_next": claim_body(worker)}
    (answer,) = wendy.post(f"{LEASES}/{operation}", {"leases": [entry]}).json()["results"]
    assert (answer["status"], answer["error"]["code"]) == (400, "unknown_field")
