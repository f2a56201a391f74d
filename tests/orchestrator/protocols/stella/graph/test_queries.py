"""`POST /api/graphql`: queries have the objects of the REST API, few statements, and nothing of other tenants."""

import pytest
from django.contrib.auth import get_user_model
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from leases.models import LimitKind
from orchestrator.core.cause import Cause
from runtime_jobs.models import Membership
from runtime_jobs.models.tenants import Scope
from tests.api_client import Caller, refused
from tests.factories import ALICE, api_token, limited
from tests.orchestrator.protocols.stella.graph.documents import JOBS, PATH, data, error, post
from tests.orchestrator.protocols.stella.requests import MISSING, claim, fail, ok, submit

pytestmark = pytest.mark.django_db
NINE_LEVELS = "{ jobs(first: 1) { results { " + "dependencies(first: 1) { " * 6 + "jobId" + " }" * 9
SIXTEEN_ALIASES = "{ " + " ".join(f"d{number}: dashboard {{ measuredAt }}" for number in range(16)) + " }"
TEN_THOUSAND_NODES = "{ jobs(first: 100) { results { events(first: 100) { eventId } } } }"


def test_a_throttled_job_is_found_among_many_queued_ones(alice, organization, monkeypatch):
    monkeypatch.setattr("orchestrator.protocols.stella.jobs.pages.MAX_CANDIDATES", 2)
    throttled = submit(alice, jobType="export")
    limited("acme-corp", "export", kind=LimitKind.PAUSE, max_active=0, cause=Cause(ALICE, "y"))
    for _ in range(5):
        submit(alice)
    found = data(alice, '{ jobs(first: 1, status: "throttled") { results { jobId nextEligibleAt } } }')
    assert found["jobs"]["results"] == [{"jobId": throttled["jobId"], "nextEligibleAt": None}]


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ('{ jobs(first: 1, status: "asleep") { next } }', "status"),
        ('{ jobs(first: 1, jobType: "") { next } }', "jobType"),
        ('{ jobs(first: 1, replayOf: "x") { next } }', "replayOf"),
        ('{ quotas(first: 1, jobType: "x") { next } }', "jobType"),
        ('{ sources(first: 1, status: "x") { next } }', "status"),
        ('{ events(first: 1, jobTypes: ["x"]) { place } }', "jobType"),
        ("{ events(first: 1, eventTypes: []) { place } }", "eventType"),
        ('{ events(first: 1, jobId: "x") { place } }', "jobId"),
        ('{ events(first: 1, after: "x") { place } }', "after"),
    ],
)
def test_an_invalid_argument_is_named(alice, query, name):
    found = error(alice, query)
    assert found["extensions"]["code"] == "invalid"
    assert name in found["extensions"]["errors"]
    assert "query parameter" not in found["message"]


def test_lists_of_quotas_and_sources_have_pages(alice, organization):
    for field in ("quotas", "sources"):
        query = f"query($n: Int!, $a: String) {{ {field}(first: $n, after: $a) {{ results {{ jobType }} next }} }}"
        whole = data(alice, query, n=100)[field]["results"]
        first = data(alice, query, n=3)[field]
        rest = data(alice, query, n=100, a=first["next"])[field]
        assert [*first["results"], *rest["results"]] == whole
        assert rest["next"] is None


# --- tenants ----------------------------------------------------------------------------------------------------------

OF_ONE = [
    'job(jobId: "{job}") {{ jobId }}',
    'quota(id: "{tenant}:*") {{ id }}',
    'jobs(first: 1, tenant: "{tenant}") {{ next }}',
    'quotas(first: 1, tenant: "{tenant}") {{ next }}',
    'sources(first: 1, tenant: "{tenant}") {{ next }}',
    'events(first: 1, tenant: "{tenant}") {{ place }}',
    'events(first: 1, jobId: "{job}") {{ place }}',
    'dashboard(tenant: "{tenant}") {{ measuredAt }}',
]


@pytest.mark.parametrize("field", OF_ONE)
def test_another_tenants_are_those_that_do_not_exist(alice, intruder, field):
    job_id = submit(alice)["jobId"]
    found, missing = (
        error(intruder, f"{{ {field.format(job=job, tenant=tenant)} }}")
        for job, tenant in ((job_id, "acme-corp"), (MISSING, "nobody"))
    )
    assert found["extensions"]["code"] == "not_found"
    for one in (found, missing):
        del one["extensions"]["request_id"]
    assert found == missing


def test_the_id_of_a_later_attempt_is_no_job(alice, worker):
    shown = submit(alice)
    fail(claim(worker), "worker_shutdown")
    attempt = ok(alice.get(f"/api/jobs/{shown['jobId']}"))["attempts"][1]["attemptId"]
    for job_id in (attempt, "nonsense"):
        found = error(alice, "query($id: ID!) { job(jobId: $id) { jobId } }", id=job_id)
        assert found["extensions"]["code"] == "not_found"


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("query", [NINE_LEVELS, SIXTEEN_ALIASES, TEN_THOUSAND_NODES])
def test_an_expensive_query_is_refused_without_a_statement(alice, query):
    with CaptureQueriesContext(connection) as queries:
        response = post(alice, query)
    refused(lambda: response, 400, "query_too_expensive")
    assert [query["sql"] for query in queries if "runtime_jobs_apitoken" not in query["sql"]] == []


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "invalid"),
        ({"query": 5}, "invalid"),
        ({"query": "{ dashboard { measuredAt } }", "variables": []}, "invalid"),
        ({"query": "{ dashboard { measuredAt } }", "documentId": "x"}, "unknown_field"),
        ({"query": "subscription { jobEvents { place } }"}, "invalid"),
        ({"query": "{ a: dashboard { measuredAt } }", "operationName": "x"}, "invalid"),
        ([{"query": "{ dashboard { measuredAt } }"}], "malformed_json"),
    ],
)
def test_a_wrong_request_is_a_problem_document(alice, body, code):
    refused(lambda: alice.post(PATH, body), 400, code)


def test_a_request_may_have_all_members_of_graphql_over_http(alice):
    body = {
        "query": "query a { dashboard { tenants } }",
        "operationName": "a",
        "variables": None,
        "extensions": {"x": 1},
    }
    assert ok(alice.post(PATH, body)) == {"data": {"dashboard": {"tenants": ["acme-corp"]}}}


def test_an_invalid_document_has_errors_with_a_code(alice):
    response = post(alice, "{ nothing }")
    (found,) = ok(response)["errors"]
    assert found["extensions"]["code"] == "invalid"
    assert found["locations"] == [{"line": 1, "column": 3}]
    newer = alice.post(PATH, {"query": "{ nothing }"}, Accept="application/graphql-response+json")
    assert (newer.status_code, newer["Content-Type"]) == (400, "application/graphql-response+json")
    valid = alice.post(PATH, {"query": "{ dashboard { tenants } }"}, Accept="application/graphql-response+json")
    assert (valid.status_code, valid["Content-Type"]) == (200, "application/graphql-response+json")


def test_variables_of_a_wrong_type_are_refused_before_a_statement(alice):
    with CaptureQueriesContext(connection) as queries:
        (found,) = ok(post(alice, JOBS, {"first": "many"}))["errors"]
    assert found["extensions"]["code"] == "invalid"
    assert [query["sql"] for query in queries if "runtime_jobs_apitoken" not in query["sql"]] == []


def test_an_unexpected_error_reveals_nothing(alice, monkeypatch, caplog):
    monkeypatch.setattr("orchestrator.protocols.stella.graph.queries.read_dashboard", lambda _: {}["secret"])
    response = post(alice, '{ dashboard { measuredAt } quota(id: "acme-corp:*") { id } }')
    found = ok(response)
    assert found["data"] == {"dashboard": None, "quota": {"id": "acme-corp:*"}}
    (only,) = found["errors"]
    assert (only["extensions"]["code"], only["path"]) == ("internal_error", ["dashboard"])
    assert only["extensions"]["request_id"] == response["X-Request-Id"]
    assert "secret" not in response.content.decode()
    assert "KeyError" in caplog.text


def test_only_the_scope_orch_read_opens_it(organization, worker):
    for scope in Scope.values:
        caller = Caller(api_token(organization, (scope,)))
        if scope == Scope.ORCH_READ:
            ok(post(caller, "{ dashboard { measuredAt } }"))
        else:
            refused(lambda caller=caller: post(caller, "{ dashboard { measuredAt } }"), 403, "insufficient_scope")
    refused(lambda: post(Caller(), "{ dashboard { measuredAt } }"), 401, "unauthenticated")
    refused(lambda: post(Caller(worker.token), "{ dashboard { measuredAt } }"), 403, "wrong_principal")
    reader = Caller(api_token(organization, (Scope.ORCH_READ,)))
    refused(lambda: reader.get(PATH), 405, "method_not_allowed")


def test_a_session_needs_a_csrf_token(organization):
    user = get_user_model().objects.create_user("mia", password="correct horse battery")
    Membership.objects.create(user=user, organization=organization)
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(user)
    body = {"query": "{ dashboard { tenants } }"}
    refused(lambda: browser.post(PATH, body, content_type="application/json"), 403, "forbidden")
    trusting = Client()
    trusting.force_login(user)
    found = trusting.post(PATH, body, content_type="application/json")
    assert found.json() == {"data": {"dashboard": {"tenants": ["acme-corp"]}}}
    headers = {"Origin": "https://evil.example"}
    refused(lambda: trusting.post(PATH, body, content_type="application/json", headers=headers), 403, "forbidden")


def test_a_handshake_under_wsgi_is_refused():
    headers = {"Upgrade": "websocket", "Connection": "Upgrade"}
    problem = refused(lambda: Caller().get(PATH, **headers), 503, "no_streams")
    assert "WSGI" in problem["detail"]


def test_introspection_needs_a_token_and_takes_no_statement(alice):
    with CaptureQueriesContext(connection) as queries:
        found = data(alice, "{ __schema { queryType { name } mutationType { name } } __typename }")
    assert found == {"__schema": {"queryType": {"name": "Query"}, "mutationType": None}, "__typename": "Query"}
    assert [query["sql"] for query in queries if "runtime_jobs_apitoken" not in query["sql"]] == []
    refused(lambda: post(Caller(), "{ __schema { queryType { name } } }"), 401, "unauthenticated")
