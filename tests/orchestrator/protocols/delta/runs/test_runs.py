"""`/api/v1/runs`: batches in document 001's words."""

import json

import pytest

from orchestrator.protocols.delta.states import RUN_JOB_STATES, RUN_STATES
from orchestrator.services import heartbeat, job_end, retries
from orchestrator.services.job_end import ArtifactRef
from runtime_jobs.batch_state import BatchState
from runtime_jobs.models import Batch, Job
from runtime_jobs.states import FailureReason, JobState
from tests.api_client import Caller
from tests.db_snapshot import nothing_lost
from tests.factories import (
    ALICE,
    COMMIT,
    OrganizationFactory,
    ProjectFactory,
    WorkerFactory,
    api_token,
    claimed,
    submitted,
)

pytestmark = pytest.mark.django_db
RUNS = "/api/v1/runs"
BODY = {
    "repo_id": "cc-consulting-nv/web",
    "ref": "refs/heads/main",
    "commit_sha": COMMIT,
    "reason": "nightly",
    "jobs": [
        {"name": "build", "steps": ["make"], "env": {"CI": "true"}, "artifacts": [{"type": "junit", "path": "*.xml"}]},
        {"name": "lint", "workdir": "app", "steps": ["make lint"], "required": False, "timeout_seconds": 60},
    ],
}
UNKNOWN = "rtb_01kkygkagq0jk17bx6y1w8c3df"


@pytest.fixture
def alice(project) -> Caller:
    return Caller(api_token(project.organization))


@pytest.fixture
def run(alice) -> str:
    answer = alice.post(RUNS, BODY)
    assert answer.status_code == 201, answer.content
    return answer.json()["run_id"]


def refused(call, status, code):
    """Expect this refusal in the documents' envelope. Returns it."""
    with nothing_lost():
        response = call()
    assert response["Content-Type"] == "application/json"
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (status, code), response.content
    assert set(error) == {"code", "message", "details"}
    return error


def take(worker):
    return claimed(worker, job_types=("steps", "runtime"))


def show(alice, run):
    answer = alice.get(f"{RUNS}/{run}")
    assert answer.status_code == 200
    return answer.json()


def test_a_run_has_the_jobs_that_were_sent(alice):
    answer = alice.post(RUNS, BODY)
    made = answer.json()
    assert (answer.status_code, made["state"], answer["Location"]) == (201, "QUEUED", f"{RUNS}/{made['run_id']}")
    assert made["run_id"].startswith("rtb_")
    build, lint = Job.objects.order_by("id")
    assert (build.spec["name"], build.spec["environment"], build.timeout_seconds) == ("build", {"CI": "true"}, 300)
    assert build.spec["artifacts"] == [{"type": "junit", "path_glob": "*.xml"}]
    assert (lint.working_directory, lint.timeout_seconds, lint.git_commit) == ("app", 60, COMMIT)
    assert lint.repo_url == "https://github.com/cc-consulting-nv/web.git"


def test_a_run_is_shown_as_the_documents_have_it(alice, run):
    shown = show(alice, run)
    assert set(shown) == {"run", "jobs"}
    assert shown["run"] | {"created_at": "", "updated_at": ""} == {
        "id": run, "repo_id": "cc-consulting-nv/web", "ref": "refs/heads/main", "commit_sha": COMMIT,
        "state": "QUEUED", "created_at": "", "updated_at": "",
    }  # fmt: skip
    assert [(one["job"]["name"], one["job"]["required"]) for one in shown["jobs"]] == [("build", True), ("lint", False)]
    job = shown["jobs"][0]
    assert set(job) == {"job", "attempts", "artifacts", "failure_explanations"}
    assert (job["artifacts"], job["failure_explanations"]) == ([], [])
    assert set(job["job"]) == {
        "id", "run_id", "name", "required", "state", "attempt_count", "created_at", "updated_at",
    }  # fmt: skip
    (attempt,) = job["attempts"]
    assert (attempt["id"], attempt["job_id"], attempt["attempt_number"]) == (job["job"]["id"], job["job"]["id"], 1)


def test_the_root_is_the_job_and_each_row_an_attempt(alice, run, worker):
    first = take(worker)
    references = (ArtifactRef("log", "s3://b/log.txt"),)
    job_end.fail(
        lease_ulid=first.lease.lease_ulid, worker=worker, reason=FailureReason.TIMED_OUT, message="timed out",
        artifacts=references,
    )  # fmt: skip
    second = take(worker)
    job_end.fail(lease_ulid=second.lease.lease_ulid, worker=worker, reason=FailureReason.COMMAND_FAILED, exit_code=1)
    shown = show(alice, run)
    assert shown["run"]["state"] == "TIMEOUT"
    build = shown["jobs"][0]
    assert (build["job"]["state"], build["job"]["reason"]) == ("TIMED_OUT", "timed_out")
    retries.retry(job_ulid=first.job.job_ulid, actor=ALICE, reason="x")
    build = show(alice, run)["jobs"][0]
    assert (build["job"]["id"], build["job"]["state"], build["job"]["attempt_count"]) == (
        first.job.job_ulid,
        "QUEUED",
        2,
    )
    assert [(one["attempt_number"], one["state"]) for one in build["attempts"]] == [(1, "TIMED_OUT"), (2, "QUEUED")]
    (artifact,) = build["artifacts"]
    assert (artifact["type"], artifact["uri"]) == ("log", "s3://b/log.txt")
    assert artifact["job_attempt_id"] == first.job.job_ulid
    (explanation,) = shown["jobs"][1]["failure_explanations"]
    assert set(explanation) >= {"category", "summary", "confidence", "job_attempt_id", "id"}
    job_end.complete(lease_ulid=take(worker).lease.lease_ulid, worker=worker)
    assert show(alice, run)["run"]["state"] == "SUCCESS"


def test_no_lease_id_is_in_it(alice, run, worker):
    held = take(worker)
    assert held.lease.lease_ulid not in json.dumps(show(alice, run))


def test_without_jobs_it_is_the_configured_command(alice, project):
    body = {name: value for name, value in BODY.items() if name != "jobs"}
    refused(lambda: alice.post(RUNS, body), 400, "INVALID_REQUEST")
    project.configured_command = ["make", "all tests"]
    project.save()
    run = alice.post(RUNS, body).json()["run_id"]
    assert Job.objects.get().spec["steps"] == ["make 'all tests'"]
    assert show(alice, run)["jobs"][0]["job"]["name"] == "configured"


def test_a_run_of_the_webhooks_job_is_shown_too(alice, project):
    job = submitted(project)
    batch = Batch.objects.create(
        org_slug=project.organization.slug, project_slug=project.slug, trigger_kind="push", correlation_id="x",
        created_at=job.created_at,
    )  # fmt: skip
    Job.objects.filter(pk=job.pk).update(batch=batch)
    shown = show(alice, batch.batch_ulid)
    assert (shown["run"]["repo_id"], shown["jobs"][0]["job"]["name"]) == (None, "pnpm install")


def test_the_ref_may_be_the_commit_or_one_that_was_pushed(alice, project):
    body = {name: value for name, value in BODY.items() if name != "commit_sha"}
    error = refused(lambda: alice.post(RUNS, body), 400, "INVALID_REQUEST")
    assert list(error["details"]["errors"]) == ["commit_sha"]
    assert alice.post(RUNS, body | {"ref": "b" * 40}).status_code == 201
    assert Job.objects.order_by("id").first().git_commit == "b" * 40
    project.push_enabled = True
    project.save()
    Batch.objects.update(trigger_kind="push", git_ref="refs/heads/main")
    for ref in ("main", "refs/heads/main"):
        assert alice.post(RUNS, body | {"ref": ref}).status_code == 201
    assert set(Job.objects.values_list("git_commit", flat=True)) == {"b" * 40}


def changed(**job):
    return BODY | {"jobs": [{name: value for name, value in (BODY["jobs"][0] | job).items() if value is not ...}]}


@pytest.mark.parametrize(
    "body",
    [
        {}, BODY | {"repo_id": "web"}, BODY | {"repo_id": "a/b/c"}, BODY | {"repo_id": "a/.."}, BODY | {"repo_id": "-a/b"},
        BODY | {"ref": ""}, BODY | {"ref": "a..b"}, BODY | {"commit_sha": "main"}, BODY | {"commit_sha": 7},
        BODY | {"jobs": []}, BODY | {"jobs": {}}, BODY | {"jobs": BODY["jobs"][:1] * 2}, BODY | {"jobs": [1]},
        BODY | {"jobs": [{"name": str(number), "steps": ["x"]} for number in range(65)]},
        changed(steps=[]), changed(steps=...), changed(name=...), changed(env={"A B": "x"}), changed(env={"A": 1}),
        changed(workdir="/"), changed(workdir=".."), changed(artifacts=[{}]), changed(caches=[{"type": "a"}]),
        changed(timeout_seconds=0), changed(timeout_seconds=901), changed(image="a b"), changed(required="no"),
        BODY | {"reason": 7}, BODY | {"project_slug": 7},
    ],
)  # fmt: skip
def test_a_wrong_body_is_refused(alice, body):
    refused(lambda: alice.post(RUNS, body), 400, "INVALID_REQUEST")


@pytest.mark.parametrize("raw", [b"[]", b"{", b'{"repo_id": "a\\u0000"}', b'{"a": 1, "a": 2}', b"[" * 5000, b"\xff"])
def test_what_is_no_json_object_is_refused(alice, raw):
    refused(lambda: alice.post(RUNS, raw), 400, "INVALID_REQUEST")


def test_fields_that_nobody_knows_are_ignored(alice):
    body = BODY | {"later": 1, "jobs": [BODY["jobs"][0] | {"later": 1, "artifacts": [{"path": "a", "later": 1}]}]}
    assert alice.post(RUNS, body).status_code == 201


def test_a_repository_that_no_project_runs_is_forbidden(alice, project):
    refused(lambda: alice.post(RUNS, BODY | {"repo_id": "cc-consulting-nv/other"}), 403, "FORBIDDEN")
    project.enabled = False
    project.save()
    refused(lambda: alice.post(RUNS, BODY), 403, "FORBIDDEN")


def test_of_several_projects_one_must_be_named(alice, project):
    ProjectFactory(organization=project.organization, slug="second")
    refused(lambda: alice.post(RUNS, BODY), 400, "INVALID_REQUEST")
    assert alice.post(RUNS, BODY | {"project_slug": "second"}).status_code == 201
    assert Batch.objects.get().project_slug == "second"


def test_the_same_key_makes_one_run(alice):
    key = {"Idempotency-Key": "k"}
    first, again = (alice.post(RUNS, BODY, **key) for _ in range(2))
    assert (first.status_code, again.status_code, again["Idempotency-Replayed"]) == (201, 200, "true")
    assert first.json() == again.json()
    refused(lambda: alice.post(RUNS, BODY | {"reason": "other"}, **key), 409, "INVALID_STATE")
    assert Batch.objects.count() == 1


def test_a_cancel_has_two_phases_and_may_be_repeated(alice, run, worker):
    held = take(worker)
    path = f"{RUNS}/{run}/cancel"
    for _ in range(2):
        answer = alice.post(path, {"reason": "enough"})
        assert (answer.status_code, answer.json()) == (200, {"run_id": run, "state": "CANCEL_REQUESTED"})
    assert [one["job"]["state"] for one in show(alice, run)["jobs"]] == ["CANCEL_REQUESTED", "CANCELED"]
    renewed = heartbeat.renew(lease_ulid=held.lease.lease_ulid, worker=worker)
    assert renewed.job.cancel_reason == "batch_canceled"
    job_end.acknowledge_cancel(lease_ulid=held.lease.lease_ulid, worker=worker)
    assert alice.post(path).json() == {"run_id": run, "state": "CANCELED"}
    assert show(alice, run)["jobs"][0]["job"]["reason"] == "batch_canceled"


def test_a_run_that_has_ended_is_not_canceled(alice, run, worker):
    for _ in range(2):
        job_end.complete(lease_ulid=take(worker).lease.lease_ulid, worker=worker)
    refused(lambda: alice.post(f"{RUNS}/{run}/cancel"), 409, "INVALID_STATE")


def test_a_rerun_is_a_new_run_by_its_key(alice, run):
    path = f"{RUNS}/{run}/rerun"
    refused(lambda: alice.post(path), 400, "INVALID_REQUEST")
    refused(lambda: alice.post(path, {}, **{"Idempotency-Key": "ä" * 3}), 400, "INVALID_REQUEST")
    first = alice.post(path, {}, **{"Idempotency-Key": "k"})
    made = first.json()
    assert first.status_code == 201
    assert made == {
        "run_id": made["run_id"], "original_run": run, "state": "QUEUED", "created": "true", "idempotencyKey": "k",
    }  # fmt: skip
    again = alice.post(path, {}, **{"Idempotency-Key": "k"})
    assert (again.status_code, again.json()) == (200, made | {"created": "false"})
    assert alice.post(path, {}, **{"Idempotency-Key": "l"}).json()["run_id"] not in {run, made["run_id"]}
    other = f"{RUNS}/{made['run_id']}/rerun"
    assert alice.post(other, {}, **{"Idempotency-Key": "k"}).status_code == 201, "a key is that of one original"
    assert Job.objects.count() == 2 * Batch.objects.count() == 8


@pytest.mark.parametrize(("method", "path"), [("GET", ""), ("POST", "/cancel"), ("POST", "/rerun")])
@pytest.mark.parametrize("name", [UNKNOWN, "run_0123456789abcdef0123", "rtj_01kkygkagq0jk17bx6y1w8c3df"])
def test_an_unknown_run_is_not_there(alice, method, path, name):
    key = {"Idempotency-Key": "k"}
    refused(lambda: alice.call(method, f"{RUNS}/{name}{path}", {} if path else None, **key), 404, "NOT_FOUND")


@pytest.mark.parametrize("path", ["/RTB_1", "/a b", "/%00", "/rtb_x/other", "/", "/7a", "/-7"])
def test_other_forms_of_ids_are_unknown(alice, path):
    refused(lambda: alice.call("POST", RUNS + path, {}), 404, "NOT_FOUND")


@pytest.mark.parametrize("path", ["/7", "/7/rerun", "/7/cancel"])
def test_a_whole_number_is_a_run_of_document_003(alice, path):
    answer = alice.call("POST", RUNS + path, {})
    assert (answer.status_code, set(answer.json())) == (404, {"error"})
    assert isinstance(answer.json()["error"], str)


def test_another_tenants_run_is_not_there(alice, run):
    stranger = OrganizationFactory(slug="intruder")
    ProjectFactory(organization=stranger, repositories=["cc-consulting-nv/web"])
    ivan = Caller(api_token(stranger))
    key = {"Idempotency-Key": "k"}
    for method, path in (("GET", ""), ("POST", "/cancel"), ("POST", "/rerun")):
        body = {} if path else None
        found = ivan.call(method, f"{RUNS}/{run}{path}", body, **key).json()["error"]
        missing = ivan.call(method, f"{RUNS}/{UNKNOWN}{path}", body, **key).json()["error"]
        for one in (found, missing):
            one["details"].pop("request_id")
        assert found == missing
    assert ivan.post(RUNS, BODY).status_code == 201
    assert set(Batch.objects.values_list("org_slug", flat=True)) == {"sandtrace", "intruder"}


def test_scopes_and_kinds_of_callers(project, run):
    reader = Caller(api_token(project.organization, ("jobs:read",)))
    assert reader.get(f"{RUNS}/{run}").status_code == 200
    for path in (RUNS, f"{RUNS}/{run}/cancel", f"{RUNS}/{run}/rerun"):
        refused(lambda path=path: reader.post(path, BODY), 403, "FORBIDDEN")
    worker = Caller(WorkerFactory().token)
    with nothing_lost():
        assert worker.post(RUNS, BODY).status_code == 403
    refused(lambda: Caller().post(RUNS, BODY), 401, "UNAUTHORIZED")


@pytest.mark.parametrize("table", [(RUN_STATES, BatchState), (RUN_JOB_STATES, JobState)])
def test_every_state_has_a_word(table):
    words, states = table
    assert set(words) == set(states)
