"""`/v1/jobs`: jobs of every type, and the messages about jobs without a run."""

import base64
import copy

import pytest

from runtime_jobs.models import Job
from tests.api_client import Caller, refused
from tests.factories import (
    SUBMIT_ANY_BODY,
    SUBMIT_BODY,
    OrganizationFactory,
    ProjectFactory,
    api_token,
    claimed,
    submitted,
    submitted_steps,
)

pytestmark = pytest.mark.django_db
JOBS, LEASES = "/v1/jobs", "/v1/runtime/leases"
RUNTIME_SPEC = {name: SUBMIT_BODY[name] for name in ("source", "execution")}
ALL = {
    "working_directory": "app",
    "environment": {"CI": "true", "_X1": ""},
    "artifacts": [{"type": "junit", "path_glob": "**/*.xml"}, {"path": "out"}],
    "caches": [{"type": "deps", "key": "npm:1", "paths": ["~/.npm"]}],
    "image": "registry.example/node:22@sha256:ab",
    "allow_network": True,
    "trace": "network",
}


def body(**changes):
    """The example with other members of its spec; `...` takes one away."""
    made = copy.deepcopy(SUBMIT_ANY_BODY)
    made["spec"] = {name: value for name, value in (made["spec"] | changes).items() if value is not ...}
    return made


def test_a_job_of_steps_is_shown_as_it_was_submitted(alice):
    created = alice.post(JOBS, body(**ALL))
    assert created.status_code == 201, created.content
    job = created.json()
    assert created["Location"] == f"/v1/jobs/{job['job_id']}"
    assert (job["job_type"], job["status"], job["batch_id"], job["result"]) == ("steps", "queued", None, None)
    sent = SUBMIT_ANY_BODY["spec"] | ALL
    artifacts = [{"type": "junit", "path_glob": "**/*.xml"}, {"type": "file", "path_glob": "out"}]
    caches = [ALL["caches"][0] | {"read_only": False}]
    assert job["spec"] == sent | {"artifacts": artifacts, "caches": caches}
    assert alice.get(f"{JOBS}/{job['job_id']}").json()["spec"] == job["spec"]
    assert alice.post(JOBS, {**SUBMIT_ANY_BODY, "spec": job["spec"]}).status_code == 201, "what is shown can be sent"


def test_document_000s_job_is_the_same_by_both_doors(alice):
    by_one = alice.post("/v1/runtime/jobs", SUBMIT_BODY).json()
    by_other = alice.post(
        JOBS, {**SUBMIT_ANY_BODY, "trigger": SUBMIT_BODY["trigger"], "job_type": "runtime", "spec": RUNTIME_SPEC}
    ).json()
    assert by_other["spec"] == {name: by_one[name] for name in ("source", "execution")}
    first, second = Job.objects.order_by("id")
    assert first.payload_digest == second.payload_digest
    assert {row["job_id"] for row in alice.get("/v1/runtime/jobs").json()["results"]} == {
        first.job_ulid,
        second.job_ulid,
    }


def wrong(field, *values):
    return [pytest.param(field, value, id=f"{field}={value!r:.50}") for value in values]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *wrong("name", ..., "", "x" * 101, "a\nb", "a\x00", 7, None),
        *wrong("steps", ..., [], "make", [""], ["  "], ["a\x00"], [1], ["x" * 16_385], ["a"] * 65),
        *wrong("timeout_seconds", ..., 0, "300", 2**31, 1.5),
        *wrong("working_directory", "/etc", "..", "a/../..", ""),
        *wrong("environment", [], {"1A": "x"}, {"A-B": "x"}, {"": "x"}, {"A=B": "x"}, {"A": 1}, {"A": "x" * 8193}),
        *wrong("environment", {f"A{n}": "" for n in range(65)}, {"A": "\x00"}),
        *wrong("artifacts", {}, [{}], [{"path_glob": "/etc/*"}], [{"path": "../x"}], [{"path": "a", "path_glob": "a"}]),
        *wrong("artifacts", [{"path": "a", "type": "a b"}], [{"path": "a"}] * 33, [{"path": "a", "x": 1}]),
        *wrong("caches", [{"type": "a", "key": "b"}], [{"type": "a", "key": "b", "paths": []}], [1]),
        *wrong("image", "", "a b", "-x", "x" * 256, 1),
        *wrong("source", {}, {"kind": "github"}, SUBMIT_BODY["source"] | {"git_commit": "main"}),
        *wrong("shell", "bash"),
        *wrong("command", ["make"]),
    ],
)
def test_what_is_out_of_bounds_is_refused_by_name(alice, field, value):
    response = alice.post(JOBS, body(**{field: value}))
    assert response.status_code == 400, response.content
    found = response.json()
    if found["code"] != "malformed_json":
        assert all(name.startswith(f"spec.{field}") for name in found["errors"]), found
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    "changes", [{"job_type": "oci"}, {"job_type": "runtime"}, {"spec": []}, {"spec": RUNTIME_SPEC}]
)
def test_the_type_says_what_the_spec_is(alice, changes):
    assert alice.post(JOBS, SUBMIT_ANY_BODY | changes).status_code == 400
    assert not Job.objects.exists()


def test_a_priority_is_the_plans_and_numbers_are_not_asked_for(alice):
    refused(lambda: alice.post(JOBS, SUBMIT_ANY_BODY | {"priority": 1000}), 400, "invalid")
    assert alice.post(JOBS, SUBMIT_ANY_BODY).json()["priority"] == 200


def test_a_job_goes_into_its_projects_pool_and_no_other(alice):
    assert alice.post(JOBS, SUBMIT_ANY_BODY | {"pool": "shared-linux"}).json()["pool"] == "shared-linux"
    refused(lambda: alice.post(JOBS, SUBMIT_ANY_BODY | {"pool": "theirs"}), 403, "pool_forbidden")


def test_without_a_repository_any_enabled_project_will_do(alice, organization):
    ProjectFactory(organization=organization, slug="bare", repositories=[])
    assert alice.post(JOBS, body(source=...) | {"project_slug": "bare"}).status_code == 201
    refused(lambda: alice.post(JOBS, body() | {"project_slug": "bare"}), 403, "repository_not_allowed")


def test_the_same_key_makes_one_job(alice):
    first, again = (alice.post(JOBS, SUBMIT_ANY_BODY, **{"Idempotency-Key": "k"}) for _ in range(2))
    assert (first.json(), again["Idempotency-Replayed"]) == (again.json(), "true")
    refused(lambda: alice.post(JOBS, body(name="other"), **{"Idempotency-Key": "k"}), 409, "idempotency_conflict")
    assert alice.post("/v1/runtime/jobs", SUBMIT_BODY, **{"Idempotency-Key": "k"}).status_code == 201, "another action"


def test_the_list_has_every_type_and_the_runtime_list_one(alice, organization):
    project = organization.projects.get()
    runtime, steps = submitted(project), submitted_steps(project, source=None)
    shown = [row["job_id"] for row in alice.get(JOBS).json()["results"]]
    assert shown == [steps.job_ulid, runtime.job_ulid]
    for job_type, job in (("runtime", runtime), ("steps", steps)):
        assert [row["job_id"] for row in alice.get(f"{JOBS}?job_type={job_type}").json()["results"]] == [job.job_ulid]
    assert alice.get(f"{JOBS}?batch_id=rtb_none").json()["results"] == []
    refused(lambda: alice.get(f"{JOBS}?job_type=ghost"), 400, "invalid_query")
    refused(lambda: alice.get("/v1/runtime/jobs?status=succeeded"), 400, "invalid_query")
    refused(lambda: alice.get(f"/v1/runtime/jobs/{steps.job_ulid}"), 404, "not_found")


@pytest.fixture
def leased(organization, wendy, worker):
    """A job of steps, as its worker got it."""
    submitted_steps(organization.projects.get(), steps=("make", "make test"), environment={"CI": "1"}, image=None)
    claim = {"worker_id": worker.worker_id, "job_types": ["runtime", "steps"]}
    answer = wendy.post(LEASES, claim)
    assert answer.status_code == 201, answer.content
    return answer.json()


def done(code=0, index=0):
    at = "2026-03-17T20:00:05.123456789Z"
    return {"index": index, "exit_code": code, "started_at": at, "finished_at": at}


def test_a_lease_of_it_says_what_to_do(leased):
    job = leased["job"]
    assert (job["job_type"], job["source"], "execution" in job) == ("steps", None, False)
    assert job["steps"]["steps"] == ["make", "make test"]
    assert job["steps"]["environment"] == {"CI": "1"}
    assert (job["steps"]["least_isolation"], job["steps"]["egress"]) == ("namespaces", [])
    assert job["steps"]["trace"] == "none"


def test_a_traced_step_says_what_the_trace_shows(alice, wendy, worker, organization):
    worker.capabilities = ["linux", "ptrace", "namespaces"]
    worker.save()
    created = alice.post(JOBS, body(trace="network"))
    assert (created.json()["trace"], created.json()["spec"]["trace"]) == ("network", "network")
    leased = wendy.post(LEASES, {"worker_id": worker.worker_id, "job_types": ["steps"]}).json()
    assert leased["job"]["steps"]["trace"] == "network"
    finding = {"rule": "metadata_address", "severity": "critical", "detail": "169.254.169.254\u001b[2J", "count": 2}
    trace = {"level": "network", "bytes": 9, "truncated": False, "counts": {"processes": 1}, "findings": [finding]}
    path = f"{LEASES}/{leased['lease_id']}/complete"
    refused(
        lambda: wendy.post(
            path, {"result": {"status": "succeeded", "steps": [done() | {"trace": trace | {"level": "some"}}]}}
        ),
        400,
        "invalid",
    )
    answer = wendy.post(path, {"result": {"status": "succeeded", "exit_code": 0, "steps": [done() | {"trace": trace}]}})
    assert answer.status_code == 200, answer.content
    [step] = alice.get(f"{JOBS}/{created.json()['job_id']}").json()["result"]["steps"]
    assert step["trace"]["level"] == "network"
    assert "\u001b" not in step["trace"]["findings"][0]["detail"]


def test_a_level_of_trace_that_does_not_exist_is_refused(alice):
    for changes in ({"trace": "files"}, {"trace": True}, {"trace": ""}):
        refused(lambda: alice.post(JOBS, body(**changes)), 400, "invalid")  # noqa: B023 called at once
    execution = SUBMIT_BODY["execution"] | {"trace": "FULL"}
    refused(lambda: alice.post("/v1/runtime/jobs", SUBMIT_BODY | {"execution": execution}), 400, "invalid")


def test_it_succeeds_by_its_workers_word(alice, wendy, leased):
    found = {"type": "junit", "path": "a.xml", "size_bytes": 3, "sha256": "a" * 64}
    result = {"status": "succeeded", "exit_code": 0, "steps": [done(), done(index=1)], "files": [found]}
    path = f"{LEASES}/{leased['lease_id']}/complete"
    for _ in range(2):
        answer = wendy.post(path, {"result": result})
        assert (answer.status_code, answer.json()["status"]) == (200, "succeeded"), answer.content
    job = alice.get(f"{JOBS}/{leased['job']['job_id']}").json()
    assert job["status"] == "succeeded"
    assert job["result"]["steps"][1] == done(index=1) | dict.fromkeys(
        ("started_at", "finished_at"), "2026-03-17T20:00:05.123456Z"
    )
    assert job["result"]["files"] == [found]
    assert [row["job_id"] for row in alice.get(f"{JOBS}?status=succeeded").json()["results"]] == [job["job_id"]]
    assert alice.get(f"{JOBS}?status=uploaded").json()["results"] == []


def test_a_run_comes_with_uploaded_only(wendy, leased):
    path = f"{LEASES}/{leased['lease_id']}/complete"
    for result in (
        {"status": "succeeded", "ingest_run_id": "run_a"},
        {"status": "uploaded"},
        {"status": "succeeded", "steps": [done() | {"index": -1}]},
        {"status": "succeeded", "steps": [done()] * 257},
        {"status": "succeeded", "files": [{"type": "a"}]},
    ):
        refused(lambda result=result: wendy.post(path, {"result": result}), 400, "invalid")


def test_a_type_with_a_run_does_not_succeed_without_it(wendy, worker, organization):
    submitted(organization.projects.get())
    lease = claimed(worker).lease.lease_ulid
    refused(lambda: wendy.post(f"{LEASES}/{lease}/complete", {"result": {"status": "succeeded"}}), 400, "invalid")


def test_a_type_without_a_run_takes_none(wendy, leased, settings):
    settings.INGEST_URL = "https://elsewhere.example"
    path = f"{LEASES}/{leased['lease_id']}/complete"
    sent = {"result": {"status": "uploaded", "ingest_run_id": "run_a"}}
    refused(lambda: wendy.post(path, sent), 400, "invalid")


def test_a_failed_step_is_shown_with_those_before_it(alice, wendy, leased):
    result = {"status": "failed", "reason": "command_failed", "exit_code": 2, "steps": [done(), done(2, 1)]}
    assert wendy.post(f"{LEASES}/{leased['lease_id']}/fail", {"result": result}).status_code == 200
    job = alice.get(f"{JOBS}/{leased['job']['job_id']}").json()
    assert (job["failure"]["reason"], job["failure"]["class"], job["exit_code"]) == ("command_failed", "job", 2)
    assert [step["exit_code"] for step in job["result"]["steps"]] == [0, 2]


def test_the_log_shows_all_steps_in_order(alice, wendy, leased):
    path = f"{LEASES}/{leased['lease_id']}/logs"
    for step, seq, text in ((0, 0, "one "), (1, 0, "three "), (0, 1, "two "), (1, 1, "four")):
        chunk = base64.b64encode(text.encode()).decode()
        assert wendy.post(path, {"step": step, "seq": seq, "chunk": chunk}).status_code == 200
    answer = alice.get(f"{JOBS}/{leased['job']['job_id']}/logs")
    assert b"".join(answer.streaming_content) == b"one two three four"


def test_hosted_analysis_is_demanded_of_its_own_type_only():
    poor = OrganizationFactory(slug="sandtrace", hosted_runtime_analysis=False)
    ProjectFactory(organization=poor)
    caller = Caller(api_token(poor))
    refused(lambda: caller.post("/v1/runtime/jobs", SUBMIT_BODY), 403, "feature_not_enabled")
    assert caller.post(JOBS, SUBMIT_ANY_BODY).status_code == 201
