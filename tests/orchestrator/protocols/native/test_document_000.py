"""Document 000's own examples, to the letter."""

import copy

import pytest

from orchestrator.ingest.models import Run
from tests.factories import SUBMIT_BODY

pytestmark = pytest.mark.django_db


def claim_body(worker):
    return {
        "worker_id": worker.worker_id,
        "pool": "shared-linux",
        "capabilities": {"linux": True, "ptrace": True, "namespaces": True},
    }


def test_a_job_goes_from_submit_to_uploaded(alice, wendy, worker):
    created = alice.post("/v1/runtime/jobs", SUBMIT_BODY)
    assert created.status_code == 201, created.content
    job = created.json()
    assert job["status"] == "queued"
    assert job["job_id"].startswith("rtj_")
    assert job["created_at"].endswith("Z")

    leased = wendy.post("/v1/runtime/leases", claim_body(worker))
    assert leased.status_code == 201, leased.content
    lease = leased.json()
    assert set(lease) == {"lease_id", "job", "lease_expires_at"}
    assert lease["job"]["job_id"] == job["job_id"]
    assert lease["job"]["source"]["git_commit"] == SUBMIT_BODY["source"]["git_commit"]
    assert lease["job"]["execution"]["command"] == ["pnpm", "install"]
    assert alice.get(f"/v1/runtime/jobs/{job['job_id']}").json()["status"] == "running"

    path = f"/v1/runtime/leases/{lease['lease_id']}"
    beat = wendy.post(f"{path}/heartbeat")
    assert beat.status_code == 200, beat.content
    assert beat.json()["cancel_requested"] is False

    run_id = "run_20260317143329_bd39b25f6f31"
    Run.objects.create(
        run_id=run_id,
        job_id=job["job_id"],
        org_slug="sandtrace",
        project_slug="web",
        worker_id=worker.worker_id,
        payload={},
        payload_sha256="0" * 64,
    )
    result = {"status": "uploaded", "ingest_run_id": run_id, "uploaded_at": "2026-03-17T20:03:20Z"}
    done = wendy.post(f"{path}/complete", {"result": result})
    assert done.status_code == 200, done.content
    assert done.json() == {"job_id": job["job_id"], "status": "uploaded"}

    seen = alice.get(f"/v1/runtime/jobs/{job['job_id']}").json()
    assert seen["status"] == "uploaded"
    assert seen["ingest_run_id"] == run_id
    assert seen["last_event"]["event_type"] == "job.completed"


def test_a_worker_tells_of_a_failure(alice, wendy, worker):
    job_id = alice.post("/v1/runtime/jobs", SUBMIT_BODY).json()["job_id"]
    lease_id = wendy.post("/v1/runtime/leases", claim_body(worker)).json()["lease_id"]
    result = {"status": "failed", "reason": "sandbox_apply_failed", "message": "Namespace creation failed: EPERM"}
    assert wendy.post(f"/v1/runtime/leases/{lease_id}/fail", {"result": result}).status_code == 200
    seen = alice.get(f"/v1/runtime/jobs/{job_id}").json()
    assert seen["status"] == "failed"
    assert seen["failure"] == {
        "reason": "sandbox_apply_failed",
        "class": "worker",
        "message": "Namespace creation failed: EPERM",
    }


def test_no_work_is_204(wendy, worker):
    assert wendy.post("/v1/runtime/leases", claim_body(worker)).status_code == 204


@pytest.mark.parametrize("field", ["repo_url", "git_commit", "owner", "repo", "kind"])
def test_a_source_without_its_field_is_refused(alice, field):
    body = copy.deepcopy(SUBMIT_BODY)
    del body["source"][field]
    refused = alice.post("/v1/runtime/jobs", body)
    assert refused.status_code == 400
    assert refused.json()["errors"] == {f"source.{field}": ["This field is required."]}
