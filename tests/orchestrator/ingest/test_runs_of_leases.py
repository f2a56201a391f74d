"""A run is stored only under its uploader's live lease, and completes only that lease."""

import pytest
from django.db import connection

from orchestrator.audit.runner import run_audit
from orchestrator.ingest.models import Run
from orchestrator.services import expiry, job_end, worker_state
from runtime_jobs.models import Job
from tests.api_client import Caller, refused
from tests.factories import OPERATOR, WorkerFactory, submitted
from tests.orchestrator.ingest.conftest import payload_for
from workers.report.report import encoded

pytestmark = pytest.mark.django_db
PATH, LEASES = "/v1/ingest/run", "/v1/runtime/leases"


def claim_of(caller, worker):
    answer = caller.post(LEASES, {"worker_id": worker.worker_id})
    assert answer.status_code == 201, answer.content
    return answer.json()


def completion(run_id):
    return {"result": {"status": "uploaded", "ingest_run_id": run_id}}


@pytest.fixture
def mallory(db):
    return WorkerFactory()


@pytest.fixture
def queued(organization):
    return submitted(organization.projects.get())


def test_a_worker_that_released_the_job_plants_no_result(queued, mallory, worker, wendy):
    """The attack: claim, release, upload a forgery; the next holder's upload was answered with the forged run."""
    attacker = Caller(mallory.token)
    lease = claim_of(attacker, mallory)
    assert attacker.post(f"{LEASES}/{lease['lease_id']}/release").status_code == 200
    forgery = payload_for(queued, mallory, exit_code=0)
    document = refused(lambda: attacker.post(PATH, encoded(forgery)), 409, "stale_lease")
    assert document["error"]["code"] == "stale_lease"

    lease = claim_of(wendy, worker)
    honest = payload_for(queued, worker, exit_code=5)
    answer = wendy.post(PATH, encoded(honest))
    assert (answer.status_code, answer.json()["created"]) == (201, True)
    done = wendy.post(f"{LEASES}/{lease['lease_id']}/complete", completion(answer.json()["run_id"]))
    assert done.status_code == 200
    run = Run.objects.get(run_id=Job.objects.get(pk=queued.pk).ingest_run_id)
    assert (run.worker_id, run.fence, run.payload["outcome"]["exit_code"]) == (worker.worker_id, 2, 5)
    assert run_audit() == []


def test_a_run_uploaded_before_the_release_is_not_the_next_holders(queued, mallory, worker, wendy):
    """The same attack the other way round: the forgery is uploaded while the lease is still live."""
    attacker = Caller(mallory.token)
    lease = claim_of(attacker, mallory)
    forged = attacker.post(PATH, encoded(payload_for(queued, mallory, exit_code=0))).json()["run_id"]
    assert attacker.post(f"{LEASES}/{lease['lease_id']}/release").status_code == 200

    lease = claim_of(wendy, worker)
    complete = f"{LEASES}/{lease['lease_id']}/complete"
    refused(lambda: wendy.post(complete, completion(forged)), 409, "run_mismatch")
    many = {"leases": [{"lease_id": lease["lease_id"], **completion(forged)}]}
    [answer] = wendy.post(f"{LEASES}/complete", many).json()["results"]
    assert (answer["status"], answer["error"]["code"]) == (409, "run_mismatch")

    answer = wendy.post(PATH, encoded(payload_for(queued, worker, exit_code=5)))
    assert answer.status_code == 201
    assert answer.json()["run_id"] != forged
    assert wendy.post(complete, completion(answer.json()["run_id"])).status_code == 200
    assert run_audit() == []


def test_a_worker_that_holds_the_job_again_uploads_it_again(queued, worker, wendy):
    """One worker, two leases: the run of the first fence does not complete the second."""
    first = claim_of(wendy, worker)
    run_id = wendy.post(PATH, encoded(payload_for(queued, worker))).json()["run_id"]
    wendy.post(f"{LEASES}/{first['lease_id']}/release")
    second = claim_of(wendy, worker)
    complete = f"{LEASES}/{second['lease_id']}/complete"
    refused(lambda: wendy.post(complete, completion(run_id)), 409, "run_mismatch")
    again = wendy.post(PATH, encoded(payload_for(queued, worker)))
    assert (again.status_code, Run.objects.count()) == (201, 2)
    assert wendy.post(complete, completion(again.json()["run_id"])).status_code == 200


@pytest.mark.parametrize("end", ["expired", "revoked", "failed"])
def test_no_ended_lease_opens_ingest(job, worker, wendy, payload, end):
    lease = job.leases.get()
    if end == "expired":
        expiry.expire(job_ulid=job.job_ulid, now=lease.expires_at)
    elif end == "revoked":
        worker_state.revoke(job_ulid=job.job_ulid, actor=OPERATOR, reason="x")
    else:
        wendy.post(f"{LEASES}/{lease.lease_ulid}/fail", {"result": {"status": "failed", "reason": "worker_error"}})
    refused(lambda: wendy.post(PATH, encoded(payload)), 409, "stale_lease")


def test_a_lease_past_its_expiry_opens_nothing_before_any_sweep(job, wendy, payload):
    with connection.cursor() as cursor:
        cursor.execute("UPDATE runtime_worker_leases SET expires_at = clock_timestamp()")
    document = refused(lambda: wendy.post(PATH, encoded(payload)), 409, "stale_lease")
    assert document["reason"] == "lease_expired"


def test_a_repeat_with_the_same_bytes_is_answered_after_the_end(job, wendy, payload):
    """A worker that was killed after its upload or its completion sends both again after its restart."""
    body, lease = encoded(payload), job.leases.get()
    first = wendy.post(PATH, body).json()
    complete = f"{LEASES}/{lease.lease_ulid}/complete"
    assert wendy.post(complete, completion(first["run_id"])).status_code == 200
    again = wendy.post(PATH, body)
    assert (again.status_code, again.json()) == (200, first | {"created": False})
    assert wendy.post(complete, completion(first["run_id"])).status_code == 200
    other = payload_for(job, job.leases.get().worker, exit_code=0)
    refused(lambda: wendy.post(PATH, encoded(other)), 409, "stale_lease")


def test_the_fence_may_be_named(queued, worker, wendy):
    """A result that an earlier lease left in the spool is not stored as that of the present lease."""
    first = claim_of(wendy, worker)
    wendy.post(f"{LEASES}/{first['lease_id']}/release")
    claim_of(wendy, worker)
    body = encoded(payload_for(queued, worker))
    refused(lambda: wendy.post(PATH, body, **{"Lease-Fence": "1"}), 409, "stale_lease")
    refused(lambda: wendy.post(PATH, body, **{"Lease-Fence": "3"}), 404, "not_found")
    refused(lambda: wendy.post(PATH, body, **{"Lease-Fence": "two"}), 400, "invalid")
    assert wendy.post(PATH, body, **{"Lease-Fence": "2"}).status_code == 201


class TestRunsOfTheReleaseBefore:
    """Rows that a process without fences stored."""

    def stored(self, job, worker, payload, **changes):
        row = {
            "run_id": "run_old", "job_id": job.job_ulid, "org_slug": job.org_slug, "project_slug": job.project_slug,
            "worker_id": worker.worker_id, "payload": payload, "payload_sha256": payload["payload_sha256"],
        }  # fmt: skip
        return Run.objects.create(**row | changes)

    def test_an_upload_during_the_lease_completes_it(self, job, worker, wendy, payload):
        self.stored(job, worker, payload)
        again = wendy.post(PATH, encoded(payload))
        assert (again.status_code, again.json()["run_id"]) == (200, "run_old")
        complete = f"{LEASES}/{job.leases.get().lease_ulid}/complete"
        assert wendy.post(complete, completion("run_old")).status_code == 200
        assert run_audit() == []

    def test_an_upload_by_another_worker_or_before_the_lease_does_not(self, job, worker, wendy, mallory, payload):
        complete = f"{LEASES}/{job.leases.get().lease_ulid}/complete"
        run = self.stored(job, mallory, payload)
        refused(lambda: wendy.post(complete, completion("run_old")), 409, "run_mismatch")
        early = job.leases.get().leased_at.replace(year=2020)
        Run.objects.filter(pk=run.pk).update(worker_id=worker.worker_id, received_at=early)
        refused(lambda: wendy.post(complete, completion("run_old")), 409, "run_mismatch")
        assert wendy.post(PATH, encoded(payload)).status_code == 201

    def test_the_audit_names_a_job_whose_run_is_another_workers(self, job, worker, wendy, mallory, payload):
        self.stored(job, mallory, payload)
        job_end.complete(lease_ulid=job.leases.get().lease_ulid, worker=worker, ingest_run_id="run_old")
        [finding] = run_audit()
        assert (finding.code, finding.broken_for) == ("I18", (job.job_ulid,))
        Run.objects.all().delete()


def test_two_jobs_of_one_worker_do_not_share_a_run(organization, worker, wendy):
    jobs = [submitted(organization.projects.get()) for _ in range(2)]
    leases = [claim_of(wendy, worker) for _ in jobs]
    run_id = wendy.post(PATH, encoded(payload_for(jobs[0], worker))).json()["run_id"]
    refused(lambda: wendy.post(f"{LEASES}/{leases[1]['lease_id']}/complete", completion(run_id)), 400, "invalid")
