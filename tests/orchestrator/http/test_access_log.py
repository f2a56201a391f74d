"""Log lines of requests: none at INFO for what happens all the time and succeeds."""

import asyncio
import logging

import pytest
from django.test import Client

from orchestrator.http.asgi.responses import send_refusal
from orchestrator.http.errors.problems import ApiError
from tests.api_client import Caller
from tests.factories import WorkerFactory

pytestmark = pytest.mark.django_db


def logged(caplog, request):
    """Return the level and text of the access log lines of a request."""
    caplog.clear()
    with caplog.at_level(logging.DEBUG, logger="orchestrator.access"):
        request().close()
    return [
        (record.levelname, record.getMessage()) for record in caplog.records if record.name == "orchestrator.access"
    ]


@pytest.mark.parametrize("path", ["/static/admin/css/base.css", "/healthz", "/readyz"])
def test_a_successful_routine_request_is_logged_at_debug_only(caplog, path, settings, monkeypatch):
    monkeypatch.setattr("orchestrator.http.observability.health.find_problems", list)
    ((level, line),) = logged(caplog, lambda: Client().get(path))
    assert (level, " 200 " in line) == ("DEBUG", True)


@pytest.mark.parametrize(
    ("path", "status"), [("/static/no-such-file.css", 404), ("/readyz", 503), ("/v1/nothing", 404)]
)
def test_an_error_is_logged(caplog, path, status, monkeypatch):
    monkeypatch.setattr("orchestrator.http.observability.health.find_problems", lambda: ["database"])
    ((level, line),) = logged(caplog, lambda: Client().get(path))
    assert (level, f" {status} " in line) == ("INFO", True)


def test_a_claim_without_work_is_logged_at_debug_only(caplog):
    worker = WorkerFactory()
    caller = Caller(worker.token)
    body = {"worker_id": worker.worker_id, "job_types": ["runtime"]}
    ((level, line),) = logged(caplog, lambda: caller.post("/v1/runtime/leases", body))
    assert (level, " 204 " in line) == ("DEBUG", True)


def test_other_successful_requests_are_logged(caplog):
    ((level, line),) = logged(caplog, lambda: Client().get("/login/"))
    assert (level, " 200 " in line) == ("INFO", True)


@pytest.mark.parametrize(
    ("path", "route"),
    [("/v1/jobs/rtj_00000000000000000000000000/logs", "/v1/jobs/<job_id>/logs"), ("/nowhere", "unmatched")],
)
def test_a_refusal_without_a_view_has_the_route_of_its_path(caplog, path, route):
    scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": []}
    refusal = ApiError(429, "too_many_streams", "Close one.")
    sent = []

    async def send(message):
        sent.append(message)

    with caplog.at_level(logging.DEBUG, logger="orchestrator.access"):
        asyncio.run(send_refusal(refusal, scope, send))
    (record,) = [record for record in caplog.records if record.name == "orchestrator.access"]
    assert record.getMessage().startswith(f"GET {route} 429 ")
    assert sent[0]["status"] == 429
