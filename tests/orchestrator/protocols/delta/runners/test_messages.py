"""Each message of document 001 and of the real runner: its effect on the job, and its response."""

import pytest

from leases.states import LeaseState
from orchestrator.services import cancellation, expiry
from runtime_jobs.models import Artifact, FailureExplanation, Job, JobEvent
from runtime_jobs.states import CancelReason, FailureReason, JobState
from tests.api_client import Caller
from tests.db_snapshot import nothing_lost
from tests.factories import ALICE, COMMIT, PoolFactory, WorkerFactory, claimed, source, submitted, submitted_steps
from tests.orchestrator.protocols.delta.messages import PATHS, Held, error_of, recorded
from tests.orchestrator.services.conftest import after

pytestmark = pytest.mark.django_db
LEASE = PATHS["LeaseRequest"]


def cancel(held, *, reason=CancelReason.REQUESTED, seconds=30.0):
    return cancellation.cancel(job_ulid=held.job.job_ulid, actor=ALICE, deadline_seconds=seconds, reason=reason)


# --- LeaseGranted -----------------------------------------------------------------------------------------------------


def test_a_lease_is_granted_in_the_documents_shape(project, wendy):
    job = submitted_steps(
        project,
        environment={"CI": "true"},
        artifacts=(),
    )
    response = wendy.post(LEASE, {"runner_id": "local-worker"})
    granted, shown = response.json(), recorded("note_lease_granted")
    assert response.status_code == 200
    assert set(shown) - {"cancel_token"} <= set(granted)
    assert set(shown["job_spec"]) - {"image"} == set(granted["job_spec"])
    assert (granted["type"], granted["job_id"], granted["run_id"]) == ("LeaseGranted", job.job_ulid, job.job_ulid)
    assert (granted["lease_ttl_seconds"], granted["heartbeat_interval_seconds"]) == (120, 20)
    assert granted["max_runtime_seconds"] == 300
    assert granted["job_spec"]["steps"] == ["make test"]
    assert granted["job_spec"]["env"] == {"CI": "true"}
    assert Job.objects.get().state == JobState.LEASED


def test_what_is_to_be_checked_out_is_shown_where_there_is_something(project, wendy):
    submitted_steps(project, source=source(), image=None)
    spec = wendy.post(LEASE, {"runner_id": "r"}).json()["job_spec"]
    assert (spec["source"]["repo_url"], spec["source"]["git_commit"]) == (source().repo_url, COMMIT)


def test_a_lease_outlives_its_heartbeats_whatever_is_set(project, worker, wendy):
    submitted_steps(project)
    Job.objects.update(lease_ttl_seconds=10, heartbeat_interval_seconds=10)
    granted = wendy.post(LEASE, {"runner_id": "r"}).json()
    assert granted["heartbeat_interval_seconds"] < granted["lease_ttl_seconds"] == 10


def test_without_work_there_is_nothing_to_say(project, wendy):
    submitted(project)  # a runtime job is not served by this protocol
    response = wendy.post(LEASE, {"runner_id": "r"})
    assert (response.status_code, response.content) == (204, b"")


@pytest.mark.parametrize(("tags", "status"), [(None, 200), (["linux", "namespaces", "go"], 200), (["go"], 204)])
def test_tags_only_narrow_what_is_registered(project, wendy, tags, status):
    submitted_steps(project)
    assert wendy.post(LEASE, {"runner_id": "r", "capabilities": tags}).status_code == status


def test_a_repeated_request_for_a_lease_gets_the_same_one(project, wendy):
    submitted_steps(project)
    first, again = (wendy.post(LEASE, {"runner_id": "r"}, **{"Idempotency-Key": "k"}) for _ in range(2))
    assert first.json() == again.json()
    assert again["Idempotency-Replayed"] == "true"


def test_a_retry_is_the_same_job_and_another_attempt(project, granted):
    granted.say("runner_ack_lease")
    expiry.expire(job_ulid=granted.job.job_ulid, now=after(granted.lease.expires_at, 1))
    message = granted.caller.post(LEASE, {"runner_id": "r"}).json()
    assert (message["job_id"], message["attempt_number"]) == (granted.job.job_ulid, 2)
    assert message["attempt_id"] != message["job_id"]
    assert message["lease_id"] != granted.lease.lease_ulid


# --- AckLease ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["note_ack_lease", "runner_ack_lease"])
def test_acknowledging_takes_the_lease_up(granted, name):
    response = granted.say(name)
    assert (response.status_code, response.json()["type"]) == (200, "LeaseAccepted")
    assert (granted.lease.state, granted.job.state) == (LeaseState.ACTIVE, JobState.STARTING)


def test_acknowledging_again_changes_nothing(held):
    with nothing_lost():
        assert held.say("runner_ack_lease").json()["type"] == "LeaseAccepted"


def test_it_may_be_acknowledged_after_a_cancel_was_asked_for_and_is_reported_with_the_first_heartbeat(granted):
    cancel(granted)
    assert granted.say("runner_ack_lease").status_code == 200
    assert granted.say("runner_heartbeat").json()["cancel_requested"] is True


def test_the_runners_own_name_is_in_the_trail(held):
    started = JobEvent.objects.get(event_type="job.started")
    assert (started.worker_id, started.payload_json) == (held.worker.worker_id, {"runner_id": "local-worker"})


# --- Heartbeat --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["note_heartbeat", "runner_heartbeat"])
def test_a_heartbeat_is_answered_as_the_documents_show(held, name):
    response = held.say(name, runner_id="local-worker")
    assert response.status_code == 200
    assert response.json() == recorded("note_heartbeat_ack") | {"lease_id": held.lease.lease_ulid}
    assert held.job.state == JobState.EXECUTING


def test_the_first_heartbeat_is_an_acknowledgement(granted):
    assert granted.say("runner_heartbeat").status_code == 200
    assert granted.event_types == ["job.queued", "job.leased", "job.started", "job.progress"]


def test_progress_and_log_cursor_are_kept_and_one_without_them_keeps_them(held):
    held.say("note_heartbeat", runner_id="local-worker")
    held.say("runner_heartbeat")
    response_body = recorded("note_heartbeat")
    assert held.job.progress == response_body["progress"] | {"log_cursor": response_body["log_cursor"]}


def test_a_long_word_costs_no_job(held):
    response = held.say(
        "note_heartbeat",
        runner_id="local-worker",
        progress={"current_step": "x" * 5000, "message": None},
        log_cursor=None,
    )
    assert response.status_code == 200
    assert held.job.progress == {"current_step": "x" * 200}


@pytest.mark.parametrize("ts", ["1999-01-01T00:00:00Z", "2199-01-01T00:00:00Z", "0001-01-01T00:00:00Z", None])
def test_the_runners_clock_decides_nothing(held, ts):
    before = held.lease.expires_at
    assert held.say("runner_heartbeat", ts=ts).json()["extend_lease"] is True
    assert 0 <= (held.lease.expires_at - before).total_seconds() < 60


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        (CancelReason.REQUESTED, "JOB_CANCELED"),
        (CancelReason.OPERATOR, "JOB_CANCELED"),
        (CancelReason.BATCH_CANCELED, "RUN_CANCELED"),
        (CancelReason.SUPERSEDED, "SUPERSEDED"),
        (CancelReason.TIMEOUT, "TIMEOUT"),
        (CancelReason.DEPENDENCY_FAILED, "JOB_CANCELED"),
        (CancelReason.CONDITION_FALSE, "JOB_CANCELED"),
        (CancelReason.STOPPED_BY_WORKER, "JOB_CANCELED"),
    ],
)
def test_a_cancel_is_reported_with_its_reason_and_what_is_left_of_its_time(held, reason, word):
    cancel(held, reason=reason, seconds=3600)
    response_body = held.say("runner_heartbeat").json()
    assert (response_body["cancel_requested"], response_body["cancel_reason"]) == (True, word)
    assert 3590 < response_body["cancel_deadline_seconds"] <= 3600
    assert type(response_body["cancel_deadline_seconds"]) is int
    asked = JobEvent.objects.get(event_type="job.cancel_requested")
    assert asked.payload_json["reason"] == reason, "the trail has our own word"


def test_a_cancel_whose_time_is_over_leaves_none(held):
    cancel(held, seconds=0)
    assert held.say("runner_heartbeat").json()["cancel_deadline_seconds"] == 0
    expiry.force_cancel(job_ulid=held.job.job_ulid)


# --- Complete ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["note_complete", "runner_complete_succeeded"])
def test_a_success_ends_the_job(held, name):
    response = held.say(name)
    assert response.status_code == 200
    assert response.json() == recorded("note_complete_ack") | {"lease_id": held.lease.lease_ulid}
    job = held.job
    assert (job.state, job.public_status, job.exit_code) == (JobState.SUCCEEDED, "succeeded", 0)
    assert held.lease.state == LeaseState.COMPLETED
    assert held.event_types[-1] == "job.completed"
    assert job.result["finished_at"].startswith("2026-01-04T08:03:12")


@pytest.mark.parametrize(
    ("name", "changes", "reason", "exit_code"),
    [
        ("runner_complete_failed", {}, FailureReason.COMMAND_FAILED, 1),
        ("runner_complete_killed", {}, FailureReason.COMMAND_FAILED, -1),
        ("runner_complete_failed", {"exit_code": None}, FailureReason.COMMAND_FAILED, None),
        ("runner_complete_failed", {"status": "TIMED_OUT"}, FailureReason.TIMED_OUT, 1),
    ],
)
def test_a_failure_ends_the_job_and_is_not_tried_again(held, name, changes, reason, exit_code):
    assert held.say(name, **changes).json()["accepted"] is True
    job = held.job
    assert (job.state, job.failure_reason, job.exit_code) == (JobState.FAILED, reason, exit_code)
    assert job.failure_message == recorded(name)["summary"]
    assert held.event_types[-1] == "job.failed"
    assert Job.objects.count() == 1


def test_what_is_reported_of_caches_is_kept_where_it_says_anything(held):
    held.say("runner_complete_failed")
    assert held.job.result["caches"] == [{"type": "deps", "key": "go:1f", "hit": True, "read_only": False}]


@pytest.mark.parametrize("name", ["runner_complete_succeeded", "runner_complete_failed", "note_complete"])
def test_a_repeated_end_is_answered_alike_also_after_the_lease_would_have_ended(held, name):
    first = held.say(name)
    with nothing_lost():
        again = held.say(name, summary="in other words", finished_at="2030-01-01T00:00:00Z")
    assert (again.status_code, again.json()) == (first.status_code, first.json()) == (200, first.json())


def test_an_end_before_the_acknowledgement_implies_it(granted):
    assert granted.say("runner_complete_succeeded").status_code == 200
    assert granted.event_types == ["job.queued", "job.leased", "job.started", "job.completed"]


def test_within_the_grace_time_of_a_cancel_a_result_does_not_count_and_its_runner_hears_it(held):
    cancel(held)
    first, again = held.say("runner_complete_succeeded"), held.say("runner_complete_succeeded")
    assert first.json() == again.json() == {"type": "CompleteAck", "lease_id": held.lease.lease_ulid, "accepted": False}
    assert (held.job.state, held.lease.state) == (JobState.CANCELED, LeaseState.CANCELED)


def test_a_job_that_ends_with_a_run_does_not_end_here(project, worker, wendy):
    submitted(project)
    taken = claimed(worker)
    message = recorded("runner_complete_succeeded") | {"lease_id": taken.lease.lease_ulid}
    with nothing_lost():
        error_of(wendy.post(PATHS["Complete"], message), 400, "INVALID_REQUEST")


# --- CancelAck --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["note_cancel_ack", "runner_cancel_ack"])
def test_a_cancel_ends_with_its_acknowledgement(held, name):
    cancel(held, reason=CancelReason.SUPERSEDED)
    first = held.say(name)
    assert (first.status_code, first.json()["final_status"]) == (200, "CANCELED")
    assert (held.job.state, held.job.cancel_reason) == (JobState.CANCELED, CancelReason.SUPERSEDED)
    assert JobEvent.objects.get(event_type="job.canceled").payload_json["reason"] == "superseded"
    assert Artifact.objects.count() == len(recorded(name).get("artifacts", []))
    with nothing_lost():
        assert held.say(name).json() == first.json()


def test_a_cancel_that_nobody_has_asked_for_is_refused(held):
    with nothing_lost():
        error = error_of(held.say("runner_cancel_ack"), 409, "INVALID_STATE")
    assert error["details"]["code"] == "cancel_not_requested"


# --- what is left behind ----------------------------------------------------------------------------------------------


def test_artifacts_are_kept_each_once(held):
    response_body = recorded("note_complete")["artifacts"]
    held.say("note_complete", artifacts=[*response_body, response_body[0]])
    assert list(Artifact.objects.order_by("pk").values("type", "uri")) == response_body


def test_other_artifacts_make_it_another_message(held):
    held.say("note_complete")
    assert held.say("note_complete", artifacts=recorded("note_complete")["artifacts"][::-1]).status_code == 200
    with nothing_lost():
        error_of(held.say("note_complete", artifacts=[]), 409, "STALE_LEASE")
    assert Artifact.objects.count() == 2


def test_a_failure_is_explained_and_a_success_is_not(project, worker, wendy):
    submitted_steps(project, name="unit-tests")
    submitted_steps(project)
    failed, succeeded = Held(wendy, worker), Held(wendy, worker)
    failed.say("runner_complete_failed")
    succeeded.say("runner_complete_succeeded")
    guess = FailureExplanation.objects.get()
    assert (guess.job_id, guess.category, guess.confidence) == (failed.job.job_ulid, "USER", "MEDIUM")
    assert guess.summary == "Tests failed (exit code 1)."
    assert guess.details == "exit code 1 | s3://bucket/runs/run_456/jobs/job_123/log.txt"


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("runner_ack_lease", {"type": "AckLeases"}),
        ("runner_ack_lease", {"type": None}),
        ("runner_ack_lease", {"accepted_at": "yesterday"}),
        ("runner_ack_lease", {"runner_id": None}),
        ("runner_heartbeat", {"type": "Complete"}),
        ("runner_heartbeat", {"progress": {"percent": "35"}}),
        ("runner_heartbeat", {"progress": {"percent": 101}}),
        ("runner_heartbeat", {"log_cursor": {"bytes_sent": -1}}),
        ("runner_heartbeat", {"log_cursor": {}}),
        ("runner_complete_succeeded", {"status": "CANCELED"}),
        ("runner_complete_succeeded", {"status": "succeeded"}),
        ("runner_complete_succeeded", {"status": "SUCCESS"}),
        ("runner_complete_succeeded", {"exit_code": 2**31}),
        ("runner_complete_succeeded", {"exit_code": True}),
        ("runner_complete_succeeded", {"artifacts": [{"type": "log", "uri": ""}]}),
        ("runner_complete_succeeded", {"artifacts": [{"type": "", "uri": "s3://x"}]}),
        ("runner_complete_succeeded", {"artifacts": [{"type": " ", "uri": "s3://x"}]}),
        ("runner_complete_succeeded", {"artifacts": [{"type": "log"}]}),
        ("runner_complete_succeeded", {"artifacts": [{"type": "log", "uri": "s3://" + "x" * 2048}]}),
        ("runner_complete_succeeded", {"artifacts": [{"type": "log", "uri": "s3://a\u202eb"}]}),
        ("runner_complete_succeeded", {"artifacts": [{"type": "log", "uri": "s3://a\nb"}]}),
        ("runner_complete_succeeded", {"artifacts": [{"type": "x", "uri": f"s3://{n}"} for n in range(101)]}),
        ("runner_complete_succeeded", {"artifacts": {"type": "log", "uri": "s3://x"}}),
        ("runner_cancel_ack", {"final_status": "SUCCEEDED"}),
        ("runner_cancel_ack", {"final_status": None}),
    ],
)
def test_what_no_document_knows_is_refused_and_changes_nothing(held, name, changes):
    cancel(held)
    with nothing_lost():
        error = error_of(held.say(name, **changes), 400, "INVALID_REQUEST")
    assert error["details"]["errors"]


@pytest.mark.parametrize("name", ["runner_ack_lease", "runner_heartbeat", "runner_complete_succeeded"])
def test_fields_that_nobody_knows_are_ignored(granted, name):
    assert granted.say(name, protocol_version=7, nested={"a": [1]}).status_code == 200


@pytest.mark.parametrize("name", ["runner_ack_lease", "runner_heartbeat", "runner_complete_succeeded"])
def test_a_message_about_another_job_is_refused_and_changes_nothing(project, granted, name):
    other = submitted_steps(project)
    with nothing_lost():
        message = granted.message(name) | {"job_id": other.job_ulid}
        response = granted.caller.post(PATHS[message["type"]], message)
        error = error_of(response, 400, "INVALID_REQUEST")
    assert set(error["details"]["errors"]) == {"job_id"}


def test_no_answer_and_no_event_but_the_grant_shows_a_lease_id(held):
    uri = f"s3://logs/{held.lease.lease_ulid}.txt"
    refused = held.say("runner_complete_failed", artifacts=[{"type": "log", "uri": uri}])
    assert held.lease.lease_ulid not in refused.content.decode()
    held.say("runner_complete_failed", summary=f"posting {held.lease.lease_ulid} failed", artifacts=None)
    assert held.lease.lease_ulid not in held.job.failure_message
    assert not JobEvent.objects.filter(payload_json__icontains=held.lease.lease_ulid).exists()


def test_a_runner_of_another_pool_gets_no_job(project, granted):
    other = Caller(WorkerFactory(pool=PoolFactory(slug="elsewhere")).token)
    submitted_steps(project)
    assert other.post(LEASE, {"runner_id": "r"}).status_code == 204
