"""Errors outside of the views have the shape of this protocol at its addresses, and that of others elsewhere."""

import pytest
from django.test import Client

from orchestrator.http.errors.problems import MEDIA_TYPE
from tests.orchestrator.protocols.shithub.conftest import error_of

pytestmark = pytest.mark.django_db
OURS = [
    "/api/v1/runners",
    "/api/v1/runners/heartbeat/",
    "/api/v1/runners/unknown",
    "/api/v1/jobs",
    "/api/v1/jobs/10",
    "/api/v1/jobs/10/unknown",
    "/api/v1/jobs/10/status/",
    "/api/v1/runs/10",
    "/api/v1/runs/10/unknown",
]
THEIRS = ["/api/v1/runs/rtb_x/unknown", "/api/v1/runs", "/api/v1/unknown", "/api/v1/runnersx", "/api/v1/jobsx"]


def call(path: str, method: str = "POST"):
    return Client(raise_request_exception=False).generic(method, path, b"{", content_type="application/json")


@pytest.mark.parametrize("method", ["GET", "POST", "PUT"])
@pytest.mark.parametrize("path", OURS)
def test_unknown_addresses_answer_in_this_form_and_never_redirect(path, method):
    error_of(call(path, method), 404)


@pytest.mark.parametrize("path", THEIRS)
def test_other_addresses_keep_their_own_form(path):
    response = call(path)
    assert response.status_code >= 400
    assert not isinstance(response.json().get("error"), str)
    assert set(response.json()) != {"error"} or isinstance(response.json()["error"], dict)


def test_a_native_error_is_a_problem_document():
    response = call("/v1/jobs/unknown/unknown")
    assert response["Content-Type"] == MEDIA_TYPE


def test_a_host_that_is_not_ours_is_400_in_this_form():
    client = Client(raise_request_exception=False, headers={"host": "attacker.example"})
    error_of(client.post("/api/v1/runners/heartbeat"), 400)


def test_plain_text_is_refused_where_https_is_required(settings):
    settings.SECURE_SSL_REDIRECT = True
    response = call("/api/v1/runners/heartbeat")
    assert "https" in error_of(response, 403)


def test_a_token_in_the_query_is_refused():
    error_of(call("/api/v1/jobs/1/status?token=rto_api_" + "a" * 43), 400)


def test_a_compressed_body_is_400_and_the_header_is_named(runner):
    """The contract has no 415."""
    headers = {"Authorization": f"Bearer {runner.client.registration}", "Content-Encoding": "gzip"}
    answer = Client().generic("POST", OURS[1].rstrip("/"), b"x", content_type="application/json", headers=headers)
    assert error_of(answer, 400) == "Content-Encoding: 'gzip' is not supported. Send the body without compression."


def test_the_challenge_of_other_protocols_is_not_sent_to_runners():
    from orchestrator.http.asgi.body_limit import unauthenticated  # noqa: PLC0415
    from orchestrator.protocols.shithub.errors import error_response  # noqa: PLC0415

    assert "WWW-Authenticate" not in error_response(unauthenticated(), None).headers
