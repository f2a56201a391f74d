"""POST /v1/ingest/run: one run for each job, whoever repeats it, and nothing that is no run."""

import copy
import json
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection, transaction

from orchestrator.ingest.examples import UPLOAD
from orchestrator.ingest.models import Run
from orchestrator.ingest.runs import digest_of
from orchestrator.protocols.ingest.serializers import RunUpload
from tests.api_client import Caller, problem_of, refused
from tests.factories import OrganizationFactory, ProjectFactory, WorkerFactory, api_token, claimed, submitted
from tests.live_server import eventually
from tests.orchestrator.ingest.conftest import payload_for
from tests.orchestrator.services.test_races import together
from workers.report.report import encoded

pytestmark = pytest.mark.django_db
PATH = "/v1/ingest/run"


def resealed(payload):
    return {**payload, "payload_sha256": digest_of(payload)}


def changed(payload, *path, value):
    """The payload with one value replaced, its digest made right again."""
    copied = copy.deepcopy(payload)
    inner = copied
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    return resealed(copied)


def test_the_first_valid_body_is_stored(wendy, worker, job, payload):
    answer = wendy.post(PATH, encoded(payload))
    assert answer.status_code == 201, answer.content
    body = answer.json()
    assert set(body) == {"run_id", "job_id", "created", "received_at"}
    assert re.fullmatch(r"run_\d{14}_[0-9a-f]{12}", body["run_id"])
    assert (body["job_id"], body["created"]) == (job.job_ulid, True)
    run = Run.objects.get()
    assert (run.run_id, run.org_slug, run.project_slug, run.worker_id) == (
        body["run_id"],
        "sandtrace",
        "web",
        worker.worker_id,
    )
    assert run.payload == payload
    assert run.payload_sha256 == payload["payload_sha256"]
    assert run.payload["metadata"]["job_id"] == job.job_ulid
    assert body["run_id"][4:18] == f"{run.received_at:%Y%m%d%H%M%S}"


def test_the_same_body_again_is_the_same_run(wendy, payload):
    first, second = wendy.post(PATH, encoded(payload)), wendy.post(PATH, encoded(payload))
    assert (second.status_code, second.json()) == (200, {**first.json(), "created": False})
    assert Run.objects.count() == 1


def test_another_trace_of_the_same_job_overwrites_nothing(wendy, job, worker, payload):
    first = wendy.post(PATH, payload).json()
    second = wendy.post(PATH, payload_for(job, worker, exit_code=0))
    assert second.status_code == 200
    assert second.json() == {**first, "created": False, "payload_match": False}
    assert Run.objects.get().payload == payload


def test_another_command_for_the_same_job_is_a_conflict_that_names_no_run(wendy, payload):
    run_id = wendy.post(PATH, payload).json()["run_id"]
    other = changed(payload, "metadata", "command", value=["rm", "-rf", "/"])
    document = refused(lambda: wendy.post(PATH, other), 409, "run_conflict")
    assert document["error"]["code"] == "run_conflict"
    assert run_id not in json.dumps(document)


@pytest.mark.parametrize(
    ("field", "value"),
    [("org_slug", "other"), ("project_slug", "other"), ("repo_url", "https://github.com/x/y.git"), ("git_commit", "b" * 40),
     ("command", ["pnpm", "ci"]), ("trigger_kind", "push")],
)  # fmt: skip
def test_a_run_is_about_its_job(wendy, payload, field, value):
    other = changed(payload, "metadata", field, value=value)
    document = refused(lambda: wendy.post(PATH, other), 422, "validation_failed")
    assert list(document["errors"]) == [f"metadata.{field}"]


def test_a_worker_that_never_held_the_job_does_not_know_it(payload):
    stranger = WorkerFactory()
    other = changed(payload, "metadata", "worker_id", value=stranger.worker_id)
    document = refused(lambda: Caller(stranger.token).post(PATH, other), 404, "not_found")
    assert document["error"]["code"] == "unknown_org_or_project"
    nowhere = changed(other, "metadata", "job_id", value="rtj_01j00000000000000000000001")
    assert problem_of(Caller(stranger.token).post(PATH, nowhere))["detail"] == document["detail"]


def test_nobody_speaks_for_another_worker(payload):
    other = WorkerFactory()
    document = refused(lambda: Caller(other.token).post(PATH, payload), 403, "worker_mismatch")
    assert document["error"]["code"] == "forbidden"


def test_only_workers_upload(alice, payload):
    assert refused(lambda: alice.post(PATH, payload), 403, "wrong_principal")["error"]["code"] == "forbidden"
    assert refused(lambda: Caller().post(PATH, payload), 401, "unauthenticated")["error"]["code"] == "unauthenticated"


def test_every_refusal_has_both_forms(wendy):
    document = refused(lambda: wendy.post(PATH, b"{"), 400, "malformed_json")
    assert document["error"] == {"code": "malformed_json", "message": document["detail"], "fields": {}}
    document = refused(lambda: wendy.post(PATH, {}), 422, "validation_failed")
    assert document["error"]["fields"] == document["errors"]
    assert "metadata" in document["errors"]


def test_compressed_bodies_are_refused(wendy, payload):
    call = lambda: wendy.post(PATH, encoded(payload), **{"Content-Encoding": "gzip"})  # noqa: E731
    assert refused(call, 415, "unsupported_media_type")["error"]["code"] == "unsupported_media_type"


def test_other_kinds_of_bodies_and_methods_are_refused(wendy, payload):
    refused(lambda: wendy.post(PATH, encoded(payload), content_type="text/plain"), 415, "unsupported_media_type")
    refused(lambda: wendy.get(PATH), 405, "method_not_allowed")


def test_a_body_over_one_mebibyte_is_refused(wendy):
    refused(lambda: wendy.post(PATH, b" " * ((1 << 20) + 1)), 413, "payload_too_large")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("schema_version",), "run.v2"),
        (("metadata", "job_id"), "rtj_../../etc"),
        (("metadata", "repo_url"), "https://user:password@github.com/x/y.git"),
        (("metadata", "repo_url"), "http://github.com/x/y.git"),
        (("metadata", "git_commit"), "HEAD"),
        (("metadata", "command"), []),
        (("metadata", "command"), "pnpm install"),
        (("metadata", "trigger_kind"), "cron"),
        (("metadata", "finished_at"), "1999-01-01T00:00:00Z"),
        (("metadata", "lease_id"), "rtl_01j00000000000000000000001"),
        (("metadata", "environment"), {"TOKEN": "x"}),
        (("outcome", "kind"), "fine"),
        (("outcome", "exit_code"), "0"),
        (("counts", "files_accessed"), -1),
        (("counts", "files_accessed"), 1.5),
        (("counts", "files_accessed"), True),
        (("processes", "items"), {}),
        (("processes", "total"), 0),
        (("processes", "items", 0, "pid"), "71"),
        (("files", "items", 0, "ops"), ["smell"]),
        (("files", "items", 0, "path"), "x" * 1025),
        (("network_attempts", "items", 0, "verdict"), "maybe"),
        (("suspicious_activity", "items", 0, "severity"), "horrible"),
        (("suspicious_activity", "items", 0, "script"), "<script>"),
        (("resources", "peaks", "memory_bytes"), "much"),
        (("trace", "sha256"), "0"),
        (("surprise",), 1),
    ],
)
def test_what_is_no_run_is_refused_by_field(wendy, payload, path, value):
    document = refused(lambda: wendy.post(PATH, changed(payload, *path, value=value)), 422, "validation_failed")
    [named] = document["errors"]
    assert named.startswith(path[0])


@pytest.mark.parametrize(
    ("name", "cap"), [("processes", 200), ("files", 500), ("network_attempts", 200), ("suspicious_activity", 100)]
)
def test_lists_have_their_caps(wendy, payload, name, cap):
    items = [payload[name]["items"][0]] * cap
    full = changed(payload, name, value={"items": items, "total": cap, "truncated": False})
    over = changed(payload, name, value={"items": [*items, items[0]], "total": cap + 1, "truncated": False})
    refused(lambda: wendy.post(PATH, over), 422, "validation_failed")
    assert wendy.post(PATH, full).status_code == 201


def test_a_wrong_digest_is_refused(wendy, payload):
    document = refused(lambda: wendy.post(PATH, {**payload, "payload_sha256": "0" * 64}), 422, "validation_failed")
    assert list(document["errors"]) == ["payload_sha256"]


def test_the_digest_may_be_left_out(wendy, payload):
    digest = payload.pop("payload_sha256")
    assert wendy.post(PATH, payload).status_code == 201
    assert Run.objects.get().payload_sha256 == digest


def test_the_idempotency_key_is_the_job_s_id(wendy, job, payload):
    refused(lambda: wendy.post(PATH, payload, **{"Idempotency-Key": "x"}), 422, "validation_failed")
    assert wendy.post(PATH, payload, **{"Idempotency-Key": job.job_ulid}).status_code == 201


def test_a_retry_is_another_job_with_another_run(wendy, worker, organization, payload):
    wendy.post(PATH, payload)
    submitted(organization.projects.get())
    again = wendy.post(PATH, payload_for(claimed(worker).job, worker))
    assert again.status_code == 201
    assert Run.objects.count() == 2


def test_the_contract_s_own_example_is_a_valid_run():
    RunUpload(data=UPLOAD.value).is_valid(raise_exception=True)


def test_a_job_is_completed_with_its_run_and_with_no_other(wendy, alice, job, payload):
    run_id = wendy.post(PATH, payload).json()["run_id"]
    path = f"/v1/runtime/leases/{job.leases.get().lease_ulid}/complete"
    result = {"status": "uploaded", "ingest_run_id": "run_20260317143329_bd39b25f6f31"}
    assert wendy.post(path, {"result": result}).status_code == 400
    assert wendy.post(path, {"result": {**result, "ingest_run_id": run_id}}).status_code == 200
    assert alice.get(f"/v1/runtime/jobs/{job.job_ulid}").json()["ingest_run_id"] == run_id


def test_programs_of_the_organization_read_the_run(wendy, alice, job, payload):
    run_id = wendy.post(PATH, payload).json()["run_id"]
    answer = alice.get(f"/v1/ingest/runs/{run_id}")
    assert answer.status_code == 200
    assert answer.json()["payload"] == payload
    assert answer.json()["job_id"] == job.job_ulid


def test_a_run_says_whether_its_worker_recorded_what_the_job_asks_for(wendy, alice, job, payload):
    path = f"/v1/ingest/runs/{wendy.post(PATH, payload).json()['run_id']}"
    assert alice.get(path).json()["trace"] == {"requested": "full", "recorded": "full"}
    Run.objects.update(payload=changed(payload, "trace", "level", value="none"))
    assert alice.get(path).json()["trace"] == {"requested": "full", "recorded": "none"}
    Run.objects.update(job_id="rtj_deleted")
    assert alice.get(path).json()["trace"] == {"requested": None, "recorded": "none"}


def test_another_organization_s_run_does_not_exist(wendy, payload):
    run_id = wendy.post(PATH, payload).json()["run_id"]
    bob = Caller(api_token(OrganizationFactory(slug="other")))
    hidden = refused(lambda: bob.get(f"/v1/ingest/runs/{run_id}"), 404, "not_found")
    missing = refused(lambda: bob.get("/v1/ingest/runs/run_20260101000000_000000000000"), 404, "not_found")
    assert {**hidden, "request_id": ""} == {**missing, "request_id": ""}


def test_reading_a_run_needs_the_scope(wendy, organization, payload):
    run_id = wendy.post(PATH, payload).json()["run_id"]
    path = f"/v1/ingest/runs/{run_id}"
    blind = Caller(api_token(organization, scopes=()))
    refused(lambda: blind.get(path), 403, "insufficient_scope")
    refused(lambda: wendy.get(path), 403, "wrong_principal")
    refused(lambda: Caller().get(path), 401, "unauthenticated")


@pytest.mark.django_db(transaction=True)
def test_of_posts_at_the_same_time_one_creates_the_run():
    organization = OrganizationFactory(slug="sandtrace")
    submitted(ProjectFactory(organization=organization))
    worker = WorkerFactory()
    job = claimed(worker).job
    bodies = [encoded(payload_for(job, worker, exit_code=code)) for code in (0, 1, 2, 3)]
    answers = together(*(lambda body=body: Caller(worker.token).post(PATH, body) for body in bodies))
    assert sorted(answer.status_code for answer in answers) == [200, 200, 200, 201]
    assert len({answer.json()["run_id"] for answer in answers}) == 1
    assert Run.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_a_post_waits_for_one_that_is_not_committed_yet_and_answers_its_run():
    submitted(ProjectFactory(organization=OrganizationFactory(slug="sandtrace")))
    worker = WorkerFactory()
    job = claimed(worker).job
    body = encoded(payload_for(job, worker))
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            Run.objects.create(
                run_id="run_first", job_id=job.job_ulid, fence=1, org_slug="sandtrace", project_slug="web", worker_id=worker.worker_id,
                payload={}, payload_sha256="0" * 64,
            )  # fmt: skip
            answer = pool.submit(_post, worker.token, body)
            eventually(someone_waits)
        assert answer.result(timeout=60) == (200, "run_first", False)


def _post(token: str, body: bytes) -> tuple[int, str, bool]:
    try:
        answer = Caller(token).post(PATH, body)
        return answer.status_code, answer.json()["run_id"], answer.json()["payload_match"]
    finally:
        connection.close()


def someone_waits() -> bool:
    with connection.cursor() as cursor:
        # Within a transaction the first look is remembered, and would be answered for ever.
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%ingest_runs%'"
        )
        return cursor.fetchone() != (0,)
