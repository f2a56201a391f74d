"""`POST /api/jobs/{id}/replay`, its record, its verdict, and the manifest of a job."""

import json

import pytest
import rfc8785

from orchestrator.core.row_batches import RowRunner
from orchestrator.evidence.dsse import verify
from orchestrator.evidence.replay_tasks import compare_ended_replays
from orchestrator.evidence.signing_keys import public_keys
from orchestrator.incidents.models import Incident
from orchestrator.protocols.stella.replays.views import MANIFEST_TYPE
from runtime_jobs.models import Job
from tests.api_client import Caller, refused
from tests.factories import api_token
from tests.older_transactions import wait_for_older_transactions
from tests.orchestrator.protocols.stella.requests import MISSING, claim, complete, fail, ok, row_of, submit

pytestmark = pytest.mark.django_db
WHY = {"reason": "audit-verification"}
CURSORS = {"advisory": "cursor-abc", "vex": "cursor-def"}


@pytest.fixture
def ended(alice, worker):
    """A scan that has ended, as the API serializes it."""
    shown = submit(alice, cursors=CURSORS)
    complete(claim(worker), outputs={"findings": 3})
    return shown


def path_of(shown, tail="replay"):
    return f"/api/jobs/{shown['jobId']}/{tail}"


def replay(caller, shown, **changes):
    return ok(caller.post(path_of(shown), WHY | changes), 201)


def verdict(caller, record):
    compare_ended_replays(RowRunner())
    return ok(caller.get(path_of(record)))


def foreign_refusal(caller, job_id, method, tail, body):
    path = f"/api/jobs/{job_id}/{tail}"
    return refused(lambda: caller.call(method, path, body), 404, "not_found") | {"request_id": ""}


class TestTheRecord:
    def test_it_is_that_of_section_7_3(self, alice, ended):
        response = alice.post(path_of(ended), WHY | {"sealed": True})
        record = ok(response, 201)
        new = record.pop("jobId")
        assert record == {
            "replayOf": ended["jobId"], "priority": ended["priority"], "reason": "audit-verification",
            "requestedBy": "token test", "cursors": CURSORS, "sealed": True,
        }  # fmt: skip
        assert response["Location"] == f"/api/jobs/{new}"
        shown = ok(alice.get(f"/api/jobs/{new}"))
        assert (shown["replayOf"], shown["status"], shown["attempt"]) == (ended["jobId"], "queued", 1)
        assert shown["payloadDigest"] == ended["payloadDigest"]
        assert (shown["payload"], shown["cursors"]) == (ended["payload"], CURSORS)
        assert ok(alice.get(f"/api/jobs/{ended['jobId']}"))["replays"] == [new]
        assert [row["jobId"] for row in ok(alice.get(f"/api/jobs?replayOf={ended['jobId']}"))["results"]] == [new]

    def test_its_events_begin_with_job_replayed(self, alice, ended):
        record = replay(alice, ended)
        first, second = ok(alice.get(path_of(record, "events")))["results"]
        assert (first["eventType"], second["eventType"]) == ("job.replayed", "job.queued")
        assert first["payload"]["details"]["replayOf"] == ended["jobId"]

    def test_the_worker_gets_the_same_request_and_is_bound_to_use_no_network(self, alice, ended, worker):
        for sealed in (True, False):
            replay(alice, ended, sealed=sealed)
            body = {"worker_id": worker.worker_id, "job_types": ["scan"]}
            request = ok(Caller(worker.token).post("/v1/runtime/leases", body), 201)["job"]["request"]
            assert (request["payload"], request["cursors"]) == (ended["payload"], CURSORS)
            assert (request["sealed"], request["egress"]) == (sealed, [])

    def test_a_key_returns_the_first_replay(self, alice, ended):
        first, again = (alice.post(path_of(ended), WHY, **{"Idempotency-Key": "k"}) for _ in range(2))
        assert ok(first, 201) == ok(again, 201)
        assert (first.get("Idempotency-Replayed"), again["Idempotency-Replayed"]) == (None, "true")
        other = WHY | {"sealed": True}
        refused(lambda: alice.post(path_of(ended), other, **{"Idempotency-Key": "k"}), 409, "idempotency_conflict")
        assert Job.objects.count() == 2


class TestRefusals:
    @pytest.mark.parametrize(
        ("body", "code"),
        [
            ({}, "invalid"),
            ({"reason": ""}, "invalid"),
            ({"reason": "x" * 501}, "invalid"),
            (WHY | {"priority": "urgent"}, "invalid"),
            (WHY | {"sealed": "yes"}, "invalid"),
            (WHY | {"payload": {}}, "unknown_field"),
        ],
    )
    def test_a_wrong_body(self, alice, ended, body, code):
        refused(lambda: alice.post(path_of(ended), body), 400, code)

    def test_a_priority_above_the_plan(self, alice, ended):
        refused(lambda: alice.post(path_of(ended), WHY | {"priority": "high"}), 403, "priority_forbidden")

    def test_a_job_that_has_not_ended(self, alice):
        shown = submit(alice)
        document = refused(lambda: alice.post(path_of(shown), WHY), 409, "not_final")
        assert document["job_status"] == "queued"

    def test_each_call_needs_its_scope(self, alice, ended, organization):
        record = replay(alice, ended)
        reader, submitter = (Caller(api_token(organization, (scope,))) for scope in ("orch:read", "jobs:write"))
        refused(lambda: reader.post(path_of(ended), WHY), 403, "insufficient_scope")
        for path in (path_of(record), path_of(ended, "manifest")):
            assert reader.get(path).status_code == 200
            refused(lambda path=path: submitter.get(path), 403, "insufficient_scope")

    def test_another_tenants_are_those_that_do_not_exist(self, alice, intruder, ended):
        record = replay(alice, ended)
        for call in (("POST", "replay", WHY), ("GET", "replay", None), ("GET", "manifest", None)):
            found, missing = (foreign_refusal(intruder, job_id, *call) for job_id in (record["jobId"], MISSING))
            assert found == missing

    def test_a_job_that_is_no_replay(self, alice, ended):
        refused(lambda: alice.get(path_of(ended)), 404, "not_found")


class TestVerdicts:
    def test_it_is_null_until_the_end_and_then_match(self, alice, ended, worker):
        record = replay(alice, ended, sealed=True)
        waiting = verdict(alice, record)
        assert {name: waiting[name] for name in record} == record
        assert (waiting["verdict"], waiting["decidedAt"]) == (None, None)
        complete(claim(worker), outputs={"findings": 3})
        found = verdict(alice, record)
        assert (found["verdict"], found["difference"], found["reasons"]) == ("match", None, [])
        assert found["decidedAt"] is not None

    def test_another_outcome_is_diverged_and_an_incident(self, alice, ended, worker):
        record = replay(alice, ended)
        complete(claim(worker), outputs={"findings": 4})
        found = verdict(alice, record)
        assert found["verdict"] == "diverged"
        assert found["difference"] == {"path": "/outputs/outputs/findings", "expected": 3, "found": 4}
        assert Incident.objects.get().kind == "replay"
        assert ok(alice.get(f"/api/jobs/{record['jobId']}"))["status"] == "completed"  # the incident is the replay's

    def test_a_worker_that_fails_verifies_nothing(self, alice, ended, worker):
        record = replay(alice, ended)
        fail(claim(worker), "worker_error")
        found = verdict(alice, record)
        assert found["verdict"] == "unverifiable"
        assert found["reasons"] == ["Of the replay: It failed for a reason outside of the job: worker_error."]


@pytest.mark.django_db(transaction=True)
def test_a_verdict_is_an_event_of_the_tenant(alice, intruder, worker):
    shown = submit(alice)
    complete(claim(worker), outputs={"findings": 3})
    record = replay(alice, shown)
    complete(claim(worker), outputs={"findings": 4})
    verdict(alice, record)
    wait_for_older_transactions()
    (event,) = ok(alice.get("/api/events?eventType=replay.diverged"))["results"]
    facts = event["payload"]["details"]["after"]
    assert (facts["jobId"], facts["replayOf"]) == (record["jobId"], shown["jobId"])
    assert facts["difference"] == {"path": "/outputs/outputs/findings", "expected": 3, "found": 4}
    assert ok(intruder.get("/api/events?eventType=replay.diverged"))["results"] == []


class TestManifests:
    def test_it_is_canonical_and_has_inputs_environment_and_outputs(self, alice, ended):
        response = alice.get(path_of(ended, "manifest"))
        manifest = ok(response)
        assert response.content == rfc8785.dumps(manifest)
        assert manifest["inputs"] == {
            "payloadDigest": ended["payloadDigest"], "cursors": CURSORS, "timeoutSeconds": ended["timeoutSeconds"],
        }  # fmt: skip
        assert manifest["outputs"]["outputs"] == {"findings": 3}
        assert manifest["environment"]["workerId"].startswith("wrk_")

    def test_it_is_signed_when_that_is_requested(self, alice, ended, settings, tmp_path):
        settings.SIGNING_KEY_DIR = tmp_path
        plain = alice.get(path_of(ended, "manifest"))
        envelope = ok(alice.get(path_of(ended, "manifest") + "?signed=true"))
        assert verify(envelope, public_keys(), payload_type=MANIFEST_TYPE) == plain.content
        assert json.loads(plain.content)["jobType"] == "scan"

    def test_of_a_job_that_has_not_ended_there_is_none(self, alice):
        shown = submit(alice)
        refused(lambda: alice.get(path_of(shown, "manifest")), 409, "not_final")
        assert row_of(shown).state == "queued"

    def test_another_parameter_is_refused(self, alice, ended):
        for query in ("?signed=1", "?format=json"):
            refused(lambda query=query: alice.get(path_of(ended, "manifest") + query), 400, "invalid_query")
