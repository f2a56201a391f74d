"""`POST /api/jobs`: the structure of section 3.3, projects, ids, keys, digests."""

import threading
from uuid import uuid4

import pytest
from django.db import connection
from django.test import Client

from leases.models import LimitKind
from orchestrator.core.cause import Cause
from runtime_jobs.models import Job, JobEvent, Plan
from runtime_jobs.specs import PACK_RUN, PAYLOAD_TYPES
from runtime_jobs.specs.payload import payload_digest
from tests.api_client import Caller, refused
from tests.factories import OPERATOR, ProjectFactory, limited
from tests.orchestrator.protocols.stella.requests import MISSING, SCAN, claim, ok, row_of, submit
from tests.packs import PLAN, payload_of, register, simple_payload

pytestmark = pytest.mark.django_db
OTHER = "01890a5d-ac96-774b-bcce-b302099a8058"


def document_example(**changes):
    """The body of section 3.3 with the values that it leaves open."""
    body = {
        "jobId": MISSING,
        "jobType": "scan",
        "tenant": "acme-corp",
        "priority": "normal",
        "payloadDigest": "sha256:" + payload_digest({"imageRef": "nginx:latest", "options": {}}),
        "payload": {"imageRef": "nginx:latest", "options": {}},
        "dependencies": [],
        "idempotencyKey": "unique-request-key",
        "correlationId": "trace-id",
        "requestedBy": "user-id",
        "requestedAt": "2025-11-29T12:00:00Z",
    }
    return body | changes


class TestTheDocumentsExample:
    def test_it_is_accepted_and_returned(self, alice):
        response = alice.post("/api/jobs", document_example())
        shown = ok(response, 201)
        assert response["Location"] == f"/api/jobs/{MISSING}"
        sent = document_example()
        kept = [name for name in sent if name not in {"dependencies", "idempotencyKey"}]
        assert {name: shown[name] for name in kept} == {name: sent[name] for name in kept}
        assert (shown["status"], shown["project"], shown["attempt"]) == ("queued", "web", 1)

    def test_the_same_key_returns_the_same_job(self, alice):
        first, again = (alice.post("/api/jobs", document_example()) for _ in range(2))
        assert ok(first, 201) == ok(again, 201)
        assert (first.get("Idempotency-Replayed"), again["Idempotency-Replayed"]) == (None, "true")
        assert Job.objects.count() == 1

    def test_another_body_with_the_key_is_a_conflict(self, alice):
        submit(alice, idempotencyKey="k")
        refused(
            lambda: alice.post("/api/jobs", SCAN | {"idempotencyKey": "k", "cursors": {"a": "b"}}),
            409,
            "idempotency_conflict",
        )

    def test_a_wrong_digest_is_a_conflict_that_names_the_right_one(self, alice):
        body = document_example(payloadDigest="sha256:" + "0" * 64)
        found = refused(lambda: alice.post("/api/jobs", body), 409, "digest_mismatch")
        assert document_example()["payloadDigest"] in found["detail"]

    def test_an_emergency_needs_a_quota(self, alice, organization):
        refused(lambda: alice.post("/api/jobs", SCAN | {"priority": "emergency"}), 403, "priority_forbidden")
        limited(organization.slug, kind=LimitKind.EMERGENCY, max_active=1, cause=Cause(OPERATOR, "on call"))
        assert submit(alice, priority="emergency")["priority"] == "emergency"

    def test_claims_of_the_client_are_kept_and_the_actor_is_the_token(self, alice):
        job = row_of(submit(alice, requestedBy="auditor@example.com", requestedAt="2025-11-29T13:00:00+01:00"))
        assert (job.trigger_actor, job.spec["requested_at"]) == ("auditor@example.com", "2025-11-29T12:00:00Z")
        event = JobEvent.objects.of(job.job_ulid).first()
        assert (event.actor_kind, event.actor_id) == ("client", "token test")
        assert job.created_at.year > 2025


class TestTypes:
    @pytest.mark.parametrize("job_type", PAYLOAD_TYPES)
    def test_each_type_reaches_a_worker_with_its_payload(self, alice, organization, worker, job_type):
        payload = simple_payload(organization) if job_type == PACK_RUN else SCAN["payload"]
        shown = submit(alice, jobType=job_type, payload=payload, cursors={"advisory": "cursor-abc"})
        found = claim(worker)
        assert (found.job.job_ulid, found.job.job_type) == (row_of(shown).job_ulid, job_type)
        assert (found.job.spec["payload"], found.job.spec["cursors"]) == (payload, {"advisory": "cursor-abc"})

    def test_a_worker_that_names_no_type_gets_none_of_them(self, alice, worker):
        submit(alice)
        offered = Caller(worker.token).post("/v1/runtime/leases", {"worker_id": worker.worker_id})
        assert offered.status_code == 204

    def test_the_native_lease_has_the_request(self, alice, worker):
        shown = submit(alice)
        body = {"worker_id": worker.worker_id, "job_types": ["scan"]}
        lease = ok(Caller(worker.token).post("/v1/runtime/leases", body), 201)
        request = lease["job"]["request"]
        assert (request["payload"], request["payload_digest"]) == (SCAN["payload"], shown["payloadDigest"])

    def test_the_default_timeout_is_the_most_that_the_plan_allows(self, alice):
        Plan.objects.update(max_timeout_seconds=777)
        assert submit(alice)["timeoutSeconds"] == 777
        found = refused(lambda: alice.post("/api/jobs", SCAN | {"timeoutSeconds": 778}), 400, "timeout_above_plan")
        assert "timeoutSeconds" in found["detail"]

    def test_a_pack_run_names_its_heartbeats(self, alice, organization):
        payload = simple_payload(organization)
        job = row_of(submit(alice, jobType=PACK_RUN, payload=payload | {"heartbeatCadence": 30}))
        assert (job.heartbeat_interval_seconds, job.lease_ttl_seconds) == (30, 58)  # found within 60 s
        for cadence in (9, 301, "30"):
            wrong = {"jobType": PACK_RUN, "payload": payload | {"heartbeatCadence": cadence}}
            found = refused(lambda wrong=wrong: alice.post("/api/jobs", wrong), 400, "invalid")
            assert list(found["errors"]) == ["payload"]

    def test_the_example_of_a_pack_run_reaches_a_worker_with_its_plan(self, alice, organization, worker):
        submit(alice, jobType=PACK_RUN, payload=payload_of(register(organization)))
        body = {"worker_id": worker.worker_id, "job_types": [PACK_RUN]}
        job = ok(Caller(worker.token).post("/v1/runtime/leases", body), 201)["job"]
        assert (job["heartbeat_interval_seconds"], job["lease_ttl_seconds"]) == (30, 58)
        request = job["request"]
        assert request["inputs"] == {"imageRef": "nginx:latest", "level": "high"}
        assert (request["plan"]["steps"], request["plan_hash"]) == (PLAN["steps"], request["payload"]["planHash"])

    def test_another_plan_hash_is_a_conflict_that_names_the_right_one(self, alice, organization):
        row = register(organization)
        wrong = {"jobType": PACK_RUN, "payload": payload_of(row, planHash="sha256:" + "0" * 64)}
        found = refused(lambda: alice.post("/api/jobs", wrong), 409, "digest_mismatch")
        assert row.plan_hash in found["detail"]
        native = {"org_slug": "acme-corp", "project_slug": "web", "job_type": PACK_RUN}
        native |= {"spec": {"payload": wrong["payload"], "timeout_seconds": 60}}
        native |= {"trigger": {"kind": "manual", "actor": "alice"}}
        refused(lambda: alice.post("/v1/jobs", native), 409, "digest_mismatch")


class TestProjects:
    def test_the_named_one_the_default_one_the_only_one(self, alice, organization, project):
        assert submit(alice)["project"] == "web"
        second = ProjectFactory(organization=organization, slug="second")
        refused(lambda: alice.post("/api/jobs", SCAN), 403, "project_not_enabled")
        assert submit(alice, project="web")["project"] == "web"
        organization.default_project = second
        organization.save(update_fields=["default_project"])
        assert submit(alice)["project"] == "second"
        second.enabled = False
        second.save(update_fields=["enabled"])
        refused(lambda: alice.post("/api/jobs", SCAN), 403, "project_not_enabled")

    def test_without_an_enabled_project_there_is_none(self, alice, project):
        project.enabled = False
        project.save(update_fields=["enabled"])
        refused(lambda: alice.post("/api/jobs", SCAN), 403, "project_not_enabled")

    def test_anothers_tenant_is_not_there(self, alice, intruder):
        found, missing = (
            refused(lambda tenant=tenant: intruder.post("/api/jobs", SCAN | {"tenant": tenant}), 404, "not_found")
            for tenant in ("acme-corp", "nobody")
        )
        assert {**found, "request_id": ""} == {**missing, "request_id": ""}


class TestIds:
    def test_a_sent_id_becomes_the_id_and_is_used_once(self, alice):
        assert submit(alice, jobId=MISSING.upper())["jobId"] == MISSING
        refused(lambda: alice.post("/api/jobs", SCAN | {"jobId": MISSING}), 409, "conflict")

    def test_the_id_of_another_tenants_job_is_taken_too(self, alice, intruder):
        submit(alice, jobId=MISSING)
        found = refused(lambda: intruder.post("/api/jobs", SCAN | {"jobId": MISSING}), 409, "conflict")
        assert "acme" not in str(found)

    def test_a_repetition_with_key_and_id_is_no_conflict(self, alice):
        body = SCAN | {"jobId": MISSING, "idempotencyKey": "k"}
        first, again = alice.post("/api/jobs", body), alice.post("/api/jobs", body)
        assert ok(first, 201) == ok(again, 201)

    def test_without_an_id_it_is_that_of_our_ulid(self, alice):
        shown = submit(alice)
        assert ok(alice.get(f"/v1/jobs/{row_of(shown).job_ulid}"))["job_type"] == "scan"


@pytest.mark.django_db(transaction=True)
def test_of_two_jobs_with_one_id_at_once_one_is_created(alice):
    barrier, answers = threading.Barrier(4), []
    token = alice.headers["Authorization"].partition(" ")[2]

    def send() -> None:
        barrier.wait()
        answers.append(Caller(token).post("/api/jobs", SCAN | {"jobId": MISSING}).status_code)
        connection.close()

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [201, 409, 409, 409]
    assert Job.objects.count() == 1


class TestKeys:
    def test_header_and_body_are_twins(self, alice):
        by_header = alice.post("/api/jobs", SCAN, **{"Idempotency-Key": "k"})
        in_body = alice.post("/api/jobs", SCAN | {"idempotencyKey": "k"})
        both = alice.post("/api/jobs", SCAN | {"idempotencyKey": "k"}, **{"Idempotency-Key": "k"})
        assert ok(by_header, 201) == ok(in_body, 201) == ok(both, 201)

    def test_two_different_keys_are_refused(self, alice):
        body = SCAN | {"idempotencyKey": "a"}
        found = refused(lambda: alice.post("/api/jobs", body, **{"Idempotency-Key": "b"}), 400, "invalid")
        assert list(found["errors"]) == ["idempotencyKey"]


class TestDependencies:
    def test_a_job_waits_for_those_that_it_names(self, alice, worker):
        first = submit(alice)
        second = submit(alice, dependencies=[first["jobId"]])
        assert (first["status"], second["status"]) == ("queued", "created")

    def test_a_foreign_one_is_refused_as_a_missing_one(self, alice, intruder):
        foreign = submit(alice)["jobId"]
        found, missing = (
            refused(
                lambda name=name: intruder.post("/api/jobs", SCAN | {"dependencies": [name]}), 400, "invalid_dependency"
            )
            for name in (foreign, OTHER)
        )
        assert found["errors"] == {"dependencies": [f"{foreign} is not a job of this organization."]}
        assert missing["errors"] == {"dependencies": [f"{OTHER} is not a job of this organization."]}
        assert "rtj_" not in str(found)

    def test_at_most_64(self, alice):
        names = [str(uuid4()) for _ in range(65)]
        found = refused(lambda: alice.post("/api/jobs", SCAN | {"dependencies": names}), 400, "invalid")
        assert list(found["errors"]) == ["dependencies"]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"jobType": "runtime"}, "jobType"),
        ({"jobType": None}, "jobType"),
        ({"jobId": "1"}, "jobId"),
        ({"priority": "team"}, "priority"),
        ({"payload": []}, "payload"),
        ({"payload": {"text": "x" * 257 * 1024}}, "payload"),
        ({"payload": {"number": 2**53}}, "payload"),
        ({"payloadDigest": "md5:0"}, "payloadDigest"),
        ({"cursors": {"a": 1}}, "cursors"),
        ({"cursors": {"a b": "1"}}, "cursors"),
        ({"cursors": {f"feed-{number}": "x" for number in range(33)}}, "cursors"),
        ({"timeoutSeconds": 0}, "timeoutSeconds"),
        ({"requestedAt": "yesterday"}, "requestedAt"),
        ({"correlationId": "é"}, "correlationId"),
        ({"idempotencyKey": ""}, "idempotencyKey"),
        ({"dependencies": ["job-id-1"]}, "dependencies"),
    ],
    ids=str,
)
def test_a_wrong_value_is_named(alice, changes, field):
    found = refused(lambda: alice.post("/api/jobs", SCAN | changes), 400, "invalid")
    assert {name.partition(".")[0] for name in found["errors"]} == {field}


def test_an_unknown_member_is_refused(alice):
    refused(lambda: alice.post("/api/jobs", SCAN | {"job_type": "scan"}), 400, "unknown_field")


def test_a_caller_of_all_tenants_names_one(project, django_user_model):
    browser = Client(raise_request_exception=False)
    browser.force_login(django_user_model.objects.create_user("olga", is_staff=True, is_superuser=True))
    found = browser.post("/api/jobs", SCAN, content_type="application/json")
    assert (found.status_code, found.json()["errors"].keys()) == (400, {"tenant"})
    named = browser.post("/api/jobs", SCAN | {"tenant": "acme-corp"}, content_type="application/json")
    assert ok(named, 201)["tenant"] == "acme-corp"
