"""An Idempotency-Key: the same request again gets the first answer, another one a conflict, a refused one uses it not."""

import pytest

from runtime_jobs.models import Job
from tests.api_client import Caller, refused
from tests.db_snapshot import nothing_lost
from tests.factories import SUBMIT_BODY, OrganizationFactory, api_token

pytestmark = pytest.mark.django_db
JOBS = "/v1/runtime/jobs"


def key(value):
    return {"Idempotency-Key": value}


def test_the_same_request_again_gets_the_first_job(alice):
    first = alice.post(JOBS, SUBMIT_BODY, **key("k"))
    with nothing_lost():
        again = alice.post(JOBS, SUBMIT_BODY, **key("k"))
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.content == again.content
    assert first["Location"] == again["Location"]
    assert ("Idempotency-Replayed" in first, again["Idempotency-Replayed"]) == (False, "true")


def test_spaces_and_the_order_of_fields_do_not_make_it_another_request(alice):
    first = alice.post(JOBS, SUBMIT_BODY, **key("k")).json()["job_id"]
    turned = dict(reversed(SUBMIT_BODY.items()))
    assert alice.post(JOBS, turned, **key("k")).json()["job_id"] == first


def test_another_body_is_a_conflict(alice):
    alice.post(JOBS, SUBMIT_BODY, **key("k"))
    other = SUBMIT_BODY | {"trigger": {"kind": "manual"}}
    refused(lambda: alice.post(JOBS, other, **key("k")), 409, "idempotency_conflict")


def test_another_key_or_none_is_another_job(alice):
    made = {alice.post(JOBS, SUBMIT_BODY, **headers).json()["job_id"] for headers in (key("k"), key("K"), {}, {})}
    assert len(made) == 4


def test_a_refused_request_does_not_use_up_its_key(alice, organization):
    refused(lambda: alice.post(JOBS, SUBMIT_BODY | {"project_slug": "none"}, **key("k")), 403, "project_not_enabled")
    assert alice.post(JOBS, SUBMIT_BODY, **key("k")).status_code == 201


def test_a_key_belongs_to_its_token(alice, organization):
    other = Caller(api_token(organization))
    made = {caller.post(JOBS, SUBMIT_BODY, **key("k")).json()["job_id"] for caller in (alice, other)}
    assert len(made) == 2


def test_a_key_belongs_to_its_operation(alice):
    job = alice.post(JOBS, SUBMIT_BODY, **key("k")).json()["job_id"]
    other = alice.post(JOBS, SUBMIT_BODY).json()["job_id"]
    for name in (job, other):
        assert alice.post(f"{JOBS}/{name}/cancel").status_code == 200
    first, second = (alice.post(f"{JOBS}/{name}/retry", {"reason": "x"}, **key("k")) for name in (job, other))
    assert (first.status_code, second.status_code) == (201, 201)
    assert first.json()["job_id"] != second.json()["job_id"]
    assert Job.objects.count() == 4
    again = alice.post(f"{JOBS}/{job}/retry", {"reason": "x"}, **key("k"))
    assert (again.content, again["Idempotency-Replayed"]) == (first.content, "true")
    refused(lambda: alice.post(f"{JOBS}/{job}/retry", {"reason": "y"}, **key("k")), 409, "idempotency_conflict")


def test_the_longest_key_is_kept_whole(alice):
    first, second = (alice.post(JOBS, SUBMIT_BODY, **key("x" * 254 + end)).json()["job_id"] for end in "ab")
    assert first != second


@pytest.mark.parametrize("value", ["", "x" * 256, "é", "a\tb", "a\x7f", "💩"])
def test_a_key_is_1_to_255_printable_ascii_characters(alice, value):
    document = refused(lambda: alice.post(JOBS, SUBMIT_BODY, **key(value)), 400, "invalid")
    assert set(document["errors"]) == {"Idempotency-Key"}


def test_the_key_of_a_job_is_read_and_searched(alice, organization):
    """Each attempt has its own: that of the submit, that of the retry. The key of a bulk submit names no single job."""
    headers = key("k 1")
    job = alice.post(JOBS, SUBMIT_BODY, **headers).json()["job_id"]
    assert alice.post(f"{JOBS}/{job}/cancel").status_code == 200
    retry = alice.post(f"{JOBS}/{job}/retry", {"reason": "x"}, **key("k 2")).json()["job_id"]
    bulk = alice.post(f"{JOBS}/bulk", {"jobs": [SUBMIT_BODY] * 9}, **headers).json()["results"][0]["body"]["job_id"]
    stranger = Caller(api_token(OrganizationFactory()))
    for path in (JOBS, "/v1/jobs"):
        shown = [alice.get(f"{path}/{name}").json()["idempotency_key"] for name in (job, retry, bulk)]
        assert shown == ["k 1", "k 2", None]
    for caller, value, expected in ((alice, "k%201", [job]), (alice, "k%202", [retry]), (stranger, "k%201", [])):
        page = caller.get(f"/v1/jobs?idempotency_key={value}").json()["results"]
        assert [row["job_id"] for row in page] == expected
