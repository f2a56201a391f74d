"""Log lines of requests: none at INFO for what happens all the time and succeeds."""

import logging

import pytest
from django.test import Client

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
