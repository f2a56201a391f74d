"""The type `actions`: its columns, its policy, its words, and the roll-up of a run."""

import itertools

import pytest

from orchestrator.incidents.breakers import counts
from runtime_jobs.models import Job
from runtime_jobs.rollup import roll_up
from runtime_jobs.specs import JOB_TYPES, ActionsSpec, ActionsStep, configured_policy
from runtime_jobs.specs.actions import actions_from_job, conclusion_of, label_requirement, reported_status_of
from runtime_jobs.states import (
    FAILED_CONCLUSIONS,
    STEP_TRANSITIONS,
    CancelReason,
    Conclusion,
    FailureClass,
    FailureReason,
    JobState,
    StepStatus,
    can_step_transition,
)

STEP = ActionsStep(0, "id", "name", "if", "run", "", "dir", {"A": "1"}, {"B": "2"}, continue_on_error=True)
SPEC = ActionsSpec(
    job_key="build",
    job_name="Build",
    steps=(STEP, ActionsStep(1, uses="actions/checkout@v4")),
    runs_on="linux",
    needs=("a", "b"),
    condition="success()",
    timeout_minutes=7,
    permissions={"mode": "read-all"},
    env={"C": "3"},
)


def test_a_specification_survives_its_columns():
    job = Job(**SPEC.columns())
    assert actions_from_job(job) == SPEC
    assert actions_from_job(job).digest == SPEC.digest == job.payload_digest
    assert (job.timeout_seconds, job.requirements, job.job_type) == (420, ["linux"], "actions")


def test_each_member_counts_in_the_digest():
    others = [
        ActionsSpec(**vars(SPEC) | {name: value})
        for name, value in {
            "job_key": "x", "job_name": "x", "steps": (STEP,), "runs_on": "x", "needs": (), "condition": "",
            "timeout_minutes": 8, "permissions": {}, "env": {},
        }.items()
    ]  # fmt: skip
    assert len({spec.digest for spec in [SPEC, *others]}) == len(others) + 1


def test_the_names_of_workflow_files_are_serialized():
    found = JOB_TYPES["actions"].serialize(Job(**SPEC.columns()))
    assert (found["if"], found["steps"][0]["if"], found["steps"][0]["with"]) == ("success()", "if", {"B": "2"})
    assert "condition" not in found


@pytest.mark.parametrize("length", [1, 63, 64, 100])
def test_a_requirement_fits_its_column_and_differs_for_each_label(length):
    label = "x" * length
    requirement = label_requirement(label)
    assert len(requirement) <= 63
    assert (requirement == label) == (length <= 63)
    assert requirement != label_requirement("x" * (length - 1) + "y")


def test_no_label_is_no_requirement():
    assert ActionsSpec("a", "a", ()).requirements == []


def test_the_policy_has_no_retry_and_no_ingest_and_a_completion_beats_a_cancel(settings):
    settings.ACTIONS_LEASE_SECONDS = 45
    policy = configured_policy("actions")
    assert (policy.automatic_retries, policy.needs_ingest, policy.complete_beats_cancel) == (0, False, True)
    assert (policy.lease_ttl_seconds, policy.acknowledge_within_seconds) == (45, 45)
    assert (policy.late_result_seconds, policy.needs_processing, policy.is_metered) == (0, False, False)
    assert policy.max_requeues > 0
    assert JOB_TYPES["actions"].is_retryable is False


@pytest.mark.parametrize("seconds", [4, 901])
def test_a_lease_out_of_range_is_a_system_check(settings, seconds):
    from orchestrator.checks import leases_of_workflow_jobs  # noqa: PLC0415

    assert leases_of_workflow_jobs() == []
    settings.ACTIONS_LEASE_SECONDS = seconds
    assert [message.id for message in leases_of_workflow_jobs()] == ["orchestrator.E016"]


def test_red_tests_open_no_breaker_and_lost_runners_do():
    assert not counts("actions", JobState.FAILED, FailureClass.JOB)
    assert counts("actions", JobState.FAILED, FailureClass.WORKER)


WORDS = [
    ({"state": JobState.BLOCKED}, "queued", None),
    ({"state": JobState.QUEUED}, "queued", None),
    ({"state": JobState.LEASED}, "running", None),
    ({"state": JobState.EXECUTING}, "running", None),
    ({"state": JobState.SUCCEEDED}, "completed", "success"),
    ({"state": JobState.SUCCEEDED, "result": {"status": "completed", "conclusion": "neutral"}}, "completed", "neutral"),
    ({"state": JobState.FAILED, "failure_reason": FailureReason.LEASE_EXPIRED}, "completed", "failure"),
    ({"state": JobState.FAILED, "failure_reason": FailureReason.TIMED_OUT}, "completed", "timed_out"),
    (
        {"state": JobState.FAILED, "result": {"status": "completed", "conclusion": "action_required"}},
        "completed",
        "action_required",
    ),
    ({"state": JobState.CANCELED, "cancel_reason": CancelReason.REQUESTED}, "cancelled", "cancelled"),
    ({"state": JobState.CANCELED, "cancel_reason": CancelReason.SUPERSEDED}, "cancelled", "cancelled"),
    ({"state": JobState.CANCELED, "cancel_reason": CancelReason.CONDITION_FALSE}, "skipped", "skipped"),
    ({"state": JobState.CANCELED, "cancel_reason": CancelReason.DEPENDENCY_FAILED}, "skipped", "skipped"),
    (
        {"state": JobState.CANCELED, "result": {"status": "completed", "conclusion": "failure"}},
        "cancelled",
        "cancelled",
    ),
    (
        {"state": JobState.CANCELED, "result": {"status": "cancelled", "conclusion": "failure"}},
        "cancelled",
        "failure",
    ),
]


@pytest.mark.parametrize(("columns", "status", "conclusion"), WORDS, ids=str)
def test_the_words_of_a_job(columns, status, conclusion):
    job = Job(**columns)
    assert (reported_status_of(job), conclusion_of(job)) == (status, conclusion)


@pytest.mark.parametrize("pair", list(itertools.product(StepStatus, StepStatus)))
def test_moves_of_a_step_are_data(pair):
    source, target = pair
    ended = {StepStatus.COMPLETED, StepStatus.CANCELLED, StepStatus.SKIPPED}
    expected = source not in ended and target != StepStatus.QUEUED and source != target
    assert can_step_transition(*pair) is expected
    assert set(STEP_TRANSITIONS) == set(StepStatus)


ROLL_UPS = [
    ([], "failure"),
    (["success"], "success"),
    (["success", "neutral", "skipped"], "success"),
    (["skipped"], "success"),
    (["success", "cancelled"], "cancelled"),
    (["cancelled", "failure"], "failure"),
    (["success", "timed_out", "failure"], "timed_out"),
    (["action_required", "timed_out"], "action_required"),
    (["cancelled", "skipped"], "cancelled"),
]


@pytest.mark.parametrize(("conclusions", "expected"), ROLL_UPS, ids=str)
def test_the_roll_up(conclusions, expected):
    assert roll_up([Conclusion(word) for word in conclusions]) == expected


@pytest.mark.parametrize("first", FAILED_CONCLUSIONS)
def test_the_first_failure_decides_wherever_it_is(first):
    for place in range(3):
        words = [Conclusion.SUCCESS] * place + [first, Conclusion.FAILURE, Conclusion.CANCELLED]
        assert roll_up(words) == first
