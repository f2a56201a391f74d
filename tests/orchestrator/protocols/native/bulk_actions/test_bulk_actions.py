"""`/v1/bulk-actions`: counted, started, followed, aborted, and every bad input refused by its field."""

import pytest

from orchestrator.bulk_actions.execution import advance_bulk_action
from orchestrator.bulk_actions.models import BulkAction, BulkTarget
from runtime_jobs.models import Job
from runtime_jobs.models.tenants import Scope
from tests.api_client import Caller, refused
from tests.factories import api_token, submitted

pytestmark = pytest.mark.django_db
BODY = {"org_slug": "sandtrace", "action": "cancel", "filter": {"status": "queued"}, "reason": "reverted"}
PATH = "/v1/bulk-actions"


@pytest.fixture
def jobs(organization):
    return [submitted(organization.projects.get()) for _ in range(3)]


def test_an_action_is_started_and_followed(alice, jobs):
    response = alice.post(PATH, BODY)
    made = response.json()
    path = f"{PATH}/{made['bulk_action_id']}"
    assert (response.status_code, response["Location"]) == (202, path)
    assert (made["status"], made["total"], made["done"], made["refused"]) == ("pending", 3, 0, 0)
    assert (made["filter"], made["created_by"]) == (BODY["filter"], {"kind": "client", "id": "token test"})
    assert alice.get(path).json() == made
    BulkTarget.objects.filter(subject_ulid=jobs[0].job_ulid).update(subject_ulid="rtj_" + "0" * 26)
    advance_bulk_action()
    shown = alice.get(path).json()
    assert (shown["status"], shown["done"], shown["refused"]) == ("completed", 2, 1)
    assert shown["started_at"] <= shown["finished_at"]
    (refusal,) = alice.get(f"{path}/refusals").json()["results"]
    assert (refusal["id"], refusal["code"]) == ("rtj_" + "0" * 26, "not_found")
    assert alice.get(f"{PATH}?status=completed&action=cancel").json()["results"] == [shown]
    refused(lambda: alice.post(f"{path}/abort"), 409, "conflict")


def test_a_dry_run_counts_and_changes_nothing(alice, jobs, settings):
    response = alice.post(PATH, BODY | {"dry_run": True})
    assert (response.status_code, response.json()) == (200, {"matched": 3, "limit": settings.BULK_ACTION_TARGETS})
    assert not BulkAction.objects.exists()
    settings.BULK_ACTION_TARGETS = 1
    assert alice.post(PATH, BODY | {"dry_run": True}).json() == {"matched": 2, "limit": 1}
    problem = refused(lambda: alice.post(PATH, BODY), 400, "invalid")
    assert list(problem["errors"]) == ["filter"]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"filter": {}}, "filter"),
        ({"filter": []}, "filter"),
        ({"filter": {"state": "queued"}}, "filter"),
        ({"filter": {"status": "unknown"}}, "filter"),
        ({"filter": {"org_slug": "other"}}, "filter"),
        ({"filter": {"job_ids": []}}, "filter"),
        ({"filter": {"job_ids": ["1"]}}, "filter"),
        ({"filter": {"created_after": "yesterday"}}, "filter"),
        ({"filter": {"project_slug": None}}, "filter"),
        ({"action": "resolve", "filter": {"status": "queued"}}, "filter"),
        ({"action": "resolve", "filter": {"kind": "breaker"}}, "filter"),
        ({"action": "delete"}, "action"),
        ({"reason": ""}, "reason"),
        ({"dry_run": "yes"}, "dry_run"),
        ({"force": True}, "force"),
    ],
)
def test_a_bad_body_is_refused_by_its_field(alice, jobs, changes, field):
    response = alice.post(PATH, BODY | changes)
    assert response.status_code == 400, response.content
    assert {name.partition(".")[0] for name in response.json()["errors"]} == {field}
    assert not BulkAction.objects.exists()


def test_an_action_is_aborted_before_it_begins(alice, jobs):
    path = f"{PATH}/{alice.post(PATH, BODY).json()['bulk_action_id']}"
    aborted = alice.post(f"{path}/abort", {"reason": "the wrong filter"}).json()
    assert (aborted["status"], aborted["aborted_by"]) == ("aborted", {"kind": "client", "id": "token test"})
    assert alice.post(f"{path}/abort").json() == aborted
    assert advance_bulk_action() is None
    assert Job.objects.filter(state="queued").count() == 3


def test_a_repeated_request_returns_the_first_action(alice, jobs):
    key = {"Idempotency-Key": "k"}
    first, again = alice.post(PATH, BODY, **key), alice.post(PATH, BODY, **key)
    assert (again.status_code, again["Idempotency-Replayed"], again.json()) == (202, "true", first.json())
    refused(lambda: alice.post(PATH, BODY | {"reason": "x"}, **key), 409, "idempotency_conflict")
    assert BulkAction.objects.count() == 1


def test_an_action_that_matches_nothing_is_completed(alice, organization):
    made = alice.post(PATH, BODY).json()
    assert (made["status"], made["total"]) == ("completed", 0)


def test_a_token_without_the_scope_is_refused(organization):
    writer = Caller(api_token(organization, (Scope.ORCH_READ, Scope.JOBS_WRITE)))
    for call in (lambda: writer.get(PATH), lambda: writer.post(PATH, BODY)):
        refused(call, 403, "insufficient_scope")
