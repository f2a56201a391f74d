"""Reading the log of a job by positions: bounded batches, every byte once, in the order of the steps."""

import os

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from orchestrator.services import job_end
from orchestrator.step_logs import job_log_reads, job_log_writes, step_log_reads
from orchestrator.step_logs.job_log_reads import START, JobLogs, stored
from runtime_jobs.models import JobStep, LogChunk
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
        job_log_writes.append_log(lease_ulid=log.lease_ulid, worker=log.worker, seq=seq, chunk=chunk, step=step)
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
    assert (
        len(found) <= len(text) // (EDGE // 2) + 1 + sum(map(len, steps.values())) // step_log_reads.CHUNKS_PER_PART + 1
    )


def test_a_reader_at_the_end_of_a_growing_log_misses_nothing(log):
    position, text, found = START, b"", b""
    for step, size in [(0, 3), (0, 0), (0, EDGE + 7), (1, 0), (1, 5), (4, 2 * EDGE), (4, 1)]:
        text += put(log, step, size)
        while (batch := JobLogs().read(log.job_id, position)).position != position:
            found, position = found + batch.data, batch.position
        assert found == text


def test_a_late_chunk_of_an_earlier_step_is_read(log):
    text = put(log, 0, 10) + put(log, 1, 10)
    position = JobLogs().read(log.job_id, START).position
    late = put(log, 0, 7)
    batch = JobLogs().read(log.job_id, position)
    assert batch.data == late
    text += late + put(log, 1, 3)
    assert text.endswith(JobLogs().read(log.job_id, batch.position).data)


def test_a_read_is_two_queries_and_loads_no_job(log):
    put(log, 0, 100)
    with CaptureQueriesContext(connection) as queries:
        batch = JobLogs().read(log.job_id, START)
        JobLogs().read(log.job_id, batch.position)
        JobLogs().states([log.job_id])
    assert len(queries) == 2 + 1 + 1
    assert not any("command_json" in query["sql"] for query in queries)


def test_what_is_stored_while_the_job_ends_is_read(log, monkeypatch):
    real = job_log_reads._overview

    def ends(job_id):
        found = real(job_id)
        put(log, 0, 10)
        job_end.fail(lease_ulid=log.lease_ulid, worker=log.worker, reason="worker_error")
        monkeypatch.setattr(job_log_reads, "_overview", real)
        return found

    monkeypatch.setattr(job_log_reads, "_overview", ends)
    assert JobLogs().read(log.job_id, START) == (b"", START, False)
    batch = JobLogs().read(log.job_id, START)
    assert (len(batch.data), batch.ended) == (10, False)
    assert JobLogs().read(log.job_id, batch.position) == (b"", batch.position, True)


@pytest.mark.parametrize("change", ["chunk", "end", "step"])
def test_the_state_of_a_job_changes_with_each_of_its_changes(log, change):
    put(log, 0, 1)
    step = JobStep.objects.create(job_id=log.job_id, index=0, run="true")
    before = JobLogs().states([log.job_id])
    assert JobLogs().states([log.job_id]) == before
    if change == "chunk":
        put(log, 0, 1)
    elif change == "end":
        job_end.fail(lease_ulid=log.lease_ulid, worker=log.worker, reason="worker_error")
    else:
        JobStep.objects.filter(pk=step.pk).update(status="running")
    assert JobLogs().states([log.job_id]) != before


def test_a_job_that_was_deleted_has_ended():
    gone = "rtj_" + "0" * 26
    assert JobLogs().read(gone, START) == (b"", START, True)
    assert JobLogs().states([gone]) == {}


def test_a_wsgi_server_follows_no_job_that_runs(alice, log):
    put(log, 0, 10)
    path = f"/v1/jobs/{log.job_id}/logs"
    refused(lambda: alice.get(f"{path}?follow=1"), 501, "follow_unavailable")
    assert len(b"".join(alice.get(path).streaming_content)) == 10
