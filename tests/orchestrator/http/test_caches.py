"""No cache may keep a response to a session or a token."""

import pytest
from django.contrib.auth.models import User
from django.test import Client

from runtime_jobs.models import Membership
from tests.factories import submitted

pytestmark = pytest.mark.django_db
JOBS = "/v1/runtime/jobs"


@pytest.fixture
def browser(organization) -> Client:
    mia = User.objects.create(username="mia")
    Membership.objects.create(user=mia, organization=organization)
    client = Client(raise_request_exception=False)
    client.force_login(mia)
    return client


def test_an_answer_to_a_session_is_not_stored(browser, organization):
    job = submitted(organization.projects.get())
    for path in (JOBS, f"{JOBS}/{job.job_ulid}", f"{JOBS}/{job.job_ulid}/events"):
        response = browser.get(path)
        assert (path, response.status_code, response["Cache-Control"]) == (path, 200, "no-store")


def test_nor_is_a_refusal(browser, client):
    for caller in (browser, client):
        for path in ("/v1/nothing", "/api/v1/nothing", f"{JOBS}/rtj_00000000000000000000000000", f"{JOBS}?x=1"):
            response = caller.get(path)
            assert response.status_code >= 400
            assert (path, response["Cache-Control"]) == (path, "no-store")


def test_an_answer_to_a_token_is_not_stored(alice):
    assert alice.get(JOBS)["Cache-Control"] == "no-store"


def test_pages_are_not_stored(browser):
    assert "no-store" in browser.get("/runs/")["Cache-Control"]
    assert "no-store" in browser.get("/")["Cache-Control"]  # a redirect, but one that a session got


def test_files_that_are_everybody_s_are_stored(browser):
    response = browser.get("/static/orchestrator/console.css")
    assert response.status_code == 200
    assert "max-age" in response["Cache-Control"]
    response.close()  # it streams a file
