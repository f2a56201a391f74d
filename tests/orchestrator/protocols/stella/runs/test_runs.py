"""`/runs/{runId}/artifacts` and `/heartbeat`, and which addresses below `/runs/` are for programs."""

from datetime import timedelta
from urllib.parse import urlsplit

import pytest
from django.test import Client
from django.utils import timezone

from orchestrator.services import job_end
from runtime_jobs.models import Job
from tests.api_client import Caller, problem_of, refused
from tests.factories import WorkerFactory
from tests.orchestrator.artifacts.conftest import FOLDER, use
from tests.orchestrator.protocols.stella.requests import MISSING, claim, complete, fail, ok, row_of, submit
from tests.tampering import overwrite_jobs

pytestmark = pytest.mark.django_db
CONTENT = b'{"findings": 3}'


@pytest.fixture(autouse=True)
def folder(settings, tmp_path):
    use(settings, FOLDER, location=str(tmp_path / "artifacts"))


def upload(worker, found, name, content=CONTENT):
    body = {"name": name, "size_bytes": len(content)}
    announced = ok(Caller(worker.token).post(f"/v1/runtime/leases/{found.lease.lease_ulid}/artifacts", body), 201)
    sent = Client().put(urlsplit(announced["upload_url"]).path, content, content_type="application/octet-stream")
    assert sent.status_code == 200


def held_by(worker):
    """A new claim, whose worker has its token."""
    found = claim(worker)
    found.lease.worker = worker
    return found


def artifacts(caller, shown):
    return ok(caller.get(f"/runs/{shown['jobId']}/artifacts"))["results"]


class TestArtifacts:
    def test_they_are_listed_and_downloaded(self, alice, worker):
        shown = submit(alice)
        found = claim(worker)
        assert artifacts(alice, shown) == []
        upload(worker, found, "reports/scan results.json")
        (artifact,) = artifacts(alice, shown)
        assert (artifact["name"], artifact["sizeBytes"], artifact["attempt"]) == ("reports/scan results.json", 15, 1)
        download = alice.get(artifact["path"])
        assert download.status_code == 302
        content = Client().get(urlsplit(download["Location"]).path)
        assert b"".join(content.streaming_content if content.streaming else [content.content]) == CONTENT

    def test_of_two_attempts_the_newest_has_the_name(self, alice, worker):
        shown = submit(alice)
        for content in (b"first", b"second one"):
            found = claim(worker)
            upload(worker, found, "scan.json", content)
            fail(found, "worker_shutdown")
        assert [(row["attempt"], row["sizeBytes"]) for row in artifacts(alice, shown)] == [(2, 10), (1, 5)]
        download = alice.get(f"/runs/{shown['jobId']}/artifacts/scan.json")
        content = Client().get(urlsplit(download["Location"]).path)
        assert b"".join(content.streaming_content if content.streaming else [content.content]) == b"second one"

    def test_a_missing_name_and_a_foreign_run_are_not_there(self, alice, intruder, worker):
        shown = submit(alice)
        upload(worker, claim(worker), "scan.json")
        path = f"/runs/{shown['jobId']}/artifacts/scan.json"
        refused(lambda: alice.get(path + "x"), 404, "not_found")
        found = refused(lambda: intruder.get(path), 404, "not_found")
        missing = refused(lambda: intruder.get(path.replace(shown["jobId"], MISSING)), 404, "not_found")
        assert {**found, "request_id": ""} == {**missing, "request_id": ""}


class TestHeartbeat:
    def beat(self, found, shown, **body):
        worker = found.lease.worker
        return Caller(worker.token).post(
            f"/runs/{shown['jobId']}/heartbeat", {"leaseId": found.lease.lease_ulid} | body
        )

    def test_it_extends_the_lease_and_reports_a_cancel(self, alice, worker):
        shown = submit(alice)
        found = held_by(worker)
        first = ok(self.beat(found, shown, phase="executing", progress={"percent": 40, "currentStep": "scan"}))
        assert (first["runId"], first["status"], first["cancelRequested"]) == (shown["jobId"], "running", False)
        job = row_of(shown)
        assert (job.state, job.progress) == ("executing", {"percent": 40.0, "current_step": "scan"})
        shown_progress = ok(alice.get(f"/api/jobs/{shown['jobId']}"))["progress"]
        assert shown_progress == {"percent": 40.0, "currentStep": "scan"}  # the names that were sent
        alice.post(f"/api/jobs/{shown['jobId']}/cancel")
        second = ok(self.beat(found, shown))
        assert (second["cancelRequested"], second["cancelReason"]) == (True, "requested")
        assert second["leaseExpiresAt"] >= first["leaseExpiresAt"]
        assert found.lease.lease_ulid not in str((first, second))

    def test_at_the_time_limit_it_asks_the_worker_to_stop_and_its_stop_is_a_timeout(self, alice, worker, settings):
        """Heartbeats said nothing until the server ended the job, a minute after its limit."""
        settings.TIMEOUT_GRACE_SECONDS = 7  # of the other types
        shown = submit(alice, timeoutSeconds=5)
        found = held_by(worker)
        assert ok(self.beat(found, shown, phase="executing"))["cancelRequested"] is False
        began = timezone.now() - timedelta(seconds=6)
        overwrite_jobs(Job.objects.filter(pk=row_of(shown).pk), executing_at=began)
        reply = ok(self.beat(found, shown))
        assert (reply["cancelRequested"], reply["cancelReason"]) == (True, "timeout")
        assert 50 < reply["cancelDeadlineSeconds"] <= 59  # 5 s, and the grace of the type
        native = Caller(worker.token).post(f"/v1/runtime/leases/{found.lease.lease_ulid}/heartbeat", {}).json()
        assert (native["cancel_requested"], native["cancel_reason"]) == (True, "timeout")
        job = job_end.acknowledge_cancel(lease_ulid=found.lease.lease_ulid, worker=worker, message="stopped")
        assert (job.state, job.failure_reason) == ("failed", "timed_out")

    def test_only_the_holder_of_the_lease_extends_it(self, alice, worker):
        shown, other = submit(alice), submit(alice)
        found, lease = held_by(worker), held_by(worker).lease.lease_ulid
        stranger = Caller(WorkerFactory().token)
        path, missing = f"/runs/{shown['jobId']}/heartbeat", f"/runs/{MISSING}/heartbeat"
        own = {"leaseId": found.lease.lease_ulid}
        for call in (
            lambda: stranger.post(path, own),
            lambda: stranger.post(missing, own),
            lambda: self.beat(found, {"jobId": MISSING}),
            lambda: self.beat(found, other),
            lambda: self.beat(found, shown, leaseId=lease),
            lambda: self.beat(found, shown, leaseId="rtl_x"),
        ):
            assert refused(call, 409, "stale_lease")["reason"] == "unknown_lease"
        refused(lambda: alice.post(path, own), 403, "wrong_principal")
        refused(lambda: Caller().post(path, own), 401, "unauthenticated")

    def test_after_the_end_it_is_stale(self, alice, worker):
        shown = submit(alice)
        first = held_by(worker)
        complete(first)
        found = refused(lambda: self.beat(first, shown), 409, "stale_lease")
        assert (found["reason"], found["job_status"]) == ("lease_ended", "completed")

    def test_the_lease_of_an_earlier_attempt_is_stale(self, alice, worker):
        shown = submit(alice)
        first = held_by(worker)
        fail(first, "worker_shutdown")
        second = held_by(worker)
        refused(lambda: self.beat(first, shown), 409, "stale_lease")
        assert ok(self.beat(second, shown))["status"] == "running"

    def test_a_wrong_body_is_refused(self, alice, worker):
        shown = submit(alice)
        found = held_by(worker)
        refused(lambda: self.beat(found, shown, phase="running"), 400, "invalid")
        refused(lambda: self.beat(found, shown, progress={"percent": 101}), 400, "invalid")
        refused(lambda: self.beat(found, shown, lease="x"), 400, "unknown_field")
        unnamed = Caller(worker.token)
        refused(lambda: unnamed.post(f"/runs/{shown['jobId']}/heartbeat"), 400, "invalid")


class TestAddresses:
    """Pages and programs share a prefix. Which of them a path is for is decided by its route."""

    PROGRAMS = [f"/runs/{MISSING}/{part}" for part in ("logs", "artifacts", "artifacts/a/b.json", "heartbeat")]

    @pytest.mark.parametrize("path", [*PROGRAMS, "/runs/x/logs", "/runs/x/artifacts"])
    def test_a_program_gets_a_problem_document(self, path):
        response = Client().get(path, headers={"Accept": "text/html"})
        assert response.status_code in {401, 404, 405, 406}
        problem_of(response)

    @pytest.mark.parametrize("path", PROGRAMS)
    def test_a_token_in_plain_text_is_refused_and_not_redirected(self, path, settings):
        settings.SECURE_SSL_REDIRECT = True
        found = refused(lambda: Caller("rto_api_x").get(path), 403, "https_required")
        assert found["status"] == 403

    @pytest.mark.parametrize("path", ["/runs/", "/runs/run_a/", "/runs/logs/"])
    def test_a_page_stays_a_page(self, path):
        response = Client().get(path, headers={"Accept": "text/html"})
        assert (response.status_code, response["Location"].partition("?")[0]) == (302, "/login/")

    def test_answers_are_not_cached(self, alice):
        shown = submit(alice)
        assert alice.get(f"/runs/{shown['jobId']}/artifacts")["Cache-Control"] == "no-store"


def test_under_wsgi_no_log_is_followed(alice):
    shown = submit(alice)
    refused(lambda: alice.get(f"/runs/{shown['jobId']}/logs"), 501, "follow_unavailable")
