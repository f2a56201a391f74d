"""Batch calls: a result for each entry in its place; an error concerns its own entry alone."""

import pytest

from orchestrator.ingest.models import Run
from runtime_jobs.models import Job
from tests.api_client import refused
from tests.factories import SUBMIT_ANY_BODY, SUBMIT_BODY, ProjectFactory, WorkerFactory, claimed, submitted
from tests.openapi_document import openapi_document

pytestmark = pytest.mark.django_db
LEASES = "/v1/runtime/leases"
UNKNOWN = "rtl_01kkygn4z3fkef0g4tgm6g3b1j"
STEPS_DONE = {"result": {"status": "succeeded", "exit_code": 0}}


@pytest.fixture
def leases(alice, wendy, worker) -> list[str]:
    """Three leases that wait to be acknowledged."""
    alice.post("/v1/jobs/bulk", {"jobs": [SUBMIT_ANY_BODY] * 3})
    return [one["lease_id"] for one in claim(wendy, worker, max_leases=3).json()["leases"]]


def claim(wendy, worker, *, key=None, **body):
    sent = {"worker_id": worker.worker_id, "job_types": ["steps", "runtime"], "acknowledge": True} | body
    return wendy.post(LEASES, sent, **({"Idempotency-Key": key} if key else {}))


def each(leases, body=None):
    return {"leases": [{"lease_id": name} | (body or {}) for name in leases]}


def statuses(response) -> list[int]:
    assert response.status_code == 200, response.content
    return [one["status"] for one in response.json()["results"]]


def test_a_life_of_three_jobs_in_five_calls(alice, wendy, worker):
    made = alice.post("/v1/jobs/bulk", {"jobs": [SUBMIT_ANY_BODY] * 3}).json()["results"]
    assert [(one["status"], one["body"]["status"]) for one in made] == [(201, "queued")] * 3
    leases = [one["lease_id"] for one in claim(wendy, worker, max_leases=64).json()["leases"]]
    assert statuses(wendy.post(f"{LEASES}/acknowledge", each(leases))) == [200] * 3
    beats = wendy.post(f"{LEASES}/heartbeat", each(leases, {"phase": "executing"})).json()["results"]
    assert [one["lease_id"] for one in beats] == leases
    assert {one["body"]["cancel_requested"] for one in beats} == {False}
    assert statuses(wendy.post(f"{LEASES}/complete", each(leases, STEPS_DONE))) == [200] * 3
    ids = [one["body"]["job_id"] for one in made]
    assert {alice.get(f"/v1/jobs/{name}").json()["status"] for name in ids} == {"succeeded"}


@pytest.mark.parametrize("most", [1, 2, 64])
def test_with_max_leases_the_answer_is_a_list(alice, wendy, worker, most):
    alice.post("/v1/jobs/bulk", {"jobs": [SUBMIT_ANY_BODY] * 2})
    answer = claim(wendy, worker, max_leases=most)
    assert answer.status_code == 201
    assert len(answer.json()["leases"]) == min(most, 2)
    assert set(answer.json()) == {"leases"}


def test_without_it_one_lease_is_answered_as_ever(alice, wendy, worker):
    alice.post("/v1/jobs/bulk", {"jobs": [SUBMIT_ANY_BODY] * 2})
    assert set(claim(wendy, worker).json()) == {"lease_id", "job", "lease_expires_at"}


def test_no_work_is_204(wendy, worker):
    assert claim(wendy, worker, max_leases=8).status_code == 204


@pytest.mark.parametrize("most", [0, 65, -1, "3", 1.5, True])
def test_max_leases_is_a_number_of_1_to_64(wendy, worker, most):
    refused(lambda: claim(wendy, worker, max_leases=most), 400, "invalid")


def test_a_claim_with_a_key_gets_the_same_leases(alice, wendy, worker):
    alice.post("/v1/jobs/bulk", {"jobs": [SUBMIT_ANY_BODY] * 4})
    first, again = claim(wendy, worker, key="k", max_leases=2), claim(wendy, worker, key="k", max_leases=2)
    assert [one["lease_id"] for one in again.json()["leases"]] == [one["lease_id"] for one in first.json()["leases"]]
    assert (first.get("Idempotency-Replayed"), again.get("Idempotency-Replayed")) == (None, "true")
    refused(lambda: claim(wendy, worker, key="k", max_leases=3), 409, "idempotency_conflict")


def test_each_lease_brings_its_own_organizations_egress(wendy, worker):
    for slug, host in (("one", "a.example"), ("two", "b.example")):
        project = ProjectFactory(organization__slug=slug, organization__egress=[host])
        submitted(project)
    response_body = claim(wendy, worker, max_leases=2).json()["leases"]
    assert {one["job"]["org_slug"]: one["job"]["execution"]["egress"] for one in response_body} == {
        "one": ["a.example"], "two": ["b.example"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("action", "body"),
    [
        ("acknowledge", {}),
        ("heartbeat", {"phase": "executing"}),
        ("complete", STEPS_DONE),
        ("fail", {"result": {"status": "failed", "reason": "worker_error"}}),
    ],
    ids=["acknowledge", "heartbeat", "complete", "fail"],
)
def test_one_that_is_refused_spoils_no_other(wendy, leases, action, body):
    submitted()
    others = claimed(WorkerFactory()).lease.lease_ulid
    sent = each([leases[0], UNKNOWN, others, "no id at all", leases[1]], body)
    sent["leases"].append({"lease_id": leases[2], "nonsense": 1})
    answer = wendy.post(f"{LEASES}/{action}", sent)
    assert statuses(answer) == [200, 409, 409, 409, 200, 400]
    results = answer.json()["results"]
    assert [one["lease_id"] for one in results] == [one["lease_id"] for one in sent["leases"]]
    for one in results[1:4]:
        assert (one["error"]["code"], one["error"]["reason"]) == ("stale_lease", "unknown_lease")
        assert one["error"]["status"] == one["status"]
        assert one["lease_id"] not in str(one["error"])
    assert (results[5]["error"]["code"], results[5]["error"]["errors"]) == (
        "unknown_field", {"nonsense": ["Unknown field."]},
    )  # fmt: skip
    assert Job.objects.get(leases__lease_ulid=leases[2]).state == "leased"


@pytest.mark.parametrize("action", ["acknowledge", "heartbeat", "complete", "fail"])
@pytest.mark.parametrize(
    "body",
    [
        {},
        {"leases": []},
        {"leases": {}},
        {"leases": [1]},
        {"leases": [{}]},
        {"leases": [{"lease_id": 7}]},
        {"leases": [{"lease_id": UNKNOWN}, {"lease_id": UNKNOWN}]},
        {"leases": [{"lease_id": f"{place}"} for place in range(257)]},
    ],
    ids=["none", "empty", "no list", "no object", "no id", "a number", "twice", "too many"],
)
def test_what_is_wrong_with_the_list_is_reported_for_the_call(wendy, action, body):
    refused(lambda: wendy.post(f"{LEASES}/{action}", body), 400, "invalid")


def test_another_field_beside_the_list_is_unknown(wendy):
    refused(lambda: wendy.post(f"{LEASES}/heartbeat", each([UNKNOWN]) | {"phase": "x"}), 400, "unknown_field")


def test_only_workers_may_speak_of_leases_and_only_clients_submit(alice, wendy):
    refused(lambda: alice.post(f"{LEASES}/heartbeat", each([UNKNOWN])), 403, "wrong_principal")
    refused(lambda: wendy.post("/v1/jobs/bulk", {"jobs": [SUBMIT_ANY_BODY]}), 403, "wrong_principal")


def test_a_run_that_ingest_does_not_hold_is_refused_for_its_job_alone(alice, wendy, worker):
    alice.post("/v1/runtime/jobs/bulk", {"jobs": [SUBMIT_BODY] * 2})
    first, second = claim(wendy, worker, max_leases=2).json()["leases"]
    submitted_run(first["job"]["job_id"], "run_1")
    result = {"status": "uploaded", "ingest_run_id": "run_1"}
    sent = each([first["lease_id"], second["lease_id"]], {"result": result})
    answer = wendy.post(f"{LEASES}/complete", sent)
    assert statuses(answer) == [200, 400]
    assert "result.ingest_run_id" in answer.json()["results"][1]["error"]["errors"]
    assert statuses(wendy.post(f"{LEASES}/complete", sent)) == [200, 400], "the same again is answered the same"


def submitted_run(job_id: str, run_id: str) -> None:
    job = Job.objects.get(job_ulid=job_id)
    lease = job.leases.get()
    columns = {"org_slug": job.org_slug, "project_slug": job.project_slug, "worker_id": lease.worker_id}
    Run.objects.create(run_id=run_id, job_id=job_id, fence=lease.fence, payload={}, **columns)


# --- submission -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "body"), [("/v1/jobs", SUBMIT_ANY_BODY), ("/v1/runtime/jobs", SUBMIT_BODY)])
def test_each_job_has_its_own_result(alice, path, body):
    stranger = ProjectFactory(organization__slug="other")
    sent = [
        body,
        body | {"org_slug": stranger.organization.slug},
        body | {"project_slug": "nowhere"},
        body | {"nonsense": 1},
        body | {"trigger": {"kind": "push"}},
        {},
        body,
    ]
    answer = alice.post(f"{path}/bulk", {"jobs": sent})
    assert statuses(answer) == [201, 404, 403, 400, 400, 400, 201]
    results = answer.json()["results"]
    assert [one["error"]["code"] for one in results[1:6]] == [
        "not_found", "project_not_enabled", "unknown_field", "invalid", "invalid",
    ]  # fmt: skip
    shown = alice.get(f"{path}/{results[0]['body']['job_id']}").json()
    assert shown | results[0]["body"] == shown
    assert Job.objects.count() == 2


def test_the_same_bulk_with_its_key_makes_nothing_new(alice):
    sent = {"jobs": [SUBMIT_ANY_BODY, {}, SUBMIT_ANY_BODY | {"project_slug": "nowhere"}]}
    first = alice.post("/v1/jobs/bulk", sent, **{"Idempotency-Key": "k"})
    again = alice.post("/v1/jobs/bulk", sent, **{"Idempotency-Key": "k", "X-Request-Id": first["X-Request-Id"]})
    assert again.json() == first.json()
    assert (first.get("Idempotency-Replayed"), again["Idempotency-Replayed"]) == (None, "true")
    assert Job.objects.count() == 1
    other = {"jobs": [SUBMIT_ANY_BODY]}
    refused(lambda: alice.post("/v1/jobs/bulk", other, **{"Idempotency-Key": "k"}), 409, "idempotency_conflict")


@pytest.mark.parametrize("jobs", [[], {}, [1], None, [SUBMIT_ANY_BODY] * 501], ids=["none", "map", "1", "null", "501"])
def test_a_bulk_has_1_to_500_objects(alice, jobs):
    refused(lambda: alice.post("/v1/jobs/bulk", {"jobs": jobs}), 400, "invalid")


def test_500_jobs_come_in_at_once(alice):
    answer = alice.post("/v1/jobs/bulk", {"jobs": [SUBMIT_ANY_BODY] * 500})
    assert statuses(answer) == [201] * 500
    assert Job.objects.queued().count() == 500


@pytest.mark.parametrize("number", [1, 40])
def test_no_statement_is_made_for_each_of_them(alice, wendy, worker, django_assert_num_queries, number):
    alice.post("/v1/jobs/bulk", {"jobs": [SUBMIT_ANY_BODY] * 2})  # makes the lane
    claim(wendy, worker)  # notes when the worker was seen
    with django_assert_num_queries(6):
        alice.post("/v1/jobs/bulk", {"jobs": [SUBMIT_ANY_BODY] * number})
    with django_assert_num_queries(2):
        leases = [one["lease_id"] for one in claim(wendy, worker, max_leases=number).json()["leases"]]
    calls = (("acknowledge", {}, 5), ("heartbeat", {"phase": "executing"}, 5), ("complete", STEPS_DONE, 5))
    for action, body, statements in calls:
        with django_assert_num_queries(statements):
            assert statuses(wendy.post(f"{LEASES}/{action}", each(leases, body))) == [200] * number


def example(path, part):
    """Return the first example of a request body, or of the response 200, in the document."""
    operation = openapi_document()["paths"][path]["post"]
    body = operation["requestBody"] if part == "request" else operation["responses"]["200"]
    return next(iter(body["content"]["application/json"]["examples"].values()))["value"]


def test_the_examples_are_answered_as_the_document_says(alice, wendy):
    for path in ("/v1/runtime/jobs/bulk", "/v1/jobs/bulk"):
        body = alice.post(path, example(path, "request")).json()["results"][0]["body"]
        assert set(body) == set(example(path, "response")["results"][0]["body"])
    for operation in ("heartbeat", "fail"):
        path = f"{LEASES}/{operation}"
        assert statuses(wendy.post(path, example(path, "request"))) == [409, 409]
