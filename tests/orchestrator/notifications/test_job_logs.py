"""Reading the log of a job by positions: bounded batches, every byte once, in the order of the steps."""

import os

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from orchestrator import services
from orchestrator.selectors import job_logs
from orchestrator.selectors.job_logs import START, JobLogs, stored
from runtime_jobs.models import LogChunk
from tests.api_client import refused
from tests.factories import WorkerFactory, claimed, submitted
from tests.orchestrator.protocols.native.conftest import alice, organization

__all__ = ["alice", "organization"]
pytestmark = pytest.mark.django_db
EDGE = 64 << 10


@pytest.fixture
def log(organization):
    submitted(organization.projects.get())
    return claimed(WorkerFactory()).lease


def put(log, step, *sizes):
    chunks = [os.urandom(size) for size in sizes]
    begin = LogChunk.objects.filter(job_id=log.job_id, step=step).count()
    for seq, chunk in enumerate(chunks, start=begin):
        LogChunk.objects.create(job_id=log.job_id, step=step, seq=seq, chunk=chunk, sha256="", created_at=log.leased_at)
    return b"".join(chunks)


def batches(job_id):
    position, found = START, []
    while (batch := JobLogs().read(job_id, position)).position != position:
        found.append(batch.data)
        position = batch.position
    return found


@pytest.mark.parametrize(
    "steps",
    [
        {},
        {0: [0]},
        {0: [1], 3: [0, 0, 2]},
        {0: [EDGE - 1, 1, EDGE]},
        {0: [EDGE + 1, 1]},
        {1: [8 * EDGE], 2: [3 * EDGE - 1, 5]},
        {0: [1] * 200},
        {0: [0] * 70 + [5]},
    ],
)
def test_every_byte_is_read_once_in_order_and_in_bounded_batches(log, steps):
    text = b"".join(put(log, step, *sizes) for step, sizes in steps.items())
    found = batches(log.job_id)
    assert b"".join(found) == text == b"".join(stored(log.job_id))
    assert max(map(len, found), default=0) <= EDGE
    assert len(found) <= len(text) // (EDGE // 2) + 1 + sum(map(len, steps.values())) // job_logs.CHUNKS_PER_BATCH + 1


def test_a_reader_at_the_end_of_a_growing_log_misses_nothing(log):
    position, text, found = START, b"", b""
    for step, size in [(0, 3), (0, 0), (0, EDGE + 7), (1, 0), (1, 5), (4, 2 * EDGE), (4, 1)]:
        text += put(log, step, size)
        while (batch := JobLogs().read(log.job_id, position)).position != position:
            found, position = found + batch.data, batch.position
        assert found == text


def test_one_read_is_one_query_and_loads_no_job(log):
    put(log, 0, 100)
    with CaptureQueriesContext(connection) as queries:
        batch = JobLogs().read(log.job_id, START)
        JobLogs().read(log.job_id, batch.position)
        JobLogs().states([log.job_id])
    assert len(queries) == 1 + 2 + 1
    assert not any("command_json" in query["sql"] for query in queries)


def test_what_is_stored_between_the_two_looks_at_an_end_is_read(log, monkeypatch):
    real = job_logs._has_ended

    def ends(job_id):
        put(log, 0, 10)
        services.fail(lease_ulid=log.lease_ulid, worker=log.worker, reason="worker_error")
        monkeypatch.setattr(job_logs, "_has_ended", real)
        return real(job_id)

    monkeypatch.setattr(job_logs, "_has_ended", ends)
    batch = JobLogs().read(log.job_id, START)
    assert (len(batch.data), batch.ended) == (10, False)
    assert JobLogs().read(log.job_id, batch.position) == (b"", batch.position, True)


def test_a_job_that_was_deleted_has_ended():
    gone = "rtj_" + "0" * 26
    assert JobLogs().read(gone, START) == (b"", START, True)
    assert JobLogs().states([gone]) == {}


def test_a_wsgi_server_follows_no_job_that_runs(alice, log):
    put(log, 0, 10)
    path = f"/v1/jobs/{log.job_id}/logs"
    refused(lambda: alice.get(f"{path}?follow=1"), 501, "follow_unavailable")
    assert len(b"".join(alice.get(path).streaming_content)) == 10
