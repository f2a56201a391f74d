"""`POST /api/v1/runners/heartbeat` (contract 2.1): what it records, claims and refuses."""

import json
from datetime import timedelta

import pytest

from leases.models import Lease
from leases.scheduling.claims import ClaimResult, claim_jobs
from leases.states import LeaseState
from orchestrator.core import counters
from orchestrator.core.cause import Cause
from orchestrator.core.datetimes import parse_timestamp
from orchestrator.core.sealing import SealedValueError
from orchestrator.job_tokens.claims import TokenPurpose, verify
from orchestrator.limits import throttles
from orchestrator.limits.throttles import ThrottleWindow
from orchestrator.protocols.shithub.heartbeat import operation
from orchestrator.services import actions_runners, cancellation, worker_state
from orchestrator.services.expiry import expire
from orchestrator.workflows.run_reads import state_of_run
from runtime_jobs.db_time import database_now
from runtime_jobs.models import Job
from runtime_jobs.states import CancelReason, JobState
from tests.db_snapshot import nothing_lost
from tests.factories import COMMIT, OPERATOR
from tests.orchestrator.protocols.shithub.conftest import error_of, used_tokens
from tests.orchestrator.protocols.shithub.runner import HEARTBEAT, LABELS, RunnerClient
from tests.orchestrator.protocols.shithub.world import actions_spec, make_repository, register, start_run
from workers.models import ActionsRunner, RegistrationToken, Worker
from workers.registry.models import WorkerState

pytestmark = pytest.mark.django_db


def test_a_claim_has_every_member_of_the_contract(settings, runner, run, counted):
    settings.PUBLIC_URL = "https://ci.example/"
    counted.clear()
    response = runner.client.heartbeat()
    assert response.status_code == 200
    assert response["Content-Type"] == "application/json; charset=utf-8"
    assert response["Cache-Control"] == "no-store"
    assert response.content.endswith(b"\n")
    claim = response.json()
    job = claim["job"]
    assert set(claim) == {"token", "expires_at", "job"}
    ids = [step.pk for step in run.job.steps.order_by("index")]
    assert {name: value for name, value in job.items() if name != "checkout_token"} == {
        "id": run.job.pk,
        "run_id": run.run.pk,
        "repo_id": run.run.repository_id,
        "run_index": 1,
        "workflow_file": ".shithub/workflows/ci.yml",
        "workflow_name": "ci",
        "checkout_url": "https://ci.example/alice/demo.git",
        "head_sha": COMMIT,
        "head_ref": "refs/heads/trunk",
        "event": "push",
        "event_payload": {"ref": "refs/heads/trunk"},
        "job_key": "build",
        "job_name": "build",
        "runs_on": "ubuntu-latest",
        "needs": [],
        "if": "",
        "timeout_minutes": 5,
        "permissions": {},
        "secrets": None,
        "mask_values": None,
        "env": {},
        "variables": None,
        "environment": "",
        "environment_url": "",
        "steps": [
            {
                "id": ids[0], "index": 0, "step_id": "", "name": "", "if": "", "run": "",
                "uses": "actions/checkout@v4", "working_directory": "", "env": {}, "with": {},
                "continue_on_error": False,
            },
            {
                "id": ids[1], "index": 1, "step_id": "t", "name": "Test", "if": "", "run": "echo hello",
                "uses": "", "working_directory": "", "env": {}, "with": {}, "continue_on_error": False,
            },
        ],
    }  # fmt: skip
    assert len(claim["expires_at"]) == len("2026-05-10T21:15:00Z")
    expiry = parse_timestamp(claim["expires_at"])
    lease = Lease.objects.get(job=run.job)
    assert abs(expiry - lease.leased_at - timedelta(minutes=15)) < timedelta(seconds=1)
    for text, purpose in ((claim["token"], TokenPurpose.API), (job["checkout_token"], TokenPurpose.CHECKOUT)):
        token = verify(text)
        named = (token.runner_id, token.job_id, token.run_id, token.repository_id, token.fence, token.purpose)
        assert named == (runner.row.pk, run.job.pk, run.run.pk, run.run.repository_id, lease.fence, purpose)
    assert counted == [counters.HEARTBEAT_CLAIMED, counters.JWT_ISSUED, counters.JWT_ISSUED]


def test_a_claim_grants_a_lease_for_a_minute_and_no_attempt_begins(runner, run):
    runner.client.claim()
    lease = Lease.objects.get(job=run.job)
    run.job.refresh_from_db()
    assert (lease.state, run.job.state) == (LeaseState.GRANTED, JobState.LEASED)
    assert (lease.expires_at - lease.leased_at, lease.ttl_seconds) == (timedelta(seconds=60), 60)


def test_a_claim_whose_answer_got_lost_goes_back_to_the_queue(runner, run):
    lost = runner.client.claim()
    assert runner.client.heartbeat().status_code == 204
    later = database_now() + timedelta(seconds=61)
    assert expire(job_ulid=run.job.job_ulid, now=later) is not None
    run.job.refresh_from_db()
    assert (run.job.state, run.job.attempt, run.job.automatic_retries_spent) == (JobState.QUEUED, 1, 0)
    found = runner.client.claim()
    assert found.job["id"] == run.job.pk
    error_of(lost.run(), 404)
    assert found.run().status_code == 200


@pytest.mark.parametrize("body", [b"", b"{}", b" \n", b'{"labels": null, "capacity": null}', b'{"capacity": 0}'])
def test_without_labels_and_capacity_the_stored_ones_count(body, run):
    runner = register(labels=["ubuntu-latest"], capacity=2)
    assert runner.client.post(HEARTBEAT, body).status_code == 200
    runner.row.refresh_from_db()
    assert (runner.row.labels, runner.row.worker.capacity) == (["ubuntu-latest"], 2)


def test_labels_are_normalized_and_replace_the_stored_ones(runner):
    assert runner.client.heartbeat(labels=[" a ", "b", "a", "x" * 100]).status_code == 204
    runner.row.refresh_from_db()
    assert runner.row.labels == ["a", "b", "x" * 100]


@pytest.mark.parametrize(
    ("runs_on", "labels", "matches"),
    [
        ("", [], True),
        ("", ["linux"], True),
        ("linux", ["linux"], True),
        ("linux", ["Linux"], False),
        ("linux", [], False),
        ("linux", ["linu"], False),
        ("a,b", ["a", "b"], False),
        ("x" * 64, ["x" * 64], True),
        ("x" * 64, ["x" * 63], False),
        ("x" * 100, ["x" * 100], True),
        ("x" * 100, ["x" * 99], False),
    ],
)
def test_a_job_runs_where_its_one_label_is_offered(runner, runs_on, labels, matches):
    start_run(specs=[actions_spec(runs_on=runs_on)])
    assert runner.client.heartbeat(labels=labels).status_code == (200 if matches else 204)


BAD_BODIES = [
    b"[]",
    b"{",
    b"{} {}",
    b'"x"',
    b'{"labels": ["a"], "labels": ["b"]}',
    {"labels": "a"},
    {"labels": [1]},
    {"labels": [""]},
    {"labels": ["  "]},
    {"labels": ["a b"]},
    {"labels": ["ä"]},
    {"labels": ["x" * 101]},
    {"labels": [f"l{n}" for n in range(257)]},
    {"capacity": -1},
    {"capacity": 65},
    {"capacity": "1"},
    {"capacity": 1.0},
    {"capacity": True},
    {"active_job_ids": [1, 2]},
    {"active_job_ids": [0]},
    {"active_job_ids": [-1]},
    {"active_job_ids": ["1"]},
    {"active_job_ids": {}},
    {"capacity": 2, "active_job_ids": [5, 5]},
    {"host_name": 1},
    {"version": []},
    {"name": "runner-1"},
    {"host_name": "h", "version": "1", "labels": [], "capacity": 1, "active_job_ids": [], "sixth": 1},
]


@pytest.mark.parametrize("body", BAD_BODIES, ids=str)
def test_a_bad_body_is_400_and_records_nothing(runner, run, body):
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    before = Worker.objects.values().get(pk=runner.row.pk)
    error_of(runner.client.post(HEARTBEAT, raw), 400)
    assert Worker.objects.values().get(pk=runner.row.pk) == before
    assert not Lease.objects.exists()


def test_the_five_members_of_later_runners_are_accepted_and_stored(runner):
    name = "hö" * 200
    body = {"host_name": f" {name} ", "version": " 1.2.3 ", "active_job_ids": None}
    assert runner.client.heartbeat(**body).status_code == 204
    runner.row.refresh_from_db()
    assert len(runner.row.host_name.encode()) <= 255
    assert name.startswith(runner.row.host_name)
    assert runner.row.version == "1.2.3"
    assert runner.client.heartbeat(host_name="", version="").status_code == 204
    runner.row.refresh_from_db()
    assert runner.row.version == "1.2.3"


def test_capacity_counts_all_jobs_that_the_runner_has(runner):
    start_run(specs=[actions_spec(job_key=f"j{n}") for n in range(4)])
    found = {runner.client.claim(capacity=3).job["id"] for _ in range(3)}
    assert len(found) == 3
    assert runner.client.heartbeat(capacity=3).status_code == 204
    assert runner.client.heartbeat(capacity=4).status_code == 200


def test_a_job_whose_cancel_was_requested_counts_until_it_has_ended(runner):
    first = start_run(specs=[actions_spec(), actions_spec(job_key="other")])
    claimed = runner.client.claim()
    claimed.run()
    cancellation.cancel(job_ulid=first.job.job_ulid, actor=OPERATOR, deadline_seconds=30)
    assert runner.client.heartbeat().status_code == 204
    assert claimed.end("cancelled", "cancelled").status_code == 200
    assert runner.client.heartbeat().status_code == 200


def test_a_drained_runner_is_recorded_and_gets_no_job(runner, run):
    worker_state.set_worker_state(worker_id=runner.worker_id, state=WorkerState.DRAINING, cause=Cause(OPERATOR))
    assert runner.client.heartbeat(version="9").status_code == 204
    runner.row.refresh_from_db()
    assert runner.row.version == "9"
    assert Worker.objects.get(pk=runner.row.pk).last_seen_at is not None
    worker_state.set_worker_state(worker_id=runner.worker_id, state=WorkerState.ACTIVE, cause=Cause(OPERATOR))
    assert runner.client.heartbeat().status_code == 200


def test_a_running_job_that_the_runner_does_not_list_ends_as_its_own_cancel(runner, counted):
    runs = start_run(specs=[actions_spec(), actions_spec(job_key="other")])
    kept, lost = runner.client.claim(capacity=2), runner.client.claim(capacity=2)
    assert [claimed.run().status_code for claimed in (kept, lost)] == [200, 200]
    assert runner.client.heartbeat(capacity=2, active_job_ids=[kept.job["id"]]).status_code == 204
    states = {job.pk: (job.state, job.cancel_reason) for job in Job.objects.filter(batch=runs.job.batch)}
    assert states[lost.job["id"]] == (JobState.CANCELED, CancelReason.STOPPED_BY_WORKER)
    assert states[kept.job["id"]][0] == JobState.EXECUTING
    assert {step.status for step in Job.objects.get(pk=lost.job["id"]).steps.all()} == {"cancelled"}
    assert lost.check_cancel().json()["cancelled"] is True, "a process that still executes the job stops it"
    assert lost.end("cancelled", "cancelled").status_code == 200
    assert kept.check_cancel().json()["cancelled"] is False


@pytest.mark.parametrize("labels", [[], LABELS], ids=["no label", "labels"])
def test_an_empty_list_ends_the_job_at_once_and_the_same_heartbeat_claims_the_next_one(runner, labels):
    first = start_run(specs=[actions_spec(runs_on="")])
    claimed = runner.client.claim()
    assert claimed.run().status_code == 200
    second = start_run(specs=[actions_spec(runs_on="")])
    response = runner.client.heartbeat(active_job_ids=[], labels=labels)
    assert (response.status_code, response.json()["job"]["id"]) == (200, second.job.pk)
    first.job.refresh_from_db()
    assert (first.job.state, first.job.cancel_reason) == (JobState.CANCELED, CancelReason.STOPPED_BY_WORKER)
    assert state_of_run(first.run).conclusion == "cancelled"
    assert not Lease.objects.open().filter(job=first.job).exists()


def test_a_late_copy_of_a_heartbeat_ends_its_own_job_whose_runner_learns_it_from_each_call(runner, run):
    """A network that repeats requests does this; `make chaos` relies on these answers."""
    heartbeat = {"active_job_ids": []}
    claimed = runner.client.claim(**heartbeat)
    assert claimed.run().status_code == 200
    assert runner.client.heartbeat(**heartbeat).status_code == 204
    assert claimed.check_cancel().json()["cancelled"] is True
    assert claimed.log(b"late\n").status_code == 202
    assert "is cancelled" in error_of(claimed.end_step(), 400)
    assert runner.client.post(f"{claimed.path}/token").status_code == 404
    assert runner.client.heartbeat(**heartbeat).status_code == 204


def test_a_list_that_is_null_or_absent_ends_nothing(runner, run):
    claimed = runner.client.claim()
    claimed.run()
    for body in ({}, {"active_job_ids": None}):
        assert runner.client.heartbeat(**body).status_code == 204
    assert claimed.end().status_code == 200


def test_a_claimed_job_that_never_began_is_not_ended_by_a_list(runner, run):
    claimed = runner.client.claim()
    assert runner.client.heartbeat(active_job_ids=[]).status_code == 204
    assert claimed.run().status_code == 200


def test_jobs_of_other_runners_are_never_ended_by_a_list(runner, run):
    other = register("runner-2")
    claimed = other.client.claim()
    claimed.run()
    assert runner.client.heartbeat(active_job_ids=[]).status_code == 204
    assert claimed.check_cancel().json()["cancelled"] is False


def test_the_oldest_job_is_claimed_first(runner):
    repository = make_repository()
    first, second = start_run(repository), start_run(repository)
    found = [runner.client.claim(capacity=2).job["id"] for _ in range(2)]
    assert found == [first.job.pk, second.job.pk]


def test_a_secret_that_does_not_open_is_500_and_the_job_stays_queued(monkeypatch, runner, run):
    def refuse(*_args, **_options):
        raise SealedValueError("altered")

    with monkeypatch.context() as patch, nothing_lost():
        patch.setattr("orchestrator.protocols.shithub.heartbeat.operation.snapshot_secrets", refuse)
        error_of(runner.client.heartbeat(), 500)
    assert runner.client.heartbeat().status_code == 200


# --- authentication ---------------------------------------------------------------------------------------------------


def test_tokens_are_hexadecimal_digits_in_either_case_with_blanks_around_them(runner):
    token = runner.client.registration
    assert len(token) == 64
    assert token == token.lower()
    for text in (token.upper(), f"  {token}  "):
        assert runner.client.post(HEARTBEAT, token=text).status_code == 204


def test_the_database_has_the_hash_of_the_raw_bytes_alone(runner):
    import hashlib  # noqa: PLC0415

    token = runner.client.registration
    row = RegistrationToken.objects.get()
    assert bytes(row.digest) == hashlib.sha256(bytes.fromhex(token)).digest()


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "bearer {token}",
        "BEARER {token}",
        "Basic {token}",
        "token {token}",
        "Bearer x{token}",
        "Bearer {token}0",
        "Bearer 0x{token}",
        "Bearer " + "0" * 64,
        "Bearer " + "g" * 64,
        "Bearer " + "ä" * 64,
        "Bearer " + " " * 64,
        "Bearer rto_worker_" + "a" * 43,
        "Bearer " + "a" * 102_400,
    ],
)
def test_a_missing_or_wrong_registration_token_is_401_without_a_challenge(runner, run, header):
    text = None if header is None else header.format(token=runner.client.registration)
    headers = {} if text is None else {"Authorization": text.encode().decode("latin-1")}
    with nothing_lost():
        response = runner.client.http.generic(
            "POST", HEARTBEAT, b"{}", content_type="application/json", headers=headers
        )
    error_of(response, 401)
    assert "WWW-Authenticate" not in response


@pytest.mark.parametrize("cause", ["token revoked", "token expired", "expires now", "runner revoked"])
def test_a_registration_token_that_does_not_count_any_more_is_401(runner, run, cause):
    if cause == "token revoked":
        RegistrationToken.objects.update(revoked_at=database_now())
    elif cause == "token expired":
        RegistrationToken.objects.update(expires_at=database_now() - timedelta(seconds=1))
    elif cause == "expires now":
        RegistrationToken.objects.update(expires_at=database_now())
    else:
        actions_runners.revoke_runner(name="runner-1", cause=Cause(OPERATOR))
    with nothing_lost():
        error_of(runner.client.heartbeat(), 401)


def test_a_runner_that_is_revoked_between_the_check_and_the_claim_gets_no_job(monkeypatch, runner, run):
    from orchestrator.protocols.shithub.heartbeat import views  # noqa: PLC0415

    check = views.authenticate_runner

    def revoke_after(header):
        found = check(header)
        actions_runners.revoke_runner(name="runner-1", cause=Cause(OPERATOR))
        return found

    monkeypatch.setattr(views, "authenticate_runner", revoke_after)
    error_of(runner.client.heartbeat(), 401)
    assert not Lease.objects.exists()


def test_a_token_of_a_job_is_no_registration_token(runner, run):
    claimed = runner.client.claim()
    error_of(runner.client.post(HEARTBEAT, token=claimed.token), 401)


def test_a_native_worker_token_of_the_same_pool_is_no_registration_token(runner, run):
    from tests.factories import WorkerFactory  # noqa: PLC0415

    error_of(runner.client.post(HEARTBEAT, token=WorkerFactory().token), 401)


def test_a_root_key_that_cannot_be_used_is_503_before_authentication(settings, runner):
    settings.ACTIONS_ROOT_KEY = "short"
    error_of(RunnerClient("wrong").heartbeat(), 503)


# --- the limit --------------------------------------------------------------------------------------------------------


def test_the_61st_heartbeat_of_a_minute_is_429_before_its_body_is_read(runner):
    for number in range(1, 61):
        response = runner.client.heartbeat()
        assert (response.status_code, response["X-RateLimit-Remaining"]) == (204, str(60 - number))
        assert response["X-RateLimit-Limit"] == "60"
        assert 0 <= int(response["X-RateLimit-Reset"]) <= 60
    refused = runner.client.post(HEARTBEAT, b"not JSON")
    error_of(refused, 429)
    assert refused["X-RateLimit-Remaining"] == "0"
    assert 0 <= int(refused["Retry-After"]) <= 60
    assert register("runner-2").client.heartbeat().status_code == 204


def test_a_refused_body_counts_and_has_the_headers(runner):
    response = runner.client.post(HEARTBEAT, b"[]")
    error_of(response, 400)
    assert response["X-RateLimit-Remaining"] == "59"


def test_the_window_ends_after_a_minute(runner):
    runner.client.heartbeat()
    ThrottleWindow.objects.update(current=60, ends_at=database_now() - timedelta(seconds=1))
    assert runner.client.heartbeat()["X-RateLimit-Remaining"] == "59"


def test_an_error_of_the_counter_lets_the_heartbeat_through(monkeypatch, runner, run):
    from django.db import OperationalError  # noqa: PLC0415

    def fail(*_):
        raise OperationalError("locked")

    monkeypatch.setattr(throttles, "fetch_all", fail)
    assert runner.client.heartbeat().status_code == 200


def test_a_heartbeat_uses_no_token_of_a_job(runner, run):
    runner.client.claim()
    assert used_tokens() == 0
    assert ActionsRunner.objects.get().labels == LABELS


def test_an_inconclusive_claim_is_repeated(runner, run, monkeypatch):
    """A claim that visits many empty queues is inconclusive until it has passed them."""
    inconclusive = iter([ClaimResult([], again=True)] * 6)
    monkeypatch.setattr(
        operation, "claim_jobs", lambda *args, **options: next(inconclusive, None) or claim_jobs(*args, **options)
    )
    assert runner.client.heartbeat().json()["job"]["id"] == run.job.pk
    assert next(inconclusive, None) is None
