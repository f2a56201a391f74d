"""Errors outside of DRF's views: pages for browsers, problem documents for clients that accept JSON."""

import pytest

from tests.api_client import Caller, problem_of, refused
from tests.factories import SUBMIT_BODY, ProjectFactory

pytestmark = pytest.mark.django_db
JSON = ["application/json", "application/problem+json", "application/json, text/plain, */*"]
HTML = ["text/html", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", "text/html, application/json"]


@pytest.mark.parametrize("accept", JSON)
def test_a_missing_run_is_a_problem_document_for_a_json_client(admin_client, accept):
    response = admin_client.get("/runs/run_20260317143329_bd39b25f6f31/", headers={"Accept": accept})
    assert (response.status_code, problem_of(response)["code"]) == (404, "not_found")


@pytest.mark.parametrize("accept", [*HTML, "*/*"])
def test_and_a_page_for_a_browser(admin_client, accept):
    response = admin_client.get("/runs/run_20260317143329_bd39b25f6f31/", headers={"Accept": accept})
    assert response.status_code == 404
    assert response["Content-Type"].startswith("text/html")


@pytest.mark.parametrize("accept", JSON)
@pytest.mark.parametrize("path", ["/runs/", "/runs/run_20260317143329_bd39b25f6f31/"])
def test_without_a_session_a_json_client_is_unauthenticated(client, path, accept):
    response = client.get(path, headers={"Accept": accept})
    problem = problem_of(response)
    assert (response.status_code, problem["code"]) == (401, "unauthenticated")
    assert response["WWW-Authenticate"]
    assert "/login/" in problem["detail"]


@pytest.mark.parametrize("accept", [*HTML, "*/*"])
def test_and_a_browser_is_sent_to_the_log_in(client, accept):
    response = client.get("/runs/", headers={"Accept": accept})
    assert (response.status_code, response["Location"]) == (302, "/login/?next=/runs/")


def test_a_bad_request_in_the_admin_names_the_cause(admin_client):
    response = admin_client.get("/admin/runtime_jobs/job/bulk/cancel/", headers={"Accept": "text/html"})
    assert response.status_code == 400
    assert b"must name 1 to" in response.content
    response = admin_client.get("/admin/runtime_jobs/job/bulk/cancel/", headers={"Accept": "application/json"})
    assert "must name 1 to" in problem_of(response)["detail"]


def test_an_unknown_query_parameter_is_named_with_those_that_are_allowed(alice):
    problem = refused(lambda: alice.get("/v1/limits?limmit=5"), 400, "invalid_query")
    assert "limmit" in problem["detail"]
    [message] = problem["errors"]["limmit"]
    assert message == "Unknown parameter. Allowed here: cursor, kind, limit, org_slug, scope."
    problem = refused(lambda: Caller().get("/v1/schema?lang=de"), 400, "invalid_query")
    assert problem["errors"] == {"lang": ["Unknown parameter. This operation has none."]}


@pytest.mark.parametrize("slug", ["absent", "disabled"])
def test_a_project_that_is_absent_and_one_that_is_disabled_get_the_same_message(alice, organization, slug):

    ProjectFactory(organization=organization, slug="disabled", enabled=False)
    body = SUBMIT_BODY | {"project_slug": slug}
    problem = refused(lambda: alice.post("/v1/runtime/jobs", body), 403, "project_not_enabled")
    assert problem["detail"] == f"The project sandtrace/{slug} does not exist or is not enabled."
