"""Connections that wait, on the real server: they hear of work at once, hold no database connection meanwhile, and
leave nothing behind when their caller goes."""

import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests
from django.db import connection

from leases.models import Lease
from orchestrator import lifecycle
from orchestrator.sweeps import sweep
from runtime_jobs.models import Job
from runtime_jobs.states import JobState
from tests.factories import OrganizationFactory, ProjectFactory, WorkerFactory, api_token, claimed, submitted
from tests.orchestrator.conftest import after
from tests.serving import eventually, serving

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]
NAME = "waited-for"  # by which PostgreSQL knows the server's connections
POOL = 3  # connections that the server may have: fewer than there are callers


@pytest.fixture(scope="module")
def server(database_url, tmp_path_factory):
    url = f"{database_url}{'&' if '?' in database_url else '?'}application_name={NAME}"
    with serving(tmp_path_factory.mktemp("server"), DATABASE_URL=url, DATABASE_POOL_MAX=str(POOL)) as found:
        yield found


@pytest.fixture
def project():
    return ProjectFactory(organization=OrganizationFactory(slug="sandtrace"))


def claim(server, worker, wait_seconds, **more):
    body = {"worker_id": worker.worker_id, "wait_seconds": wait_seconds, "acknowledge": True} | more
    headers = {"Authorization": f"Bearer {worker.token}"}
    return requests.post(f"{server.url}/v1/runtime/leases", json=body, headers=headers, timeout=60)


def connections_of_server() -> list[str]:
    """The state of each connection that the server has."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT state FROM pg_stat_activity WHERE application_name = %s", [NAME])
        return [state for (state,) in cursor.fetchall()]


def test_a_waiting_claim_is_answered_as_soon_as_there_is_work(server, project):
    worker = WorkerFactory()
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(claim, server, worker, 30)
        eventually(lambda: seen(worker))
        time.sleep(0.6)  # it has looked and found nothing more than once
        assert not waiting.done()
        job, then = submitted(project), time.monotonic()
        answer = waiting.result(timeout=10)
    assert time.monotonic() - then < 2
    assert (answer.status_code, answer.json()["job"]["job_id"]) == (201, job.job_ulid)


def seen(worker):
    worker.refresh_from_db()
    return worker.last_seen_at


def test_a_claim_waits_as_long_as_it_said_and_no_longer(server):
    worker, then = WorkerFactory(), time.monotonic()
    assert claim(server, worker, 1.5).status_code == 204
    assert 1.4 < time.monotonic() - then < 4
    then = time.monotonic()
    assert claim(server, worker, 0).status_code == 204
    assert time.monotonic() - then < 1.4


def test_what_is_refused_does_not_wait(server):
    then = time.monotonic()
    worker = WorkerFactory()
    assert claim(server, worker, "30").status_code == 400
    assert claim(server, worker, 30, pool="gpu").status_code == 403
    worker.token = "rto_worker_" + "x" * 43
    assert claim(server, worker, 30).status_code == 401
    assert time.monotonic() - then < 10


def test_twenty_that_wait_hold_no_connection_and_leave_the_server_to_others(server, project):
    workers = [WorkerFactory() for _ in range(20)]
    token = {"Authorization": f"Bearer {api_token(project.organization)}"}
    with ThreadPoolExecutor(20) as threads:
        waiting = [threads.submit(claim, server, worker, 6) for worker in workers]
        eventually(lambda: all(seen(worker) for worker in workers))
        until = time.monotonic() + 2
        while time.monotonic() < until:
            assert len(connections_of_server()) <= POOL
            then = time.monotonic()
            answer = requests.get(f"{server.url}/v1/runtime/jobs", headers=token, timeout=10)
            assert (answer.status_code, time.monotonic() - then < 2) == (200, True)
        assert not any(call.done() for call in waiting)
        jobs = {submitted(project).job_ulid for _ in range(20)}
        answers = [call.result(timeout=30) for call in waiting]
    assert {answer.status_code for answer in answers} == {201}
    assert {answer.json()["job"]["job_id"] for answer in answers} == jobs


def test_a_caller_that_goes_takes_its_claim_along(server, project):
    workers = [WorkerFactory() for _ in range(5)]
    for worker in workers:
        body = json.dumps({"worker_id": worker.worker_id, "wait_seconds": 60}).encode()
        with server.connect() as gone:
            gone.sendall(
                b"POST /v1/runtime/leases HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Authorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s" % (worker.token.encode(), len(body), body)
            )
            eventually(lambda worker=worker: seen(worker))
    eventually(lambda: server.log().count(" 499 ") >= 5)
    job = submitted(project)
    time.sleep(1)
    job.refresh_from_db()
    assert job.state == JobState.QUEUED
    assert Lease.objects.count() == 0


def test_a_lease_for_a_caller_that_had_gone_already_goes_back_by_the_clock(project):
    """What its moment of going cannot be told apart from: the acknowledgement that never comes."""
    job = submitted(project)
    lease = claimed(acknowledge=True).lease
    assert sweep(now=after(lease.leased_at, 29)) == 0
    assert sweep(now=after(lease.leased_at, 30)) == 1
    job.refresh_from_db()
    assert (job.state, job.requeue_count, Job.objects.count()) == (JobState.QUEUED, 1, 1)


def test_logs_are_followed_while_the_job_runs_and_end_with_it(server, project):
    worker = WorkerFactory()
    submitted(project)
    lease = claimed(worker).lease
    token = {"Authorization": f"Bearer {api_token(project.organization)}"}
    say = {"lease_ulid": lease.lease_ulid, "worker": worker}
    lifecycle.append_log(**say, seq=0, chunk=b"before\n")
    path = f"{server.url}/v1/runtime/jobs/{lease.job_id}/logs"
    with requests.get(f"{path}?follow=1", headers=token, stream=True, timeout=20) as followed:
        assert followed.headers["Content-Type"] == "text/plain; charset=utf-8"
        pieces = followed.iter_content(None)
        assert next(pieces) == b"before\n"
        for seq, text in enumerate([b"one\n", b"\xff\x00two\n"], start=1):
            lifecycle.append_log(**say, seq=seq, chunk=text)
            then = time.monotonic()
            assert next(pieces) == text
            assert time.monotonic() - then < 3
        lifecycle.append_log(**say, seq=3, chunk=b"last\n")
        lifecycle.fail(**say, reason="worker_error")
        assert b"".join(pieces) == b"last\n"
    assert requests.get(path, headers=token, timeout=20).content == b"before\none\n\xff\x00two\nlast\n"


def test_twenty_that_follow_hold_no_connection(server, project):
    submitted(project)
    lease = claimed().lease
    token = {"Authorization": f"Bearer {api_token(project.organization)}"}
    path = f"{server.url}/v1/runtime/jobs/{lease.job_id}/logs?follow=1"
    with ThreadPoolExecutor(20) as threads:
        following = [threads.submit(lambda: requests.get(path, headers=token, timeout=30).content) for _ in range(20)]
        eventually(lambda: len(server.log().split("/logs 200")) > 20)
        time.sleep(1)
        assert len(connections_of_server()) <= POOL
        lifecycle.append_log(lease_ulid=lease.lease_ulid, worker=lease.worker, seq=0, chunk=b"x")
        lifecycle.fail(lease_ulid=lease.lease_ulid, worker=lease.worker, reason="worker_error")
        assert {call.result(timeout=20) for call in following} == {b"x"}


def test_nothing_of_all_this_made_the_server_complain(server):
    text = server.log()
    assert "Traceback" not in text
    assert "Warning" not in text
    assert "database unavailable" not in text
