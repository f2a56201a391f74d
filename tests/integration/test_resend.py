"""A run whose upload failed is sent again by a worker that executes nothing."""

from __future__ import annotations

import pytest

from orchestrator.ingest.models import Run
from orchestrator.services import job_end, retries
from runtime_jobs.models import JobEvent, LogChunk, UnsentRun
from runtime_jobs.states import FailureReason
from tests.factories import OPERATOR, claimed
from tests.integration.conftest import Yard

pytestmark = pytest.mark.slow


def test_a_resent_run_is_uploaded_under_the_new_job_and_nothing_is_executed(yard: Yard) -> None:
    first = yard.submit("null", "print=hello", "exit=3")
    worker = yard.start(yard.enrol("one"), "--once")
    assert worker.end() == 0, worker.log
    good = Run.objects.get(job_id=yard.ended(first).job_ulid).payload

    failed = yard.submit("null", "print=hello", "exit=3")
    lease = claimed().lease
    lost = {**good, "metadata": {**good["metadata"], "job_id": failed.job_ulid}}
    job_end.fail(lease_ulid=lease.lease_ulid, worker=lease.worker, reason=FailureReason.UPLOAD_FAILED, unsent_run=lost)
    again = retries.reupload(job_ulid=failed.job_ulid, actor=OPERATOR, reason="ingest is back").job

    other = yard.start(yard.enrol("two"), "--once")
    assert other.end() == 0, other.log
    done = yard.ended(again)
    assert (done.public_status, done.exit_code) == ("uploaded", 3)
    sent = Run.objects.get(job_id=again.job_ulid).payload
    assert sent["outcome"] == good["outcome"]
    assert sent["metadata"]["retry_of_job_id"] == failed.job_ulid
    assert not LogChunk.objects.filter(job=again).exists()
    moves = JobEvent.objects.of(again.job_ulid).values_list("to_state", flat=True)
    assert "executing" not in moves
    assert UnsentRun.objects.filter(job=again).exists()
