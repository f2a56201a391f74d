"""`POST /v1/jobs/{job_id}/rerun`: a new job with the spec of another one, changed by a merge patch."""

import pytest

from orchestrator.artifacts.operations import cache_scope
from runtime_jobs.models import Job, JobEvent, Plan
from tests.api_client import Caller, refused
from tests.factories import (
    SUBMIT_ANY_BODY,
    SUBMIT_BODY,
    OrganizationFactory,
    ProjectFactory,
    WorkerFactory,
    api_token,
    claimed,
)

pytestmark = pytest.mark.django_db


@pytest.fixture
def project():
    return ProjectFactory(organization=OrganizationFactory(slug="sandtrace"))


@pytest.fixture
def alice(project):
    return Caller(api_token(project.organization))


def submit(caller, **changes):
    response = caller.post("/v1/jobs", SUBMIT_ANY_BODY | changes)
    assert response.status_code == 201, response.content
    return response.json()


def rerun(caller, job, body=None, **headers):
    return caller.post(f"/v1/jobs/{job['job_id']}/rerun", body, **headers)


def created(response):
    assert response.status_code == 201, response.content
    return response.json()


def test_it_changes_what_the_patch_names_and_reports_the_paths(alice):
    job = submit(alice, concurrency={"key": "deploy"})
    patch = {"timeout_seconds": 600, "environment": {"CI": "1"}, "steps": ["make build"], "source": {"ref": None}}
    response = rerun(alice, job, {"spec": patch, "reason": "it was too short"})
    new = created(response)
    assert response["Location"] == f"/v1/jobs/{new['job_id']}"
    assert (new["rerun_of"], new["is_replay"], new["retry_of"]) == (job["job_id"], False, None)
    assert new["changed_paths"] == [
        "/spec/environment/CI", "/spec/source/ref", "/spec/steps/0", "/spec/steps/1", "/spec/timeout_seconds",
    ] or new["changed_paths"] == [
        "/spec/environment/CI", "/spec/source/ref", "/spec/steps/1", "/spec/timeout_seconds",
    ]  # fmt: skip
    assert new["spec"] == job["spec"] | {
        "timeout_seconds": 600,
        "environment": {"CI": "1"},
        "steps": ["make build"],
        "source": job["spec"]["source"] | {"ref": None},
    }
    assert (new["root_job_id"], new["attempt"], new["concurrency_key"]) == (new["job_id"], 1, "deploy")
    first = JobEvent.objects.of(new["job_id"]).first()
    facts = {name: first.payload_json[name] for name in ("rerun_of", "changed_paths", "reason")}
    assert first.event_type == "job.queued"
    assert facts == {
        "rerun_of": job["job_id"], "changed_paths": new["changed_paths"], "reason": "it was too short",
    }  # fmt: skip
    assert Job.objects.get(job_ulid=new["job_id"]).replay_of_job_ulid is None


def test_without_a_patch_nothing_differs(alice):
    job = submit(alice)
    new = created(rerun(alice, job))
    assert (new["changed_paths"], new["spec"]) == ([], job["spec"])


def test_the_rerun_of_a_job_of_a_pull_request_is_one(alice):
    """Otherwise it could save its stranger's files in the cache of the project."""
    job = submit(alice, trigger={"kind": "pull_request", "actor": "maria"})
    new = created(rerun(alice, job, {"spec": {"source": {"pull_request_number": None}}}))
    assert new["trigger"]["kind"] == "pull_request"
    assert cache_scope(Job.objects.get(job_ulid=new["job_id"])) == "refs/heads/main#"
    assert created(rerun(alice, new))["trigger"]["kind"] == "pull_request"
    assert created(rerun(alice, submit(alice)))["trigger"]["kind"] == "manual"


def test_jobs_of_all_states_and_all_types_that_clients_submit(alice):
    running = submit(alice)
    claimed(WorkerFactory(), job_types=("steps",))
    payload = {"payload": {"imageRef": "nginx:1"}, "timeout_seconds": 60}
    scan = submit(alice, job_type="scan", spec=payload)
    runtime = submit(alice, job_type="runtime", spec={name: SUBMIT_BODY[name] for name in ("source", "execution")})
    assert created(rerun(alice, running, {"spec": {"name": "other"}}))["changed_paths"] == ["/spec/name"]
    again = created(rerun(alice, scan, {"spec": {"payload": {"imageRef": "nginx:2", "options": {"deep": True}}}}))
    assert again["changed_paths"] == ["/spec/payload/imageRef", "/spec/payload/options"]
    network = {"spec": {"execution": {"allow_network": False}}}
    assert created(rerun(alice, runtime, network))["changed_paths"] == ["/spec/execution/allow_network"]


def test_the_changed_spec_is_validated_like_a_submit(alice):
    job = submit(alice)
    for patch, name in (({"steps": []}, "steps"), ({"nonsense": 1}, "nonsense"), ({"name": None}, "name")):
        code = "unknown_field" if name == "nonsense" else "invalid"
        document = refused(lambda patch=patch: rerun(alice, job, {"spec": patch}), 400, code)
        assert any(name in path for path in document["errors"]), document["errors"]
    refused(lambda: rerun(alice, job, {"spec": []}), 400, "invalid")
    refused(lambda: rerun(alice, job, {"patch": {}}), 400, "unknown_field")


def test_todays_rules_count(alice, project):
    job = submit(alice)
    refused(lambda: rerun(alice, job, {"spec": {"timeout_seconds": 10_000}}), 400, "timeout_above_plan")
    refused(lambda: rerun(alice, job, {"priority": "high"}), 403, "priority_forbidden")
    Plan.objects.update(max_queued=1)
    refused(lambda: rerun(alice, job), 429, "queue_full")
    project.repositories = []
    project.save(update_fields=["repositories"])
    refused(lambda: rerun(alice, job), 403, "repository_not_allowed")


def test_a_key_returns_the_first_job(alice):
    job = submit(alice)
    body = {"spec": {"name": "other"}}
    first, again = (rerun(alice, job, body, **{"Idempotency-Key": "k"}) for _ in range(2))
    assert created(first) == created(again)
    assert again["Idempotency-Replayed"] == "true"
    refused(lambda: rerun(alice, job, {}, **{"Idempotency-Key": "k"}), 409, "idempotency_conflict")


def test_it_needs_the_scope_of_a_submit(alice, project):
    job = submit(alice)
    reader = Caller(api_token(project.organization, ("jobs:read",)))
    refused(lambda: rerun(reader, job), 403, "insufficient_scope")


def test_a_job_that_another_api_submits_is_refused(alice, monkeypatch):
    from orchestrator.protocols.native.jobs import reruns  # noqa: PLC0415 beside its only use

    job = submit(alice)
    monkeypatch.setattr(reruns, "SPEC_PARSERS", {})
    refused(lambda: rerun(alice, job), 409, "not_retryable")
