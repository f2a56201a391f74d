"""A server that receives SIGTERM answers the requests that it has begun and accepts no new ones (fault 61)."""

import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests
from django.db import connection, transaction

from runtime_jobs.models import Job
from tests.factories import WorkerFactory, claimed, submitted
from tests.live_server import Server, eventually, patient, serving

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]


def beat(server: Server, lease: str, token: str) -> requests.Response:
    address = f"{server.url}/v1/runtime/leases/{lease}/heartbeat"
    headers = {"Authorization": f"Bearer {token}"}
    return requests.post(address, json={"phase": "executing"}, headers=headers, timeout=20)


def waits_for_a_lock() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")  # a transaction remembers what it saw
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
        return bool(cursor.fetchone()[0])


def test_a_request_in_the_middle_is_answered_and_kept(database_url, tmp_path):
    worker = WorkerFactory()
    submitted()
    claim = claimed(worker)
    with serving(tmp_path, DATABASE_URL=patient(database_url)) as server, ThreadPoolExecutor(1) as caller:
        with transaction.atomic():
            Job.objects.locked().get(pk=claim.job.pk)
            answer = caller.submit(beat, server, claim.lease.lease_ulid, worker.token)
            eventually(waits_for_a_lock)
            server.process.send_signal(signal.SIGTERM)
            eventually(lambda: "Shutting down" in server.log())
        assert answer.result(20).status_code == 200
        server.process.wait(20)
        with pytest.raises(requests.ConnectionError):
            beat(server, claim.lease.lease_ulid, worker.token)
    assert Job.objects.get(pk=claim.job.pk).state == "executing"
