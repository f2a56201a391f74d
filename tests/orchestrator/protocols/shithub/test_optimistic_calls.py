"""The steady calls of a runner cost two statements, and otherwise have the result of a transaction."""

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from leases.models import Lease
from orchestrator.core import unit_of_work
from orchestrator.job_tokens.claims import JobToken, sign, verify
from orchestrator.job_tokens.models import UsedToken
from orchestrator.protocols.shithub.jobs import calls, optimistic
from orchestrator.pubsub.job_updates import announcer
from orchestrator.services import worker_state
from orchestrator.step_logs import single_statement
from orchestrator.step_logs.step_log_reads import read_step_log
from orchestrator.step_logs.step_log_writes import MAX_STEP_LOG_BYTES, TRUNCATED
from runtime_jobs.db_time import database_now
from runtime_jobs.models import Job, JobStep, LogChunk, StepLog
from runtime_jobs.scrubbing import Scrubber, scrubbers
from tests.factories import OPERATOR
from tests.live_server import eventually
from tests.orchestrator.protocols.shithub.runner import ClaimedJobClient
from tests.orchestrator.protocols.shithub.world import register, start_run
from tests.orchestrator.services.test_workflow_pins import is_a_session_blocked
from tests.orchestrator.step_logs.logs import row_version
from workers.models import Worker
from workers.registry.models import WorkerState

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def claimed():
    """A job in execution, with one chunk in the log of its first step."""
    start_run()
    job = register().client.claim()
    assert job.run().status_code == 200
    assert job.log(b"first\n").status_code == 202
    return job


@pytest.fixture
def in_transaction(monkeypatch) -> list[str]:
    """The operations that were repeated in a transaction."""
    repeated: list[str] = []
    original = unit_of_work._run_in_transaction

    def recorded(retries, function, /, *args, **kwargs):
        repeated.append(function.__name__)
        return original(retries, function, *args, **kwargs)

    monkeypatch.setattr(unit_of_work, "_run_in_transaction", recorded)
    return repeated


def statements(call: Callable[[], Any]) -> int:
    with CaptureQueriesContext(connection) as captured:
        call()
    return len(captured.captured_queries)


@pytest.fixture
def meanwhile(monkeypatch) -> Callable[[Callable[[], object]], None]:
    """Sets what happens between both statements of the next call."""

    def set_up(change: Callable[[], object]) -> None:
        original = optimistic.store_call

        def changed_before(*args, **kwargs):
            change()
            return original(*args, **kwargs)

        monkeypatch.setattr(optimistic, "store_call", changed_before)

    return set_up


def log_rows() -> bytes:
    return b"".join(bytes(chunk) for chunk in LogChunk.objects.order_by("seq").values_list("chunk", flat=True))


def log_of(claimed) -> bytes:
    return b"".join(read_step_log(JobStep.objects.get(pk=claimed.steps[0]["id"])))


def test_a_next_chunk_and_a_question_for_a_cancel_are_two_statements_each(claimed, in_transaction):
    assert statements(lambda: claimed.log(b"second\n", seq=1)) == 2
    assert statements(claimed.check_cancel) == 2
    assert in_transaction == []
    assert log_of(claimed) == b"first\nsecond\n"
    assert UsedToken.objects.count() == 4


def test_a_call_extends_a_lease_by_the_same_statement(claimed, in_transaction):
    before = database_now() + timedelta(seconds=30)
    for call in (lambda: claimed.log(b"second\n", seq=1), claimed.check_cancel):
        Lease.objects.update(expires_at=before)
        assert statements(call) == 2
        assert Lease.objects.get().expires_at > before
    assert in_transaction == []


@pytest.mark.parametrize("name", ["next_token", "lease", "log"])
def test_a_row_that_changes_after_the_read_lets_nothing_be_stored(claimed, meanwhile, in_transaction, name):
    """Between the two statements the token is used, the lease expires, or the log gets another chunk."""
    expected = {"next_token": 401, "lease": 404, "log": 202}[name]
    log, lease = StepLog.objects.get(), Lease.objects.get()
    Lease.objects.update(expires_at=database_now() + timedelta(seconds=30))  # so that the call extends it

    def change() -> None:
        if name == "next_token":
            claims = verify(claimed.token)
            UsedToken.objects.create(
                expires_at=claims.expires_at, jti=claims.jti, runner_id=claims.runner_id, job_id=claims.job_id,
                used_at=database_now(),
            )  # fmt: skip
        elif name == "lease":
            Lease.objects.filter(pk=lease.pk).update(expires_at=database_now() - timedelta(seconds=1))
        else:
            StepLog.objects.filter(pk=log.pk).update(annotation_count=1)

    meanwhile(change)
    used = UsedToken.objects.count()
    assert claimed.log(b"second\n", seq=1).status_code == expected
    assert in_transaction == ["_perform_call"]
    assert log_of(claimed) == (b"first\nsecond\n" if name == "log" else b"first\n")
    assert UsedToken.objects.count() == used + (1 if name != "lease" else 0)


def test_a_lease_that_the_server_ends_after_the_read_lets_nothing_be_stored(claimed, meanwhile, in_transaction):
    job = Job.objects.get()
    Lease.objects.update(expires_at=database_now() + timedelta(seconds=30))
    meanwhile(lambda: worker_state.revoke(job_ulid=job.job_ulid, actor=OPERATOR, reason="race"))
    assert claimed.check_cancel().status_code == 404
    assert in_transaction[-1] == "_perform_call"
    assert UsedToken.objects.count() == 2


def test_a_call_never_shortens_a_lease_that_was_extended_after_the_read(claimed, meanwhile, in_transaction):
    later = database_now() + timedelta(hours=1)
    Lease.objects.update(expires_at=database_now() + timedelta(seconds=30))
    meanwhile(lambda: Lease.objects.update(expires_at=later))
    assert claimed.check_cancel().status_code == 200
    assert Lease.objects.get().expires_at == later
    assert in_transaction == []


def test_a_lease_that_would_move_by_less_than_a_second_is_not_written(claimed, in_transaction):
    Lease.objects.update(expires_at=database_now() + timedelta(hours=1))
    key = Lease.objects.get().pk
    before = row_version(Lease, pk=key)
    assert (claimed.log(b"second\n", seq=1).status_code, claimed.check_cancel().status_code) == (202, 200)
    assert row_version(Lease, pk=key) == before
    assert in_transaction == []


def test_of_both_calls_a_chunk_alone_is_announced(claimed, monkeypatch):
    announced = []
    monkeypatch.setattr(announcer, "announce", announced.append)
    assert claimed.check_cancel().status_code == 200
    assert announced == []
    assert claimed.log(b"second\n", seq=1).status_code == 202
    assert announced == [[Job.objects.get().job_ulid]]


@pytest.mark.parametrize("name", ["lease", "log"])
def test_a_call_waits_for_a_row_that_is_just_changed(claimed, in_transaction, name):
    """The statement locks the lease and the log before it compares them."""
    Lease.objects.update(expires_at=database_now() + timedelta(seconds=30))  # so that the call extends it
    responses: list[Any] = []

    def call() -> None:
        try:
            responses.append(claimed.log(b"second\n", seq=1))
        finally:
            connection.close()

    thread = threading.Thread(target=call)
    with transaction.atomic():
        if name == "lease":
            Lease.objects.update(expires_at=database_now() - timedelta(seconds=1))
        else:
            StepLog.objects.update(annotation_count=1)
        thread.start()
        eventually(is_a_session_blocked)
    thread.join(60)
    assert [response.status_code for response in responses] == [404 if name == "lease" else 202]
    assert in_transaction == ["_perform_call"]
    assert StepLog.objects.get().annotation_count == (1 if name == "log" else 0)
    assert log_of(claimed) == (b"first\nsecond\n" if name == "log" else b"first\n")


LOGS: dict[str, tuple[dict[str, Any], bytes]] = {
    "skipped": ({"skipped": [[7, 9]]}, b"first\nsecond\n"),
    "truncated": ({"is_truncated": True}, b"first\n"),
    "closed": ({"closed_at": datetime(2026, 1, 1, tzinfo=UTC), "closed_bytes": 6}, b"first\nsecond\n"),
    "nearly full": ({"stored_bytes": MAX_STEP_LOG_BYTES - 6}, b"first\nsecond" + TRUNCATED),
}


@pytest.mark.parametrize("name", LOGS)
def test_the_next_chunk_of_a_log_that_is_no_plain_one_is_stored_in_a_transaction(claimed, in_transaction, name):
    columns, expected = LOGS[name]
    StepLog.objects.update(**columns)
    assert claimed.log(b"second\n", seq=1).status_code == 202
    assert in_transaction == ["_perform_call"]
    assert log_rows() == expected
    changed = {column: getattr(StepLog.objects.get(), column) for column in columns if column != "stored_bytes"}
    assert changed == {column: value for column, value in columns.items() if column != "stored_bytes"}


def test_the_next_chunk_stores_those_that_waited_for_it(claimed, in_transaction):
    assert claimed.log(b"fourth\n", seq=3).status_code == 202
    assert claimed.log(b"second\n", seq=1).status_code == 202
    assert claimed.log(b"third\n", seq=2).status_code == 202
    assert in_transaction == ["_perform_call"] * 3
    assert log_of(claimed) == b"first\nsecond\nthird\nfourth\n"


def test_the_next_chunk_of_an_ended_step_is_stored_in_a_transaction(claimed, in_transaction):
    JobStep.objects.filter(pk=claimed.steps[0]["id"]).update(
        status="completed", conclusion="success", started_at=database_now(), completed_at=database_now()
    )
    assert claimed.log(b"second\n", seq=1).status_code == 202
    assert in_transaction == ["_perform_call"]
    assert StepLog.objects.get().closed_at is not None


@pytest.mark.parametrize("name", ["expired", "revoked", "extended"])
def test_a_call_in_a_transaction_locks_no_job_and_still_compares_the_lease(claimed, monkeypatch, name):
    """Between the read and the extension of the lease another session changes it."""
    job, later = Job.objects.get(), database_now() + timedelta(hours=1)
    Lease.objects.update(expires_at=database_now() + timedelta(seconds=30))
    changes: dict[str, Callable[[], object]] = {
        "expired": lambda: Lease.objects.update(expires_at=database_now() - timedelta(seconds=1)),
        "revoked": lambda: worker_state.revoke(job_ulid=job.job_ulid, actor=OPERATOR, reason="race"),
        "extended": lambda: Lease.objects.update(expires_at=later),
    }
    read = calls.read_facts

    def read_then_change(token):
        facts = read(token)
        monkeypatch.setattr(calls, "read_facts", read)
        in_another_session(changes[name])
        return facts

    monkeypatch.setattr(calls, "read_facts", read_then_change)
    assert claimed.log(b"gap\n", seq=5).status_code == (202 if name == "extended" else 404)
    assert StepLog.objects.get().waiting_count == (1 if name == "extended" else 0)
    if name == "extended":
        assert Lease.objects.get().expires_at == later


def in_another_session(change: Callable[[], object]) -> None:
    def act() -> None:
        try:
            change()
        finally:
            connection.close()

    thread = threading.Thread(target=act)
    thread.start()
    thread.join(60)


CLAIMS: dict[str, tuple[Callable[[JobToken], dict[str, Any]], int]] = {
    "expired": (lambda token: {"expires_at": database_now() - timedelta(seconds=1)}, 401),
    "another run": (lambda token: {"run_id": token.run_id + 1}, 404),
    "ended chain": (lambda token: {"chain": token.chain + 1}, 401),
    "path of another job": (lambda _: {}, 404),
    "revoked runner": (lambda _: {}, 401),
}


@pytest.mark.parametrize("name", CLAIMS)
def test_a_token_that_does_not_count_is_refused_for_the_next_chunk_and_a_question(claimed, name):
    claims, status = CLAIMS[name]
    token = verify(claimed.token)
    path = claimed.path
    if name == "path of another job":
        start_run()
        path = claimed.runner.claim(capacity=2).path
    elif name == "revoked runner":
        Worker.objects.update(state=WorkerState.REVOKED)
    chunk = {"seq": 1, "chunk": "eA==", "step_id": claimed.steps[0]["id"]}
    for call, body in (("logs", chunk), ("cancel-check", {})):
        response = claimed.runner.post(f"{path}/{call}", body, token=sign(replace(token, **claims(token))))
        assert (call, response.status_code) == (call, status)
    assert UsedToken.objects.count() == 2
    assert log_rows() == b"first\n"


def test_the_next_number_of_another_job_s_log_is_refused(claimed):
    start_run()
    other = register("runner-2").client.claim()
    assert other.run().status_code == 200
    chunk = {"seq": 1, "chunk": "eA==", "step_id": claimed.steps[0]["id"]}
    assert other.call("logs", chunk).status_code == 404
    assert log_rows() == b"first\n"
    assert claimed.log(b"second\n", seq=1).status_code == 202


@pytest.mark.parametrize("max_chunk_bytes", [20, 70], ids=["may exceed", "exceeds"])
def test_what_needs_more_than_one_row_is_stored_in_a_transaction(claimed, in_transaction, monkeypatch, max_chunk_bytes):
    """A mask is longer than a secret of one byte. The output has up to three times the bytes of the chunk."""
    monkeypatch.setattr(scrubbers, "get", lambda _: Scrubber((b"x",)))
    monkeypatch.setattr(single_statement, "MAX_CHUNK_BYTES", max_chunk_bytes)
    data = b"x" * 40 if max_chunk_bytes == 70 else b"second\n"
    assert claimed.log(data, seq=1).status_code == 202
    assert in_transaction == ["_perform_call"]
    assert log_of(claimed) == b"first\n" + data.replace(b"x", b"***")


@pytest.mark.parametrize(
    ("data", "seq"), [(b"again\n", 0), (b"gap\n", 5), (b"::error::broken\n", 1)], ids=["repeat", "gap", "command"]
)
def test_what_is_not_the_next_plain_chunk_is_stored_in_a_transaction(claimed, in_transaction, data, seq):
    assert claimed.log(data, seq=seq).status_code == 202
    assert in_transaction == ["_perform_call"]


def test_a_used_token_is_refused_and_stores_nothing(claimed):
    used = claimed.token
    assert claimed.log(b"second\n", seq=1).status_code == 202
    chunk = {"seq": 2, "chunk": "eA==", "step_id": claimed.steps[0]["id"]}
    assert claimed.call("logs", chunk, token=used).status_code == 401
    assert claimed.call("cancel-check", token=used).status_code == 401
    assert log_of(claimed) == b"first\nsecond\n"


def test_a_malformed_chunk_uses_the_token(claimed):
    used = claimed.token
    assert claimed.call("logs", {"seq": 1, "chunk": "", "step_id": claimed.steps[0]["id"]}).status_code == 400
    assert claimed.call("cancel-check", token=used).status_code == 401


def test_runners_of_one_address_take_turns_as_clients_of_their_own():
    """Otherwise all runners of a network share the turn of one client."""
    start_run()
    runner = register()
    name = f"runner:{runner.row.pk}"
    heartbeat = runner.client.heartbeat()
    assert tokens_named_by(heartbeat) == (name, (runner.client.registration, heartbeat.json()["token"]))
    job = ClaimedJobClient(runner.client, heartbeat.json())
    for response in (job.run(), job.log(b"x"), job.check_cancel()):
        assert tokens_named_by(response) == (name, (response.json()["next_token"],))
    renewed = runner.client.post(f"{job.path}/token")
    assert tokens_named_by(renewed) == (name, (runner.client.registration, renewed.json()["token"]))
    assert tokens_named_by(job.check_cancel()) is None, "of an older chain"


def tokens_named_by(response) -> tuple[str, tuple[str, ...]] | None:
    return vars(response.wsgi_request).get("_identified_tokens")


def test_spellings_that_are_not_masked_are_reported_by_the_first_call_only(
    claimed, in_transaction, monkeypatch, caplog
):
    monkeypatch.setattr(scrubbers, "get", lambda _: Scrubber((b"a long secret of this job",), max_form_bytes=100))
    for seq in range(1, 4):
        assert claimed.log(b"a long secret of this job\n", seq=seq).status_code == 202
    assert in_transaction == []
    assert StepLog.objects.get().omitted_forms == Scrubber((b"a long secret of this job",), max_form_bytes=100).omitted
    assert len([record for record in caplog.records if "spellings of its secrets" in record.getMessage()]) == 1
    assert log_of(claimed) == b"first\n***\n***\n***\n"
