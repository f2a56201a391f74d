"""The calls of a runner about its job (contract 2.2 to 2.5): every status, every move, and the chain of tokens."""

import base64
import itertools
from datetime import timedelta

import pytest

from leases.models import Lease
from leases.states import LeaseState
from orchestrator.core import counters
from orchestrator.core.datetimes import parse_timestamp
from orchestrator.pubsub.job_updates import announcer
from orchestrator.services import cancellation, expiry, worker_state
from orchestrator.step_logs.step_log_reads import read_step_log
from runtime_jobs.db_time import database_now
from runtime_jobs.models import Job, JobEvent, JobStep
from runtime_jobs.specs.actions import conclusion_of
from runtime_jobs.states import (
    STEP_TRANSITIONS,
    CancelReason,
    Conclusion,
    FailureReason,
    JobState,
    StepStatus,
)
from tests.db_snapshot import nothing_lost
from tests.factories import OPERATOR
from tests.orchestrator.protocols.shithub.conftest import error_of, used_tokens
from tests.orchestrator.protocols.shithub.runner import ClaimedJobClient
from tests.orchestrator.protocols.shithub.world import actions_spec, start_run
from tests.workflow_runs import job_of, started

pytestmark = pytest.mark.django_db


def stored(claimed: ClaimedJobClient) -> Job:
    return Job.objects.get(pk=claimed.job["id"])


def lease_of(claimed: ClaimedJobClient) -> Lease:
    return Lease.objects.get(job=stored(claimed))


# --- the session of contract 3.8 --------------------------------------------------------------------------------------


def test_the_session_of_the_contract(runner, run, counted):
    claimed = runner.client.claim()
    used = [claimed.token]
    answers = []
    for act in (
        claimed.run,
        lambda: claimed.log(b"Checking out\n", step=0),
        lambda: claimed.end_step(0),
        claimed.check_cancel,
        lambda: claimed.log(b"hello\n", step=1),
        lambda: claimed.end_step(1),
    ):
        answers.append(act())
        used.append(claimed.token)
    assert [answer.status_code for answer in answers] == [200, 202, 200, 200, 202, 200]
    bodies = [answer.json() for answer in answers]
    for body in bodies:
        assert parse_timestamp(body.pop("next_token_expires_at")) is not None
        assert body.pop("next_token")
    assert bodies == [
        {"status": "running", "conclusion": None},
        {"accepted": True},
        {"status": "completed", "conclusion": "success"},
        {"cancelled": False},
        {"accepted": True},
        {"status": "completed", "conclusion": "success"},
    ]
    last = claimed.end()
    assert (last.status_code, last.json()) == (
        200,
        {"status": "completed", "conclusion": "success", "run_status": "completed", "run_conclusion": "success"},
    )
    assert len(set(used)) == 7
    assert used_tokens() == 7
    assert counted.count(counters.JWT_ISSUED) == 8
    assert runner.client.heartbeat().status_code == 204
    assert stored(claimed).state == JobState.SUCCEEDED


def test_every_answer_with_a_token_names_the_expiry_in_whole_seconds(claimed):
    body = claimed.check_cancel().json()
    assert len(body["next_token_expires_at"]) == len("2026-05-10T21:15:00Z")
    left = parse_timestamp(body["next_token_expires_at"]) - database_now()
    assert timedelta(minutes=14, seconds=50) < left <= timedelta(minutes=15)


# --- the status of a job ----------------------------------------------------------------------------------------------


def test_running_takes_up_the_lease_and_again_it_renews_it(granted):
    assert granted.run().json()["status"] == "running"
    job, lease = stored(granted), lease_of(granted)
    assert (job.state, lease.state) == (JobState.EXECUTING, LeaseState.ACTIVE)
    Lease.objects.update(expires_at=database_now() + timedelta(seconds=5))
    before = JobEvent.objects.count()
    assert granted.run().status_code == 200
    assert lease_of(granted).expires_at > database_now() + timedelta(seconds=50)
    assert JobEvent.objects.count() == before


OUTCOMES = {
    ("completed", "success"): (JobState.SUCCEEDED, None, LeaseState.COMPLETED),
    ("completed", "neutral"): (JobState.SUCCEEDED, None, LeaseState.COMPLETED),
    ("completed", "skipped"): (JobState.SUCCEEDED, None, LeaseState.COMPLETED),
    ("completed", "failure"): (JobState.FAILED, FailureReason.COMMAND_FAILED, LeaseState.COMPLETED),
    ("completed", "action_required"): (JobState.FAILED, FailureReason.COMMAND_FAILED, LeaseState.COMPLETED),
    ("completed", "timed_out"): (JobState.FAILED, FailureReason.TIMED_OUT, LeaseState.COMPLETED),
    ("completed", "cancelled"): (JobState.CANCELED, CancelReason.STOPPED_BY_WORKER, LeaseState.CANCELED),
    ("cancelled", "cancelled"): (JobState.CANCELED, CancelReason.STOPPED_BY_WORKER, LeaseState.CANCELED),
    ("cancelled", "failure"): (JobState.CANCELED, CancelReason.STOPPED_BY_WORKER, LeaseState.CANCELED),
}
ROLLED_UP = {"neutral": "success", "skipped": "success"}


@pytest.mark.parametrize(("words", "expected"), list(OUTCOMES.items()), ids=str)
@pytest.mark.parametrize("begun", [True, False], ids=["running", "claimed"])
def test_an_end_is_stored_under_its_words_and_shown_again(granted, words, expected, begun):
    if begun:
        granted.run()
    status, conclusion = words
    response = granted.end(conclusion, status)
    run_conclusion = ROLLED_UP.get(conclusion, conclusion)
    assert (response.status_code, response.json()) == (
        200,
        {"status": status, "conclusion": conclusion, "run_status": "completed", "run_conclusion": run_conclusion},
    )
    job, lease = stored(granted), lease_of(granted)
    assert (job.state, job.failure_reason or job.cancel_reason, lease.state) == expected
    assert job.result == {"status": status, "conclusion": conclusion}
    assert not Job.objects.filter(retry_of_job_ulid=job.job_ulid).exists()


@pytest.mark.parametrize(
    ("body", "conclusion"),
    [
        ({"status": "cancelled"}, "cancelled"),
        ({"status": " cancelled "}, "cancelled"),
        ({"status": "cancelled", "conclusion": ""}, "cancelled"),
        ({"status": "cancelled", "conclusion": None}, "cancelled"),
        ({"status": "completed", "conclusion": "success", "started_at": "", "completed_at": None}, "success"),
    ],
    ids=str,
)
def test_an_end_has_defaults(claimed, body, conclusion):
    assert claimed.call("status", body).json()["conclusion"] == conclusion


BAD_STATUSES = [
    {},
    {"status": ""},
    {"status": None},
    {"status": 1},
    {"status": "queued"},
    {"status": "skipped"},
    {"status": "Completed", "conclusion": "success"},
    {"status": "completed"},
    {"status": "completed", "conclusion": ""},
    {"status": "completed", "conclusion": "stale"},
    {"status": "completed", "conclusion": "SUCCESS"},
    {"status": "running", "conclusion": "success"},
    {"status": "running", "started_at": "yesterday"},
    {"status": "running", "started_at": "2026-05-10 21:00:00Z"},
    {"status": "running", "started_at": "2026-05-10T21:00:00"},
    {"status": "running", "started_at": "2026-13-10T21:00:00Z"},
    {"status": "running", "started_at": "0001-01-01T00:00:00+14:00"},
    {"status": "running", "completed_at": 5},
    {"status": "running", "unknown": 1},
    {"status": "running", "status ": "x"},
]


@pytest.mark.parametrize("body", BAD_STATUSES, ids=str)
def test_a_bad_status_of_a_job_is_400_and_changes_nothing_of_it(claimed, body):
    before = Job.objects.values().get(pk=claimed.job["id"])
    error_of(claimed.call("status", body), 400)
    assert Job.objects.values().get(pk=claimed.job["id"]) == before


def spare(claimed: ClaimedJobClient) -> list[str]:
    """More tokens of the same chain: what a client has that did not wait for an answer."""
    from orchestrator.job_tokens.claims import next_token, sign, verify  # noqa: PLC0415

    return [sign(next_token(verify(claimed.token), now=database_now())) for _ in range(4)]


@pytest.mark.parametrize(("first", "second"), list(itertools.product(OUTCOMES, OUTCOMES)), ids=str)
def test_the_first_end_wins(claimed, first, second):
    tokens = spare(claimed)
    assert claimed.end(first[1], first[0]).status_code == 200
    before = Job.objects.values().get(pk=claimed.job["id"])
    body = {"status": second[0], "conclusion": second[1]}
    again = claimed.call("status", body, token=tokens[0])
    if first == second:
        assert (again.status_code, again.json()["status"], again.json()["conclusion"]) == (200, *first)
        assert "next_token" not in again.json()
    else:
        error_of(again, 400)
    error_of(claimed.call("status", {"status": "running"}, token=tokens[1]), 400)
    assert Job.objects.values().get(pk=claimed.job["id"]) == before


def test_after_its_own_end_a_runner_may_still_send_logs_and_steps(claimed):
    """The real server does not check the state of the job there."""
    tokens = spare(claimed)
    claimed.end()
    chunk = {"seq": 7, "chunk": base64.b64encode(b"late\n").decode(), "step_id": claimed.steps[0]["id"]}
    assert claimed.call("logs", chunk, token=tokens[0]).status_code == 202
    assert claimed.call("cancel-check", token=tokens[1]).json()["cancelled"] is False


def test_a_failing_early_job_does_not_complete_a_run_while_another_one_is_open(runner):
    start_run(specs=[actions_spec(job_key="a"), actions_spec(job_key="b")])
    first, second = runner.client.claim(capacity=2), runner.client.claim(capacity=2)
    assert "run_status" not in first.end("timed_out").json()
    found = second.end("failure").json()
    assert (found["run_status"], found["run_conclusion"]) == ("completed", "timed_out"), "the first failure by index"


def test_a_run_whose_end_leaves_only_jobs_to_skip_is_completed_in_the_answer(runner):
    label = {"runs_on": "ubuntu-latest"}
    run = started({"a": label, "b": label | {"needs": "a"}, "c": label | {"needs": "b"}})
    found = runner.client.claim().end("failure").json()
    assert [str(conclusion_of(job_of(run, key))) for key in "abc"] == ["failure", "skipped", "skipped"]
    assert (found.get("run_status"), found.get("run_conclusion")) == ("completed", "failure")
    open_run = started({"a": label, "b": label | {"needs": "a"}, "other": label})
    assert "run_status" not in runner.client.claim().end("failure").json()
    assert runner.client.claim().end("success").json()["run_conclusion"] == "failure"
    assert job_of(open_run, "b").state == "canceled"


# --- cancel -----------------------------------------------------------------------------------------------------------


def test_a_requested_cancel_is_reported_and_acknowledged(claimed):
    cancellation.cancel(job_ulid=stored(claimed).job_ulid, actor=OPERATOR, deadline_seconds=30)
    assert claimed.check_cancel().json()["cancelled"] is True
    claimed.end_step(0, "cancelled")
    body = claimed.end("cancelled", "cancelled").json()
    assert (body["status"], body["run_conclusion"]) == ("cancelled", "cancelled")
    assert (stored(claimed).state, stored(claimed).cancel_reason) == (JobState.CANCELED, CancelReason.REQUESTED)
    assert [step.status for step in stored(claimed).steps.order_by("index")] == ["completed", "cancelled"]


def test_a_success_before_the_deadline_of_a_cancel_counts(claimed):
    cancellation.cancel(job_ulid=stored(claimed).job_ulid, actor=OPERATOR, deadline_seconds=30)
    assert claimed.end().json()["conclusion"] == "success"
    assert stored(claimed).state == JobState.SUCCEEDED


def test_a_failure_after_a_requested_cancel_ends_as_canceled(claimed):
    cancellation.cancel(job_ulid=stored(claimed).job_ulid, actor=OPERATOR, deadline_seconds=30)
    tokens = spare(claimed)
    assert claimed.end("failure").json()["conclusion"] == "cancelled"
    again = claimed.call("status", {"status": "completed", "conclusion": "failure"}, token=tokens[0])
    assert (again.status_code, again.json()["conclusion"]) == (200, "cancelled")


# --- an end by the server ---------------------------------------------------------------------------------------------


def force(claimed: ClaimedJobClient) -> None:
    cancellation.cancel(job_ulid=stored(claimed).job_ulid, actor=OPERATOR, deadline_seconds=0)
    assert expiry.force_cancel(job_ulid=stored(claimed).job_ulid) is not None


def expire(claimed: ClaimedJobClient) -> None:
    later = database_now() + timedelta(seconds=61)
    assert expiry.expire(job_ulid=stored(claimed).job_ulid, now=later) is not None


def time_out(claimed: ClaimedJobClient) -> None:
    Job.objects.update(executing_at=database_now() - timedelta(seconds=361))
    assert expiry.time_out(job_ulid=stored(claimed).job_ulid) is not None


def revoke(claimed: ClaimedJobClient) -> None:
    assert worker_state.revoke(job_ulid=stored(claimed).job_ulid, actor=OPERATOR, reason="test") is not None


SERVER_ENDS = {
    force: {("cancelled", "cancelled"), ("completed", "cancelled")},
    expire: {("completed", "failure")},
    time_out: {("completed", "timed_out")},
    revoke: {("completed", "failure")},
}


@pytest.mark.parametrize("end", SERVER_ENDS, ids=lambda end: end.__name__)
@pytest.mark.parametrize("words", OUTCOMES, ids=str)
def test_after_an_end_by_the_server_the_matching_word_is_200_and_another_404(claimed, end, words):
    end(claimed)
    before = Job.objects.values().get(pk=claimed.job["id"])
    used = used_tokens()
    response = claimed.call("status", {"status": words[0], "conclusion": words[1]})
    if words in SERVER_ENDS[end]:
        assert response.status_code == 200
        assert "next_token" not in response.json()
        assert used_tokens() == used + 1
    else:
        error_of(response, 404)
        assert used_tokens() == used
    assert Job.objects.values().get(pk=claimed.job["id"]) == before


@pytest.mark.parametrize("end", SERVER_ENDS, ids=lambda end: end.__name__)
def test_after_an_end_by_the_server_every_other_call_is_404(claimed, end):
    end(claimed)
    with nothing_lost():
        error_of(claimed.run(), 404)
        error_of(claimed.log(b"late\n"), 404)
        error_of(claimed.end_step(0), 404)
        error_of(claimed.check_cancel(), 404)


@pytest.mark.parametrize(
    ("end", "status"), [(force, "cancelled"), (expire, "skipped"), (time_out, "skipped"), (revoke, "skipped")]
)
def test_steps_that_never_reported_end_with_the_job(claimed, end, status):
    claimed.end_step(0)
    end(claimed)
    steps = list(stored(claimed).steps.order_by("index"))
    assert [(step.status, step.conclusion) for step in steps] == [("completed", "success"), (status, status)]
    assert steps[1].completed_at is not None


def test_a_silent_runner_loses_its_job_without_a_retry_and_claims_again(claimed):
    expire(claimed)
    job = stored(claimed)
    assert (job.state, job.failure_reason) == (JobState.FAILED, FailureReason.LEASE_EXPIRED)
    assert Job.objects.count() == 1
    start_run()
    assert claimed.runner.heartbeat().status_code == 200


def test_a_report_that_arrives_after_an_expiry_that_nothing_has_noticed(claimed):
    """The lease is over, so the report cannot end the job. It agrees with the end that the server now records."""
    Lease.objects.update(expires_at=database_now() - timedelta(seconds=1))
    assert claimed.end("failure").status_code == 200
    assert stored(claimed).failure_reason == FailureReason.LEASE_EXPIRED


def test_an_overdue_job_is_404_and_left_to_the_scheduler(claimed):
    Job.objects.update(executing_at=database_now() - timedelta(seconds=361))
    with nothing_lost():
        error_of(claimed.check_cancel(), 404)
    assert expiry.time_out(job_ulid=stored(claimed).job_ulid).failure_reason == FailureReason.TIMED_OUT


# --- steps ------------------------------------------------------------------------------------------------------------


STEP_WORDS = [
    ("running", None),
    ("completed", "success"),
    ("completed", "failure"),
    ("cancelled", None),
    ("skipped", None),
]


def report(claimed: ClaimedJobClient, words: tuple[str, str | None]):
    body = {"status": words[0]} | ({"conclusion": words[1]} if words[1] else {})
    return claimed.call(f"steps/{claimed.steps[1]['id']}/status", body)


@pytest.mark.parametrize(("first", "second"), list(itertools.product(STEP_WORDS, STEP_WORDS)), ids=str)
def test_each_move_of_a_step(claimed, first, second):
    assert report(claimed, first).status_code == 200
    before = JobStep.objects.values().get(pk=claimed.steps[1]["id"])
    response = report(claimed, second)
    allowed = first == second or second[0] in STEP_TRANSITIONS[first[0]]
    if not allowed:
        error_of(response, 400)
        assert JobStep.objects.values().get(pk=claimed.steps[1]["id"]) == before
        return
    shown = {name: response.json()[name] for name in ("status", "conclusion")}
    defaults = {"cancelled": "cancelled", "skipped": "skipped"}
    assert shown == {"status": second[0], "conclusion": second[1] or defaults.get(second[0])}
    if first == second:
        assert JobStep.objects.values().get(pk=claimed.steps[1]["id"]) == before
    assert "next_token" in response.json()


@pytest.mark.parametrize("conclusion", Conclusion.values)
@pytest.mark.parametrize("status", ["completed", "cancelled", "skipped"])
def test_an_end_of_a_step_keeps_its_conclusion_and_times(claimed, status, conclusion):
    assert claimed.end_step(0, conclusion, status).json()["conclusion"] == conclusion
    step = JobStep.objects.get(pk=claimed.steps[0]["id"])
    assert step.started_at == parse_timestamp("2026-05-10T21:00:00Z")
    assert step.completed_at == parse_timestamp("2026-05-10T21:00:30.5Z")


def test_a_step_without_times_has_those_of_the_server(claimed):
    report(claimed, ("completed", "success"))
    step = JobStep.objects.get(pk=claimed.steps[1]["id"])
    assert step.started_at == step.completed_at
    assert step.started_at is not None


def test_a_skipped_step_has_no_start(claimed):
    report(claimed, ("skipped", None))
    step = JobStep.objects.get(pk=claimed.steps[1]["id"])
    assert (step.started_at, step.completed_at is None) == (None, False)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"status": "queued"},
        {"status": "completed"},
        {"status": "completed", "conclusion": "stale"},
        {"status": "running", "conclusion": "success"},
        {"status": "completed", "conclusion": "success", "completed_at": "soon"},
        {"status": "completed", "conclusion": "success", "index": 1},
    ],
    ids=str,
)
def test_a_bad_status_of_a_step_is_400(claimed, body):
    error_of(claimed.call(f"steps/{claimed.steps[0]['id']}/status", body), 400)
    assert JobStep.objects.get(pk=claimed.steps[0]["id"]).status == StepStatus.QUEUED


@pytest.mark.parametrize("step", ["0", "-1", "x", "999999999", "9223372036854775808"])
def test_an_unknown_step_is_404_and_has_used_the_token(claimed, step):
    used = used_tokens()
    error_of(claimed.call(f"steps/{step}/status", {"status": "running"}), 404)
    assert used_tokens() == used + 1


def test_a_step_of_another_job_is_404(runner):
    start_run(specs=[actions_spec(), actions_spec(job_key="other")])
    first, second = runner.client.claim(capacity=2), runner.client.claim(capacity=2)
    error_of(first.call(f"steps/{second.steps[0]['id']}/status", {"status": "running"}), 404)
    other = {"seq": 0, "chunk": "YQ==", "step_id": first.steps[0]["id"]}
    error_of(second.call("logs", other), 404)


def test_a_step_that_times_out_counts_once(claimed, counted):
    claimed.end_step(0, "timed_out")
    claimed.end_step(0, "timed_out")
    assert counted.count(counters.STEP_TIMEOUTS) == 1


def test_continue_on_error_is_the_runners_business(claimed):
    claimed.end_step(0, "failure")
    assert claimed.end().json()["conclusion"] == "success"


@pytest.mark.parametrize("words", [("running", None), ("completed", "success"), ("cancelled", None)], ids=str)
def test_a_change_of_a_step_is_announced_to_followers_and_a_repetition_is_not(claimed, monkeypatch, words):
    announced: list[str] = []
    monkeypatch.setattr(announcer, "announce", announced.extend)
    report(claimed, words)
    assert set(announced) == {stored(claimed).job_ulid}
    announced.clear()
    report(claimed, words)
    assert announced == []


def test_steps_leave_no_events(claimed):
    before = JobEvent.objects.count()
    claimed.end_step(0)
    assert JobEvent.objects.count() == before


# --- logs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        {"seq": 0, "chunk": "aGVsbG8K"},
        {"seq": 0, "chunk": "aGVsbG8K", "step_id": None},
        {"seq": 0, "chunk": "aGVsbG8K", "step_id": 0},
        {"seq": 5, "chunk": "aGVsbG8"},
        {"seq": 2147483647, "chunk": "aGVs\r\nbG8K"},
    ],
    ids=str,
)
def test_a_chunk_is_accepted_without_a_step_for_the_first_one(claimed, body):
    response = claimed.call("logs", body)
    assert (response.status_code, response.json()["accepted"]) == (202, True)


def test_numbers_may_have_gaps_and_the_first_chunk_of_a_number_counts(claimed):
    for seq, data in ((0, b"a\n"), (5, b"f\n"), (0, b"other\n"), (5, b"f\n"), (2, b"c\n"), (2, b"z")):
        response = claimed.log(data, seq=seq)
        assert (response.status_code, response.json()["accepted"]) == (202, True)
    claimed.end_step(0)
    stored_log = b"".join(read_step_log(JobStep.objects.get(pk=claimed.steps[0]["id"])))
    assert stored_log == b"a\nc\nf\n"


@pytest.mark.parametrize("size", [1, 512 << 10])
def test_chunks_of_all_sizes_are_accepted(claimed, size):
    assert claimed.log(b"x" * size).status_code == 202


BAD_CHUNKS = [
    {},
    {"seq": 0},
    {"chunk": "YQ=="},
    {"seq": -1, "chunk": "YQ=="},
    {"seq": 2147483648, "chunk": "YQ=="},
    {"seq": "0", "chunk": "YQ=="},
    {"seq": 0.0, "chunk": "YQ=="},
    {"seq": True, "chunk": "YQ=="},
    {"seq": None, "chunk": "YQ=="},
    {"seq": 0, "chunk": ""},
    {"seq": 0, "chunk": None},
    {"seq": 0, "chunk": 1},
    {"seq": 0, "chunk": "Y"},
    {"seq": 0, "chunk": "YQ=a"},
    {"seq": 0, "chunk": "YQ-_"},
    {"seq": 0, "chunk": "Y Q=="},
    {"seq": 0, "chunk": "YQ==", "step_id": "1"},
    {"seq": 0, "chunk": "YQ==", "step_id": 1.5},
    {"seq": 0, "chunk": "YQ==", "step_id": 2**63},
    {"seq": 0, "chunk": "YQ==", "more": 1},
]


@pytest.mark.parametrize("body", BAD_CHUNKS, ids=str)
def test_a_bad_chunk_is_400(claimed, body):
    error_of(claimed.call("logs", body), 400)


def test_a_chunk_of_more_than_512_kib_is_400_and_a_body_above_the_limit_413(claimed):
    error_of(claimed.log(b"x" * ((512 << 10) + 1)), 400)


def test_a_body_above_the_limit_is_413_and_uses_no_token(claimed):
    with nothing_lost():
        error_of(claimed.call("logs", b"x" * ((768 << 10) + 1)), 413)


@pytest.mark.parametrize("step", [999_999_999, -5])
def test_a_chunk_of_an_unknown_step_is_404(claimed, step):
    error_of(claimed.call("logs", {"seq": 0, "chunk": "YQ==", "step_id": step}), 404)


def test_masks_that_do_not_open_are_500_and_nothing_is_stored(monkeypatch, claimed):
    from orchestrator.core.sealing import SealedValueError  # noqa: PLC0415
    from orchestrator.protocols.shithub.jobs import effects  # noqa: PLC0415

    def refuse(_job):
        raise SealedValueError("altered")

    monkeypatch.setattr(effects, "masks_of", refuse)
    with nothing_lost():
        error_of(claimed.log(b"hello\n"), 500)


def test_a_chunk_and_a_question_write_no_row_of_the_job(claimed):
    Lease.objects.update(expires_at=database_now() + timedelta(seconds=5))
    before = Job.objects.values().get(pk=claimed.job["id"])
    assert claimed.log(b"hello\n").status_code == 202
    assert claimed.check_cancel().status_code == 200
    assert Job.objects.values().get(pk=claimed.job["id"]) == before
    assert lease_of(claimed).expires_at > database_now() + timedelta(seconds=50), "the lease was renewed"


# --- leases and chains ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("act", ["log", "check_cancel", "end_step"])
def test_any_call_takes_up_a_claim(granted, act):
    arguments = {"log": (b"x",)}.get(act, ())
    assert getattr(granted, act)(*arguments).status_code in {200, 202}
    assert (stored(granted).state, lease_of(granted).state) == (JobState.EXECUTING, LeaseState.ACTIVE)


@pytest.mark.parametrize("act", ["run", "log", "check_cancel", "end_step"])
def test_any_call_renews_the_lease(claimed, act):
    Lease.objects.update(expires_at=database_now() + timedelta(seconds=5))
    getattr(claimed, act)(*{"log": (b"x",)}.get(act, ()))
    assert lease_of(claimed).expires_at > database_now() + timedelta(seconds=50)


def test_cancel_check_reads_no_body(claimed):
    assert claimed.call("cancel-check", b"not JSON").status_code == 200


def test_a_new_chain_ends_all_older_tokens_and_continues_the_job(claimed):
    older = [claimed.token, *spare(claimed)]
    response = claimed.runner.post(f"{claimed.path}/token")
    assert response.status_code == 200
    assert set(response.json()) == {"token", "expires_at", "checkout_token"}
    for token in older:
        error_of(claimed.call("cancel-check", token=token), 401)
    claimed.token = response.json()["token"]
    assert claimed.log(b"hello\n").status_code == 202
    assert claimed.end().status_code == 200


def test_a_second_new_chain_ends_the_first_one(claimed):
    first = claimed.runner.post(f"{claimed.path}/token").json()
    second = claimed.runner.post(f"{claimed.path}/token").json()
    error_of(claimed.call("cancel-check", token=first["token"]), 401)
    assert claimed.call("cancel-check", token=second["token"]).status_code == 200


def test_a_new_chain_takes_up_a_claim_whose_answer_got_lost(granted):
    response = granted.runner.post(f"{granted.path}/token")
    assert response.status_code == 200
    assert stored(granted).state == JobState.EXECUTING


def test_a_new_chain_needs_the_registration_token_of_the_runner_that_has_the_job(claimed):
    from tests.orchestrator.protocols.shithub.world import register  # noqa: PLC0415

    other = register("runner-2")
    with nothing_lost():
        error_of(other.client.post(f"{claimed.path}/token"), 404)
        error_of(claimed.runner.post(f"{claimed.path}/token", token=claimed.token), 401)
        error_of(claimed.runner.post("/api/v1/jobs/x/token"), 404)
        error_of(claimed.runner.post("/api/v1/jobs/999999/token"), 404)


@pytest.mark.parametrize("key", ["0", "-1", "1" * 20, "0" * 19 + "1", "1" * 4_400, "\u0661"])
@pytest.mark.parametrize("call", ["cancel-check", "token"])
def test_a_job_whose_key_is_no_number_of_a_row_is_404(claimed, call, key):
    """Python refuses to read a number of 4,400 digits, and PostgreSQL one of 20."""
    error_of(claimed.runner.post(f"/api/v1/jobs/{key}/{call}"), 404)


def test_a_new_chain_is_refused_after_the_end_of_the_job(claimed):
    claimed.end()
    with nothing_lost():
        error_of(claimed.runner.post(f"{claimed.path}/token"), 404)


def test_a_later_lease_begins_with_the_first_chain(granted):
    granted.runner.post(f"{granted.path}/token")
    job = stored(granted)
    Job.objects.filter(pk=job.pk).update(state="starting")  # so that the job can be released
    Lease.objects.update(state="granted", acknowledged_at=None)
    Job.objects.filter(pk=job.pk).update(state="leased")
    expiry.expire(job_ulid=job.job_ulid, now=database_now() + timedelta(seconds=120))
    found = granted.runner.claim()
    assert found.run().status_code == 200
