"""The state of a batch, over every combination of two jobs with everything that may decide it."""

import itertools

import pytest

from runtime_jobs.batch_state import BATCH_FINAL, BatchState, JobOutcome, aggregate_state
from runtime_jobs.states import FINAL_STATES, WAITING_STATES, JobState

FATES = [(state, None) for state in JobState if state != JobState.FAILED]
FATES += [(JobState.FAILED, "command_failed"), (JobState.FAILED, "timed_out")]
STANDINGS = [JobOutcome(str(state), reason, required) for state, reason in FATES for required in (True, False)]
PAIRS = list(itertools.product(STANDINGS, STANDINGS))


def expected(jobs, *, asked):
    """The table, in words, for any number of jobs."""
    if any(job.state not in FINAL_STATES for job in jobs):
        if asked:
            return "cancel_requested"
        return "queued" if all(job.state in WAITING_STATES for job in jobs) else "running"
    count = [job for job in jobs if job.required] or jobs
    states = {job.state if job.failure_reason != "timed_out" else "late" for job in count} - {"succeeded"}
    if not states:
        return "succeeded"
    if asked or states == {"canceled"}:
        return "canceled"
    return "timed_out" if states <= {"late", "canceled"} else "failed"


@pytest.mark.parametrize("asked", [False, True])
def test_every_pair_of_jobs_has_its_state(asked):
    assert len(PAIRS) == (2 * (len(JobState) + 1)) ** 2
    for pair in PAIRS:
        assert aggregate_state(pair, cancel_requested=asked) == expected(list(pair), asked=asked), pair
        assert aggregate_state(reversed(pair), cancel_requested=asked) == aggregate_state(
            pair, cancel_requested=asked
        ), "any order"


@pytest.mark.parametrize(
    ("jobs", "asked", "state"),
    [
        ([("queued", None)], False, "queued"),
        ([("leased", None)], False, "running"),
        ([("succeeded", None), ("queued", None)], False, "running"),
        ([("failed", "command_failed"), ("executing", None)], False, "running"),
        ([("executing", None)], True, "cancel_requested"),
        ([("succeeded", None)], True, "succeeded"),
        ([("succeeded", None), ("canceled", None)], True, "canceled"),
        ([("failed", "command_failed"), ("canceled", None)], True, "canceled"),
        ([("failed", "command_failed"), ("canceled", None)], False, "failed"),
        ([("failed", "timed_out"), ("failed", "lease_expired")], False, "failed"),
        ([("failed", "timed_out"), ("succeeded", None)], False, "timed_out"),
        ([("canceled", None), ("succeeded", None)], False, "canceled"),
    ],
)
def test_the_table_by_example(jobs, asked, state):
    assert aggregate_state([JobOutcome(*job) for job in jobs], cancel_requested=asked) == state


def test_an_optional_job_decides_only_alone():
    good, bad = JobOutcome("succeeded"), JobOutcome("failed", "command_failed", required=False)
    assert aggregate_state([good, bad], cancel_requested=False) == BatchState.SUCCEEDED
    assert aggregate_state([bad], cancel_requested=False) == BatchState.FAILED


def test_a_batch_has_ended_if_and_only_if_all_its_jobs_have():
    for pair in PAIRS:
        ended = all(job.state in FINAL_STATES for job in pair)
        assert (aggregate_state(pair, cancel_requested=False) in BATCH_FINAL) == ended
