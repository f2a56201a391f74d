"""The table from the states of a job to the statuses of document 002."""

from datetime import UTC, datetime

import pytest

from orchestrator.protocols.bencher.states import JOB_STATUSES, BencherStatus, job_status
from runtime_jobs.models import Job
from runtime_jobs.states import LEASED_STATES, FailureReason, JobState

NOW = datetime(2026, 1, 1, tzinfo=UTC)
EXPECTED = {
    "blocked": "pending",
    "queued": "pending",
    "leased": "claimed",
    "starting": "claimed",
    "checking_out": "claimed",
    "executing": "running",
    "uploading": "running",
    "lost": "failed",
    "processing": "completed",
    "succeeded": "processed",
    "failed": "failed",
    "canceled": "canceled",
}


@pytest.mark.parametrize("state", JobState)
def test_every_state_is_in_the_table(state):
    assert job_status(Job(state=state)) == JOB_STATUSES[state] == EXPECTED[state]


def test_every_status_of_the_document_has_a_state():
    assert set(JOB_STATUSES.values()) == set(BencherStatus)


@pytest.mark.parametrize("state", LEASED_STATES)
def test_a_requested_cancel_counts_at_once(state):
    assert job_status(Job(state=state, cancel_requested_at=NOW)) == "canceled"


@pytest.mark.parametrize("state", ["succeeded", "failed", "processing"])
def test_a_cancel_request_that_came_too_late_does_not_count(state):
    assert job_status(Job(state=state, cancel_requested_at=NOW)) == EXPECTED[state]


@pytest.mark.parametrize("reason", [FailureReason.LEASE_EXPIRED, FailureReason.WORKER_ERROR])
def test_a_failed_job_is_failed(reason):
    assert job_status(Job(state=JobState.FAILED, failure_reason=reason)) == "failed"


def test_a_job_above_its_time_limit_is_canceled():
    assert job_status(Job(state=JobState.FAILED, failure_reason=FailureReason.TIMED_OUT)) == "canceled"
