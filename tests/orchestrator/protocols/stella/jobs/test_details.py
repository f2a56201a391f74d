"""`GET /api/jobs/{id}`, `POST /api/jobs/{id}/cancel`."""

import pytest

from orchestrator.services import cancellation
from runtime_jobs.identifiers import uuid_of
from runtime_jobs.models import IdempotencyKey
from tests.api_client import Caller, refused
from tests.factories import api_token
from tests.orchestrator.protocols.stella.graph.documents import data
from tests.orchestrator.protocols.stella.requests import (
    MISSING,
    SCAN,
    claim,
    complete,
    fail,
    listed,
    ok,
    row_of,
    submit,
)

pytestmark = pytest.mark.django_db
OUTCOME = {
    "outputs": {"findings": 3},
    "cursors": {"advisory": "cursor-def"},
    "verdict": "pass",
    "environment": {"engine": "trivy", "versions": {"db": "2"}, "digests": {"trivy": "sha256:" + "0" * 64}},
}


def read(caller, shown):
    return ok(caller.get(f"/api/jobs/{shown['jobId']}"))


def cancel(caller, shown, **body):
    return caller.post(f"/api/jobs/{shown['jobId']}/cancel", body)


class TestDetails:
    def test_a_waiting_job_says_why(self, alice):
        found = read(alice, submit(alice))
        assert (found["status"], found["queuePosition"]) == ("queued", 1)
        assert found["pendingReason"]["code"] == "no_matching_worker"
        assert found["payload"] == SCAN["payload"]

    def test_dependencies_and_dependents(self, alice):
        first = submit(alice)
        second = submit(alice, dependencies=[first["jobId"]])
        assert read(alice, first)["dependents"] == [second["jobId"]]
        found = read(alice, second)
        assert found["dependencies"] == [first["jobId"]]
        assert found["pendingReason"]["details"] == {"dependsOn": [first["jobId"]]}
        assert first["jobId"] in found["pendingReason"]["message"]
        assert "rtj_" not in str(found)

    def test_its_idempotency_key_is_read_and_searched(self, alice, intruder, organization, worker):
        """The key of the submit, by the header or the body, for everybody who sees the job, until it expires."""
        job = submit(alice, idempotencyKey=" scan-1")
        assert submit(alice, idempotencyKey=" scan-1") == job
        by_header = ok(alice.post("/api/jobs", SCAN, **{"Idempotency-Key": "scan-2"}), 201)
        foreign = submit(intruder, idempotencyKey=" scan-1")
        without = submit(alice)
        fail(claim(worker), "worker_shutdown")
        assert read(alice, job)["attempt"] == 2, "a later attempt keeps the key of the first"
        colleague = Caller(api_token(organization))
        for caller in (alice, colleague):
            assert [read(caller, shown)["idempotencyKey"] for shown in (job, by_header, without)] == [
                " scan-1",
                "scan-2",
                None,
            ]
            assert listed(caller, "?idempotencyKey=%20scan-1&status=queued") == [job["jobId"]]
            query = "query($key: String, $id: ID!) { jobs(first: 9, idempotencyKey: $key) { results { jobId } }"
            found = data(caller, query + " job(jobId: $id) { idempotencyKey } }", key="scan-2", id=by_header["jobId"])
            assert found == {"jobs": {"results": [{"jobId": by_header["jobId"]}]}, "job": {"idempotencyKey": "scan-2"}}
        assert (job["idempotencyKey"], by_header["idempotencyKey"], without["idempotencyKey"]) == (
            " scan-1",
            "scan-2",
            None,
        )
        assert listed(intruder, "?idempotencyKey=%20scan-1") == [foreign["jobId"]]
        assert listed(intruder, "?idempotencyKey=scan-2") == listed(alice, "?idempotencyKey=scan") == []
        IdempotencyKey.objects.all().delete()  # as retention does
        assert (read(alice, job)["idempotencyKey"], listed(alice, "?idempotencyKey=scan-2")) == (None, [])

    def test_all_attempts_with_their_workers(self, alice, worker):
        shown = submit(alice)
        fail(claim(worker), "worker_shutdown")
        found = read(alice, shown)
        first, second = found["attempts"]
        assert (first["status"], first["workerId"], first["failure"]["reason"]) == (
            "failed",
            worker.worker_id,
            "worker_shutdown",
        )
        assert (second["status"], second["workerId"]) == ("queued", None)
        assert first["attemptId"] == shown["jobId"] == found["jobId"]
        refused(lambda: alice.get(f"/api/jobs/{second['attemptId']}"), 404, "not_found")

    def test_what_a_worker_reports(self, alice, worker):
        shown = submit(alice)
        found = claim(worker)
        path = f"/v1/runtime/leases/{found.lease.lease_ulid}/complete"
        body = {"result": {"status": "succeeded", "exit_code": 0, **OUTCOME}}
        ok(Caller(worker.token).post(path, body))
        assert read(alice, shown)["result"] == {"exitCode": 0} | OUTCOME
        ok(Caller(worker.token).post(path, body))
        other = {"result": body["result"] | {"verdict": "fail"}}
        refused(lambda: Caller(worker.token).post(path, other), 409, "conflict")

    @pytest.mark.parametrize(
        "changes",
        [
            {"verdict": ""},
            {"outputs": []},
            {"outputs": {"x": 2**60}},
            {"cursors": {"a": 1}},
            {"environment": {"digests": {"a": "md5"}}},
            {"environment": {"host": "x"}},
        ],
    )
    def test_a_wrong_report_changes_nothing(self, alice, worker, changes):
        submit(alice)
        path = f"/v1/runtime/leases/{claim(worker).lease.lease_ulid}/complete"
        body = {"result": {"status": "succeeded"} | changes}
        response = Caller(worker.token).post(path, body)
        assert response.status_code == 400

    def test_a_failed_job_keeps_what_it_produced(self, alice, worker):
        shown = submit(alice)
        body = {"result": {"status": "failed", "reason": "command_failed", "exit_code": 2, "verdict": "fail"}}
        ok(Caller(worker.token).post(f"/v1/runtime/leases/{claim(worker).lease.lease_ulid}/fail", body))
        found = read(alice, shown)
        assert (found["status"], found["result"]["verdict"], found["failure"]["class"]) == ("failed", "fail", "job")


class TestCancel:
    def test_a_waiting_job_ends_at_once(self, alice):
        shown = submit(alice)
        assert ok(cancel(alice, shown, reason="superseded"))["status"] == "canceled"
        assert ok(cancel(alice, shown))["status"] == "canceled"
        assert read(alice, shown)["failure"] == {"reason": "requested", "class": None, "message": "superseded"}

    def test_a_running_job_is_requested_to_stop(self, alice, worker):
        shown = submit(alice)
        claim(worker)
        found = ok(cancel(alice, shown), 202)
        assert (found["status"], found["cancelRequested"]) == ("running", True)
        assert ok(cancel(alice, shown), 202)["cancelRequested"] is True

    def test_a_job_that_has_ended_stays(self, alice, worker):
        shown = submit(alice)
        complete(claim(worker))
        found = refused(lambda: cancel(alice, shown), 409, "already_final")
        assert found["job_status"] == "completed"

    def test_it_applies_to_the_newest_attempt(self, alice, worker):
        shown = submit(alice)
        fail(claim(worker), "worker_shutdown")
        assert ok(cancel(alice, shown))["attempt"] == 2
        assert row_of(shown).state == "canceled"

    def test_it_follows_an_attempt_that_fails_meanwhile(self, alice, worker, monkeypatch):
        shown, found, act = submit(alice), claim(worker), cancellation.cancel

        def after_the_failure(**arguments):
            if row_of(shown).attempt == 1:
                fail(found, "worker_shutdown")
            return act(**arguments)

        monkeypatch.setattr(cancellation, "cancel", after_the_failure)
        assert ok(cancel(alice, shown))["attempt"] == 2

    def test_anothers_job_is_not_there(self, alice, intruder):
        shown = submit(alice)
        found, missing = (
            refused(lambda name=name: cancel(intruder, {"jobId": name}), 404, "not_found")
            for name in (shown["jobId"], MISSING)
        )
        assert {**found, "request_id": ""} == {**missing, "request_id": ""}

    def test_the_reason_is_bounded(self, alice):
        shown = submit(alice)
        refused(lambda: cancel(alice, shown, reason="x" * 501), 400, "invalid")
        refused(lambda: cancel(alice, shown, why="x"), 400, "unknown_field")


READ, WRITE, OPERATE = "orch:read", "jobs:write", "orch:operate"
CALLS = [
    ("GET", "/api/jobs", None, READ),
    ("GET", "/api/jobs/<id>", None, READ),
    ("GET", "/api/jobs/<id>/graph", None, READ),
    ("GET", "/api/jobs/<id>/attestation", None, READ),
    ("POST", "/api/jobs", SCAN, WRITE),
    ("POST", "/api/jobs/<id>/cancel", {}, OPERATE),
    ("GET", "/runs/<id>/logs", None, READ),
    ("GET", "/runs/<id>/artifacts", None, READ),
    ("GET", "/runs/<id>/artifacts/report.json", None, READ),
]


@pytest.mark.parametrize("scope", ["jobs:read", WRITE, READ, OPERATE, "orch:quota", "secrets:write"])
@pytest.mark.parametrize(("method", "path", "body", "needed"), CALLS, ids=[f"{call[0]} {call[1]}" for call in CALLS])
def test_each_call_needs_its_scope(alice, organization, method, path, body, needed, scope):
    path = path.replace("<id>", submit(alice)["jobId"])
    caller = Caller(api_token(organization, (scope,)))
    response = caller.call(method, path, body)
    if scope == needed:
        assert response.status_code not in {401, 403}, response.content
    else:
        found = response.json()
        assert (response.status_code, found["code"], found["scope"]) == (403, "insufficient_scope", needed)


@pytest.mark.parametrize(("method", "path", "body", "_scope"), CALLS, ids=[f"{call[0]} {call[1]}" for call in CALLS])
def test_without_a_token_and_with_that_of_a_worker(alice, worker, method, path, body, _scope):
    path = path.replace("<id>", submit(alice)["jobId"])
    refused(lambda: Caller().call(method, path, body), 401, "unauthenticated")
    refused(lambda: Caller(worker.token).call(method, path, body), 403, "wrong_principal")


def test_a_uuid_and_a_ulid_are_the_same_bits(alice):
    shown = submit(alice)
    assert str(uuid_of(row_of(shown).job_ulid)) == shown["jobId"]
