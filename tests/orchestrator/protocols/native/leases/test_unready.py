"""A worker that does not claim says why: on its page, in the reasons of waiting jobs, and as an incident."""

import pytest

from orchestrator.audit.runner import run_audit
from orchestrator.core.cause import Cause
from orchestrator.incidents.models import Incident
from orchestrator.incidents.operations import resolve_incident
from orchestrator.services import job_end
from runtime_jobs.models import Job, OperatorEvent
from tests.api_client import refused
from tests.factories import OPERATOR, claimed, submitted
from workers.models import Worker

pytestmark = pytest.mark.django_db
UNREADY, CLAIM = "/v1/runtime/workers/unready", "/v1/runtime/leases"
OLD, NEW = "01KKYGMFJF4J9S26HZD0H93J0R", "01KKYGN4Z3FKEF0G4TGM6G3B1J"
NO_DISK = {"reason": "disk_low", "message": "Its work directory has 7 bytes free."}
FAILURES = {"reason": "repeated_failures", "message": "3 jobs in a row failed."}


def test_a_worker_is_not_ready_until_its_next_claim(wendy, worker, alice, admin_client, organization):
    job = submitted(organization.projects.get())
    assert wendy.post(UNREADY, NO_DISK).status_code == 204
    page = f"/admin/workers/worker/{worker.pk}/change/"
    for shown in (admin_client.get(page), admin_client.get("/admin/workers/worker/")):
        assert "Not ready" in shown.content.decode()
    assert "Claims no jobs: Its work directory has 7 bytes free." in admin_client.get(page).content.decode()
    reason = alice.get(f"/v1/runtime/jobs/{job.job_ulid}").json()["pending_reason"]
    assert (reason["code"], "is not ready" in reason["message"]) == ("no_matching_worker", True)
    assert "7 bytes" not in str(reason)  # which concerns operators
    assert not Incident.objects.exists()
    assert wendy.post(CLAIM, {"worker_id": worker.worker_id}).status_code == 201
    assert Worker.objects.get(pk=worker.pk).unready_reason == ""
    assert "Not ready" not in admin_client.get(page).content.decode()


def test_repeated_failures_are_one_incident_until_it_is_resolved(wendy, worker, alice, admin_client):
    for _ in range(2):
        wendy.post(UNREADY, FAILURES)
    incident = Incident.objects.get()
    assert (incident.kind, incident.worker_ulid, incident.org_slug) == ("worker", worker.worker_id, "")
    assert incident.summary == f"The worker {worker.slug} does not claim jobs: 3 jobs in a row failed."
    event = OperatorEvent.objects.get(action="incident.opened")
    assert (event.actor, event.org_slug) == (f"worker:{worker.worker_id}", None)
    for page in ("/admin/orchestrator/incident/", f"/admin/orchestrator/incident/{incident.pk}/change/"):
        assert worker.slug in admin_client.get(page, follow=True).content.decode()
    assert alice.get("/v1/incidents").json()["results"] == []  # a tenant learns nothing of machines
    resolve_incident(incident_ulid=incident.incident_ulid, cause=Cause(OPERATOR))
    wendy.post(UNREADY, FAILURES)
    assert Incident.objects.unresolved().count() == 1
    assert run_audit(chains=True) == []


def test_only_the_newest_process_of_a_worker_speaks_for_it(wendy, worker, alice):
    wendy.post(CLAIM, {"worker_id": worker.worker_id}, **{"Worker-Session": NEW})
    refused(lambda: wendy.post(UNREADY, NO_DISK, **{"Worker-Session": OLD}), 409, "stale_lease")
    refused(lambda: alice.post(UNREADY, NO_DISK), 403, "wrong_principal")
    for wrong in ({"reason": "tired"}, {"message": ""}, {"message": None}):
        refused(lambda wrong=wrong: wendy.post(UNREADY, NO_DISK | wrong), 400, "invalid")
    assert Worker.objects.get(pk=worker.pk).unready_reason == ""


def test_a_full_disk_of_a_worker_is_retried_by_another(worker, organization):
    submitted(organization.projects.get())
    taken = claimed(worker)
    failed = job_end.fail(lease_ulid=taken.lease.lease_ulid, worker=worker, reason="worker_disk_full")
    retry = Job.objects.get(retry_of_job_ulid=failed.job_ulid)
    assert (retry.state, retry.excluded_workers, retry.retry_kind) == ("queued", [worker.worker_id], "automatic")
    assert not Incident.objects.exists()
    assert run_audit() == []
