"""A job whose worker failed for good is an incident in document 004's words, until it is retried or resolved."""

import pytest

from orchestrator.incidents.models import Incident
from tests.factories import WorkerFactory
from tests.orchestrator.protocols.native.limits.limit_requests import ok
from tests.orchestrator.protocols.stella.requests import claim, fail, listed, submit

pytestmark = pytest.mark.django_db


def shown(caller, job) -> dict:
    return ok(caller.get(f"/api/jobs/{job['jobId']}"))


def test_a_job_is_an_incident_until_it_is_resolved(alice):
    job = submit(alice)
    fail(claim(WorkerFactory()), reason="worker_error")
    found = shown(alice, job)
    assert (found["status"], found["incident"] is not None) == ("incident", True)
    assert (listed(alice, "?status=incident"), listed(alice, "?status=failed")) == ([job["jobId"]], [])
    incident = Incident.objects.get()
    for action, status in (("acknowledge", "incident"), ("resolve", "failed")):
        ok(alice.post(f"/v1/incidents/{incident.incident_ulid}/{action}", {"reason": "a new disk"}))
        assert shown(alice, job)["status"] == status
    assert (listed(alice, "?status=incident"), listed(alice, "?status=failed")) == ([], [job["jobId"]])


def test_a_failing_command_is_no_incident(alice):
    job = submit(alice)
    fail(claim(WorkerFactory()))
    assert shown(alice, job)["status"] == "failed"
