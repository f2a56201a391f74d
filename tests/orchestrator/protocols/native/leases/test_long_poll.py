"""Waiting claims on the real server: they find work at once, hold no database connection, and leave nothing behind."""

import json
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests
from django.db import connection

from leases.models import Lease
from orchestrator.core.cause import Cause
from orchestrator.maintenance.leases import sweep
from orchestrator.pubsub import hub
from orchestrator.services import job_end, worker_state
from orchestrator.step_logs import job_log_writes
from runtime_jobs.models import Job
from runtime_jobs.states import JobState
from tests.factories import OPERATOR, OrganizationFactory, ProjectFactory, WorkerFactory, api_token, claimed, submitted
from tests.live_server import eventually, serving
from tests.orchestrator.services.conftest import after
from workers.registry.models import WorkerState

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


def claim(server, worker, wait_seconds, headers=None, **more):
    body = {"worker_id": worker.worker_id, "wait_seconds": wait_seconds, "acknowledge": True} | more
    headers = {"Authorization": f"Bearer {worker.token}"} | (headers or {})
    return requests.post(f"{server.url}/v1/runtime/leases", json=body, headers=headers, timeout=60)


def connections_of_server(name=NAME) -> list[str]:
    """The state of each connection that the server has for its requests."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT state FROM pg_stat_activity WHERE application_name = %s", [name])
        return [state for (state,) in cursor.fetchall()]


def call(pool="shared-linux"):
    """Notify as the database does when work arrives in a pool."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify('lanes', %s)", [pool])


def number(server, name):
    """One of the server's own numbers."""
    lines = requests.get(f"{server.url}/metrics", timeout=10).text.splitlines()
    return next((float(line.split()[-1]) for line in lines if line.startswith(f"{name} ")), 0.0)


def looks(server, cause, outcome):
    return number(server, f'orchestrator_claim_looks_total{{cause="{cause}",outcome="{outcome}"}}')


def waiting_at(server, claims):
    eventually(lambda: number(server, "orchestrator_waiting_claims") == claims)


def test_a_waiting_claim_is_answered_as_soon_as_there_is_work(server, project):
    """Because the submit called: `next` and `polled` are other causes."""
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(claim, server, WorkerFactory(), 30)
        waiting_at(server, 1)
        eventually(lambda: number(server, "orchestrator_listener_up"))
        found, empty = looks(server, "notified", "work"), looks(server, "notified", "nothing")
        call()
        eventually(lambda: looks(server, "notified", "nothing") > empty)
        assert not waiting.done()
        job = submitted(project)
        answer = waiting.result(timeout=10)
    assert (answer.status_code, answer.json()["job"]["job_id"]) == (201, job.job_ulid)
    assert looks(server, "notified", "work") == found + 1


def test_of_two_that_wait_each_gets_the_job_that_comes_after_the_others(server, project):
    """The second job joins a lane that is not marked as empty yet, so it notifies no one.

    The second waiter had to attempt once the first had found work.
    """
    with ThreadPoolExecutor() as threads:
        waiting = [threads.submit(claim, server, WorkerFactory(), 30) for _ in range(2)]
        waiting_at(server, 2)
        polled = looks(server, "polled", "work")
        for left in (1, 0):
            submitted(project)
            eventually(lambda left=left: sum(not waits.done() for waits in waiting) == left)
            eventually(lambda left=left: number(server, "orchestrator_waiting_claims") == left)
        assert {waits.result().status_code for waits in waiting} == {201}
    assert looks(server, "polled", "work") == polled


def test_work_is_handed_out_by_all_processes(server, project, database_url, tmp_path):
    """Both are woken for the first job, and one gets it. The other marks the lane as empty, so the next job notifies."""
    with serving(tmp_path, DATABASE_URL=database_url) as other, ThreadPoolExecutor() as threads:
        servers = (server, other)
        waiting = [threads.submit(claim, one, WorkerFactory(), 30) for one in servers]
        for one in servers:
            waiting_at(one, 1)
            eventually(lambda one=one: number(one, "orchestrator_listener_up"))
        polled = sum(looks(one, "polled", "work") for one in servers)
        for left in (1, 0):
            submitted(project)
            eventually(lambda left=left: sum(number(one, "orchestrator_waiting_claims") for one in servers) == left)
        assert {waits.result().status_code for waits in waiting} == {201}
        assert sum(looks(one, "polled", "work") for one in servers) == polled


def test_a_call_that_is_lost_costs_a_wait_and_no_job(server, project, monkeypatch):
    """As if the process that queued the job had ended between its commit and the announcement."""
    monkeypatch.setattr(hub.pool_announcer, "announce", lambda _pools: None)
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(claim, server, WorkerFactory(), 30)
        waiting_at(server, 1)
        polled = looks(server, "polled", "work")
        job = submitted(project)
        assert waiting.result(timeout=25).json()["job"]["job_id"] == job.job_ulid
    assert looks(server, "polled", "work") == polled + 1


def test_a_worker_that_was_revoked_while_it_waited_gets_nothing(server, project):
    worker = WorkerFactory()
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(claim, server, worker, 30)
        waiting_at(server, 1)
        worker_state.set_worker_state(
            worker_id=worker.worker_id, state=WorkerState.REVOKED, cause=Cause(OPERATOR, "lost")
        )
        submitted(project)
        call()
        assert waiting.result(timeout=15).status_code == 401
    assert Lease.objects.count() == 0


def test_those_that_wait_cost_no_thread_and_one_connection_hears_for_all(server):
    """Each had a thread, and half of them waited in the queue for one."""
    worker, threads_of_server = WorkerFactory(), Path(f"/proc/{server.process.pid}/task")
    with ThreadPoolExecutor(40) as threads:
        waiting = [threads.submit(claim, server, worker, 20) for _ in range(40)]
        waiting_at(server, 40)
        eventually(lambda: len(list(threads_of_server.iterdir())) < 15)
        assert len(connections_of_server(f"{NAME}-listener")) == 1
        assert {waits.result(timeout=60).status_code for waits in waiting} == {204}


def test_a_claim_that_waited_is_logged_once_with_all_its_time(database_url, tmp_path):
    identity = {"X-Request-Id": "the-one-that-waited"}
    with serving(tmp_path, DATABASE_URL=database_url, LOG_LEVEL="DEBUG") as server:
        assert claim(server, WorkerFactory(), 1.5, headers=identity).headers["X-Request-Id"] == identity["X-Request-Id"]
        (line,) = [line for line in server.log().splitlines() if identity["X-Request-Id"] in line]
    assert re.search(r"POST /v1/runtime/leases 204 (1[4-9]|[2-9]\d)\d\d ms", line), line


def test_a_server_that_stops_sends_the_waiting_home(database_url, tmp_path):
    with serving(tmp_path, DATABASE_URL=database_url) as server, ThreadPoolExecutor(8) as threads:
        waiting = [threads.submit(claim, server, WorkerFactory(), 60) for _ in range(8)]
        waiting_at(server, 8)
        server.process.send_signal(signal.SIGTERM)
        assert {waits.result(timeout=20).status_code for waits in waiting} == {204}
        assert server.process.wait(20) in {0, -signal.SIGTERM}
        assert "Cancel" not in server.log(), "none had to be cut off"


def seen(worker):
    worker.refresh_from_db()
    return worker.last_seen_at


def test_a_claim_waits_as_long_as_requested_and_no_longer(server):
    """The fastest of five claims is measured, because a busy machine delays some of them."""

    def seconds(wait: float) -> float:
        worker, then = WorkerFactory(), time.monotonic()
        assert claim(server, worker, wait).status_code == 204
        took = time.monotonic() - then
        assert took < 20
        return took

    assert 1.4 < min(seconds(1.5) for _ in range(5)) < 4
    assert min(seconds(0) for _ in range(5)) < 1.4


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
        waiting = [threads.submit(claim, server, worker, 30) for worker in workers]
        eventually(lambda: all(seen(worker) for worker in workers))
        until, durations = time.monotonic() + 2, []
        while time.monotonic() < until or len(durations) < 3:
            assert len(connections_of_server()) <= POOL
            then = time.monotonic()
            assert requests.get(f"{server.url}/v1/runtime/jobs", headers=token, timeout=10).status_code == 200
            durations.append(time.monotonic() - then)
            assert durations[-1] < 20
        assert min(durations) < 2, "the fastest, because a busy machine delays some of them"
        assert not any(waits.done() for waits in waiting)
        jobs = {submitted(project).job_ulid for _ in range(20)}
        call()
        answers = [waits.result(timeout=30) for waits in waiting]
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
    """A lost acknowledgement looks the same as a client that disconnects just then."""
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
    job_log_writes.append_log(**say, seq=0, chunk=b"before\n")
    path = f"{server.url}/v1/runtime/jobs/{lease.job_id}/logs"
    with requests.get(f"{path}?follow=1", headers=token, stream=True, timeout=20) as followed:
        assert followed.headers["Content-Type"] == "text/plain; charset=utf-8"
        pieces = followed.iter_content(None)
        assert next(pieces) == b"before\n"
        durations = []
        for seq, text in enumerate([b"one\n", b"\xff\x00two\n", b"three\n"], start=1):
            job_log_writes.append_log(**say, seq=seq, chunk=text)
            then = time.monotonic()
            assert next(pieces) == text
            durations.append(time.monotonic() - then)
            assert durations[-1] < 15, "long before the stream ends"
        assert min(durations) < 3, "the fastest, because a busy machine delays some of them"
        job_log_writes.append_log(**say, seq=4, chunk=b"last\n")
        job_end.fail(**say, reason="worker_error")
        assert b"".join(pieces) == b"last\n"
    assert requests.get(path, headers=token, timeout=20).content == b"before\none\n\xff\x00two\nthree\nlast\n"


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
        job_log_writes.append_log(lease_ulid=lease.lease_ulid, worker=lease.worker, seq=0, chunk=b"x")
        job_end.fail(lease_ulid=lease.lease_ulid, worker=lease.worker, reason="worker_error")
        assert {call.result(timeout=20) for call in following} == {b"x"}


def test_nothing_of_all_this_made_the_server_complain(server):
    text = server.log()
    assert "Traceback" not in text
    assert "Warning" not in text
    assert "database unavailable" not in text
