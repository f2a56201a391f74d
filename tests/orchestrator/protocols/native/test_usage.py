"""The ledger of billed minutes by the API: the records of the caller's organizations, and of no other."""

from datetime import UTC, datetime

import pytest

from runtime_jobs.models import UsageRecord
from tests.api_client import Caller, refused
from tests.factories import OrganizationFactory, api_token

pytestmark = pytest.mark.django_db

START = datetime(2026, 3, 17, 20, 0, tzinfo=UTC)


def record(number: int, org: str = "sandtrace", **changes: object) -> UsageRecord:
    """The minute `number` of a job, billed alone."""
    at = START.replace(minute=number)
    values = {
        "job_ulid": "rtj_01kkygkagq0jk17bx6y1w8c3df", "org_slug": org, "project_slug": "web", "job_type": "steps",
        "minute": number, "minutes": 1, "started_at": START, "billed_until": at, "recorded_at": at,
    }  # fmt: skip
    return UsageRecord.objects.create(**values | changes)


def test_records_are_listed_newest_first(alice):
    record(1)
    record(2)
    found = alice.get("/v1/usage").json()["results"]
    assert found[0] == {
        "job_id": "rtj_01kkygkagq0jk17bx6y1w8c3df", "org_slug": "sandtrace", "project_slug": "web", "job_type": "steps",
        "minute": 2, "minutes": 1, "started_at": "2026-03-17T20:00:00Z", "billed_until": "2026-03-17T20:02:00Z",
        "recorded_at": "2026-03-17T20:02:00Z",
    }  # fmt: skip
    assert [row["minute"] for row in found] == [2, 1]


def test_records_of_other_organizations_are_not_listed(alice):
    record(1, org="other")
    assert alice.get("/v1/usage").json()["results"] == []
    assert alice.get("/v1/usage?org_slug=other").json()["results"] == []


@pytest.mark.parametrize(
    ("query", "minutes"),
    [
        ("org_slug=sandtrace", [3, 2, 1]),
        ("project_slug=web", [2, 1]),
        ("job_id=rtj_01kkygkagq0jk17bx6y1w8c3dg", [3]),
        ("recorded_after=2026-03-17T20:01:00Z", [3, 2]),
        ("recorded_before=2026-03-17T20:02:00Z", [1]),
        ("limit=1", [3]),
    ],
)
def test_a_filter_narrows_the_list(alice, query, minutes):
    record(1)
    record(2)
    record(3, project_slug="api", job_ulid="rtj_01kkygkagq0jk17bx6y1w8c3dg")
    assert [row["minute"] for row in alice.get(f"/v1/usage?{query}").json()["results"]] == minutes


def test_the_list_continues_by_cursor(alice):
    for number in range(1, 4):
        record(number)
    first = alice.get("/v1/usage?limit=2").json()
    second = alice.get(first["next"].partition("testserver")[2]).json()
    assert [row["minute"] for row in first["results"] + second["results"]] == [3, 2, 1]


def test_the_ledger_needs_orch_read(organization):
    caller = Caller(api_token(organization, ("jobs:read",)))
    assert refused(lambda: caller.get("/v1/usage"), 403, "insufficient_scope")["scope"] == "orch:read"


def test_workers_and_anonymous_callers_see_no_usage(wendy):
    refused(lambda: wendy.get("/v1/usage"), 403, "wrong_principal")
    refused(lambda: Caller().get("/v1/usage"), 401, "unauthenticated")


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_no_method_changes_the_ledger(alice, method):
    record(1)
    refused(lambda: alice.call(method, "/v1/usage", {}), 405, "method_not_allowed")


def test_unknown_parameters_are_refused(alice):
    refused(lambda: alice.get("/v1/usage?minute=1"), 400, "invalid_query")
    refused(lambda: alice.get("/v1/usage?recorded_after=yesterday"), 400, "invalid_query")


def test_another_organization_sees_its_own_usage():
    other = OrganizationFactory(slug="other")
    record(1)
    record(2, org="other", job_ulid="rtj_01kkygkagq0jk17bx6y1w8c3dg")
    found = Caller(api_token(other)).get("/v1/usage").json()["results"]
    assert [row["minute"] for row in found] == [2]
