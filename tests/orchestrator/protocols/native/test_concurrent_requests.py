"""Concurrent requests on real connections: one effect, and a response to each."""

import functools
import threading

import pytest
from django.db import connection

from leases.models import Lease
from orchestrator.ingest.models import Run
from runtime_jobs.models import IdempotencyKey, Job, JobEvent, LogChunk
from tests.api_client import Caller
from tests.factories import (
    SUBMIT_BODY,
    OrganizationFactory,
    ProjectFactory,
    WorkerFactory,
    api_token,
    claimed,
    submitted,
)

pytestmark = pytest.mark.django_db(transaction=True)
JOBS, LEASES = "/v1/runtime/jobs", "/v1/runtime/leases"


def together(*calls):
    """Make all calls at once; answer the responses in the calls' order."""
    barrier, answers = threading.Barrier(len(calls)), [None] * len(calls)

    def act(place):
        try:
            connection.ensure_connection()
            barrier.wait(timeout=60)
            answers[place] = calls[place]()
        finally:
            connection.close()

    threads = [threading.Thread(target=act, args=[place]) for place in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    return answers


@pytest.fixture
def project():
    return ProjectFactory(organization=OrganizationFactory(slug="sandtrace"))


def test_two_submits_with_one_key_make_one_job(project):
    token = api_token(project.organization)
    for round_ in range(5):
        key = {"Idempotency-Key": f"key-{round_}"}
        answers = together(*[functools.partial(Caller(token).post, JOBS, SUBMIT_BODY, **key) for _ in range(4)])
        assert {answer.status_code for answer in answers} == {201}
        assert len({answer.json()["job_id"] for answer in answers}) == 1
        assert sorted("Idempotency-Replayed" in answer for answer in answers) == [False, True, True, True]
    assert Job.objects.count() == IdempotencyKey.objects.count() == JobEvent.objects.count() == 5


def test_two_submits_with_one_key_and_different_bodies_make_one_job_and_one_conflict(project):
    token = api_token(project.organization)
    key = {"Idempotency-Key": "key"}
    other = SUBMIT_BODY | {"trigger": {"kind": "manual"}}
    answers = together(*[lambda body=body: Caller(token).post(JOBS, body, **key) for body in (SUBMIT_BODY, other)])
    assert sorted(answer.status_code for answer in answers) == [201, 409]
    assert {answer.json().get("code") for answer in answers} == {None, "idempotency_conflict"}
    assert Job.objects.count() == 1


def test_one_claim_sent_twice_at_once_gets_one_lease(project):
    worker = WorkerFactory()
    for _ in range(3):
        submitted(project)
    body, key = {"worker_id": worker.worker_id}, {"Idempotency-Key": "claim"}
    answers = together(*[lambda: Caller(worker.token).post(LEASES, body, **key) for _ in range(4)])
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.json()["lease_id"] for answer in answers}) == 1
    assert Lease.objects.count() == 1


def test_a_flood_of_claims_takes_no_more_than_the_capacity(project):
    worker = WorkerFactory(capacity=2)
    for _ in range(6):
        submitted(project)
    body = {"worker_id": worker.worker_id}
    answers = together(*[lambda: Caller(worker.token).post(LEASES, body) for _ in range(6)])
    assert sorted(answer.status_code for answer in answers) == [201, 201, 204, 204, 204, 204]


def run_of(job_id, worker, name):
    return Run.objects.create(
        run_id=name, job_id=job_id, org_slug="sandtrace", project_slug="web", worker_id=worker.worker_id, payload={},
        payload_sha256="0" * 64,
    )  # fmt: skip


@pytest.mark.parametrize("word", ["complete", "fail"])
def test_a_final_message_sent_five_times_at_once_counts_once(project, word):
    worker = WorkerFactory()
    submitted(project)
    lease = claimed(worker).lease
    run_of(lease.job_id, worker, "run_1")
    result = {"status": "uploaded", "ingest_run_id": "run_1"}
    body = {"result": result if word == "complete" else {"status": "failed", "reason": "worker_error"}}
    path = f"{LEASES}/{lease.lease_ulid}/{word}"
    answers = together(*[lambda: Caller(worker.token).post(path, body) for _ in range(5)])
    assert {(answer.status_code, answer.content) for answer in answers} == {(200, answers[0].content)}
    assert JobEvent.objects.filter(event_type__in=["job.completed", "job.failed"]).count() == 1


def test_two_jobs_that_claim_one_run_at_once_do_not_share_it(project, settings):
    settings.INGEST_URL = "https://ingest.example"  # then the server cannot know to which job a run belongs
    worker = WorkerFactory()
    for round_ in range(3):
        leases = []
        for _ in range(2):
            submitted(project)
            leases.append(claimed(worker).lease)
        body = {"result": {"status": "uploaded", "ingest_run_id": f"run_{round_}"}}
        paths = [f"{LEASES}/{lease.lease_ulid}/complete" for lease in leases]
        answers = together(*[functools.partial(Caller(worker.token).post, path, body) for path in paths])
        assert sorted(answer.status_code for answer in answers) == [200, 409]
        assert {answer.json().get("code") for answer in answers} == {None, "conflict"}


def test_a_chunk_sent_four_times_at_once_is_kept_once(project):
    worker = WorkerFactory()
    submitted(project)
    lease = claimed(worker).lease
    for seq in range(3):
        body = {"seq": seq, "chunk": "eA=="}
        path = f"{LEASES}/{lease.lease_ulid}/logs"
        answers = together(*[functools.partial(Caller(worker.token).post, path, body) for _ in range(4)])
        assert [(answer.status_code, answer.json()["next_seq"]) for answer in answers] == [(200, seq + 1)] * 4
    assert LogChunk.objects.count() == 3


def test_two_retries_with_one_key_make_one_row(project):
    job = submitted(project)
    token = api_token(project.organization)
    Caller(token).post(f"{JOBS}/{job.job_ulid}/cancel")
    body, key = {"reason": "again"}, {"Idempotency-Key": "key"}
    answers = together(*[lambda: Caller(token).post(f"{JOBS}/{job.job_ulid}/retry", body, **key) for _ in range(3)])
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.json()["job_id"] for answer in answers}) == 1
    assert Job.objects.count() == 2
