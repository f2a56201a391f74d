"""The event history cannot be changed, and a change by other means is found."""

import pytest
from django.db import DatabaseError, connection, transaction
from django.db.models import F

from leases.models import Lease
from leases.states import OPEN, LeaseState
from orchestrator.artifacts import piece_operations
from orchestrator.audit.runner import run_audit
from orchestrator.core.cause import Cause
from orchestrator.services import cancellation, job_end, worker_state
from orchestrator.services.submission import submit
from runtime_jobs import events
from runtime_jobs.db_time import database_now
from runtime_jobs.models import Job, JobEvent, OperatorEvent, StorageUsage, StoredArtifact
from runtime_jobs.specs import JOB_TYPES, PayloadSpec
from runtime_jobs.states import FINAL_STATES, FailureReason, JobState
from tests import tampering
from tests.factories import (
    ALICE,
    OPERATOR,
    TIMINGS,
    ProjectFactory,
    WorkerFactory,
    claimed,
    submission,
    submitted,
    submitted_steps,
)

pytestmark = pytest.mark.django_db


def refused(sql: str) -> str:
    with pytest.raises(DatabaseError) as error, transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(sql)
    return str(error.value)


@pytest.mark.parametrize("table", ["runtime_job_events", "operator_events"])
@pytest.mark.parametrize("change", ["UPDATE {} SET created_at = now()", "DELETE FROM {}"])
def test_events_cannot_be_changed_or_deleted(table, change):
    submitted()
    worker_state.set_worker_state(worker_id=WorkerFactory().worker_id, state="draining", cause=Cause(OPERATOR))
    assert "append-only" in refused(change.format(table))


def test_a_final_state_has_no_way_out_even_by_sql(leased):
    job_end.fail(lease_ulid=leased.lease.lease_ulid, worker=leased.lease.worker, reason="checkout_failed")
    assert "stays so" in refused(
        "UPDATE runtime_jobs SET state = 'queued', finished_at = NULL, failure_reason = NULL, failure_class = NULL"
    )


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE runtime_jobs SET state = 'succeeded', finished_at = now()",  # without a run
        "UPDATE runtime_jobs SET state = 'failed', finished_at = now()",  # without a reason
        "UPDATE runtime_jobs SET state = 'canceled', finished_at = now()",  # without a request
        "UPDATE runtime_jobs SET state = 'failed', failure_reason = 'timed_out', failure_class = 'job'",  # not finished
        "UPDATE runtime_jobs SET state = 'dreaming'",
        "UPDATE runtime_jobs SET requeue_count = max_requeues + 1",
        "UPDATE runtime_jobs SET automatic_retries_spent = automatic_retries + 1",
        "UPDATE runtime_worker_leases SET state = 'expired'",  # without an end
        "UPDATE runtime_worker_leases SET state = 'active', acknowledged_at = NULL",
        "UPDATE runtime_worker_leases SET completed_at = now()",  # open
        "UPDATE runtime_worker_leases SET state = 'dreaming'",
        "UPDATE runtime_worker_leases SET ttl_seconds = -1",
        "UPDATE runtime_jobs SET finished_at = now()",  # leased
        "UPDATE runtime_jobs SET failure_reason = 'timed_out'",
        "UPDATE runtime_jobs SET failure_class = 'job'",
        "UPDATE runtime_jobs SET ingest_run_id = 'run_x'",
        "UPDATE runtime_jobs SET state = 'canceled', cancel_requested_at = now()",  # not finished
        "UPDATE runtime_jobs SET state = 'failed', finished_at = now(), failure_reason = 'timed_out'",  # without a class
        (
            "UPDATE runtime_jobs SET state = 'failed', finished_at = now(), failure_reason = 'timed_out',"
            " failure_class = 'job', ingest_run_id = 'run_x'"
        ),
        (
            "UPDATE runtime_jobs SET state = 'succeeded', finished_at = now(), ingest_run_id = 'run_x',"
            " failure_class = 'job'"
        ),
        "UPDATE runtime_jobs SET release_count = -1",
        "UPDATE runtime_jobs SET timeout_seconds = -1",
        "UPDATE runtime_jobs SET late_result_seconds = -1",
        "UPDATE runtime_jobs SET timeout_grace_seconds = -1",
        "UPDATE runtime_jobs SET state = 'lost', late_result_at = now()",  # without a reason
        "UPDATE runtime_jobs SET state = 'lost', failure_reason = 'timed_out', failure_class = 'job'",  # without a window
        (
            "UPDATE runtime_jobs SET state = 'lost', failure_reason = 'timed_out', failure_class = 'job',"
            " late_result_at = now(), cancel_requested_at = now()"
        ),
        (
            "UPDATE runtime_jobs SET state = 'lost', failure_reason = 'timed_out', failure_class = 'job',"
            " late_result_at = now(), finished_at = now()"
        ),
        "UPDATE runtime_jobs SET state = 'processing', failure_reason = 'timed_out', failure_class = 'job'",
        'INSERT INTO runtime_jobs SELECT (json_populate_record(j, \'{"id": 1, "state": "failed"}\')).* FROM runtime_jobs j',
    ],
)
def test_nonsense_cannot_be_stored(leased, sql):
    assert "violates check constraint" in refused(sql)


@pytest.mark.parametrize("needs_ingest", [True, False])
@pytest.mark.parametrize("state", JobState.values)
def test_each_state_can_be_stored_and_sets_the_status(db, state, needs_ingest):
    job = submitted()
    ended, has_reason = state in FINAL_STATES, state in {JobState.FAILED, JobState.LOST}
    Job.objects.filter(pk=job.pk).update(
        state=state,
        needs_ingest=needs_ingest,
        finished_at=job.created_at if ended else None,
        cancel_requested_at=None if state == JobState.LOST else job.created_at,
        failure_reason="timed_out" if has_reason else None,
        failure_class="policy" if has_reason else None,
        late_result_at=job.created_at,
        ingest_run_id="run_x" if state == JobState.SUCCEEDED else None,
    )
    stored = Job.objects.get(pk=job.pk)
    assert stored.status == stored.public_status


@pytest.mark.parametrize("state", LeaseState.values)
def test_each_state_of_a_lease_can_be_stored_and_sets_the_status(leased, state):
    is_open = state in OPEN
    Lease.objects.update(state=state, completed_at=None if is_open else leased.lease.expires_at)
    assert Lease.objects.get().status == ("open" if is_open else state)


def test_a_second_open_lease_cannot_be_stored(leased):
    copy = (
        "INSERT INTO runtime_worker_leases (lease_ulid, job_ulid, worker_id, pool, state, fence, session, ttl_seconds,"
        " heartbeat_interval_seconds, acknowledge_within_seconds, leased_at, acknowledged_at, expires_at)"
        " SELECT 'rtl_x', job_ulid, worker_id, pool, state, fence + 1, session, ttl_seconds,"
        " heartbeat_interval_seconds, acknowledge_within_seconds, leased_at, acknowledged_at, expires_at"
        " FROM runtime_worker_leases"
    )
    assert "one_open_lease_per_job" in refused(copy)


def tamper(sql: str) -> None:
    """Change it as the owner of the database could."""
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL orchestrator.maintenance = 'update'")
        cursor.execute(sql)
        cursor.execute("SET LOCAL orchestrator.maintenance = 'delete'")


def findings() -> set[str]:
    return {finding.code for finding in run_audit(chains=True)}


@pytest.fixture
def audited():
    """These tests break things on purpose."""


def test_a_changed_event_is_found(leased):
    tamper("UPDATE runtime_job_events SET actor_id = 'somebody else' WHERE seq = 2")
    assert findings() == {"I8c"}
    assert events.first_invalid_seq(leased.job.job_ulid) == 2


RESULT = {"steps": [{"seconds": 1e22, "share": 0.1, "zero": -0.0, "text": "ü", "none": None, "ok": True}], "n": 12.50}


@pytest.fixture
def failed(leased):
    job_end.fail(
        lease_ulid=leased.lease.lease_ulid,
        worker=leased.lease.worker,
        reason=FailureReason.COMMAND_FAILED,
        message="red",
        exit_code=3,
        result=RESULT,
    )
    return Job.objects.get(pk=leased.job.pk)


def test_the_first_and_the_final_event_bind_input_and_result(failed):
    history = list(JobEvent.objects.of(failed.job_ulid))
    assert history[0].payload_json["payload_digest"] == failed.payload_digest
    assert history[-1].payload_json["result_digest"] == events.result_hash(failed)
    bound = [event for event in history if events.BINDING_NAMES & set(event.payload_json)]
    assert bound == [history[0], history[-1]]
    assert findings() == set()


@pytest.mark.parametrize(
    "change",
    [
        "command_json = '[\"rm\"]'",
        "git_commit = repeat('0', 40)",
        "payload_digest = repeat('0', 64)",
        "timeout_seconds = timeout_seconds + 1",
        "job_type = 'steps'",  # whose specification these columns do not contain
        "job_type = 'unknown'",
        "exit_code = 0",
        "failure_message = 'green'",
        "result = result || '{\"n\": 12.51}'",
        "result = NULL",
    ],
)
def test_a_changed_input_or_result_is_found(failed, change):
    assert "stays so" in refused(f"UPDATE runtime_jobs SET {change}")
    tampering.tamper("runtime_jobs", f"UPDATE runtime_jobs SET {change}")
    assert "I8d" in findings()


def test_an_older_event_without_digests_stays_valid(failed):
    tamper("UPDATE runtime_job_events SET payload_json = payload_json - 'payload_digest' - 'result_digest'")
    assert events.unbound_parts(Job.objects.get(pk=failed.pk), "other") == []


def test_digests_count_under_their_former_names(failed):
    tamper(
        "UPDATE runtime_job_events SET payload_json = jsonb_strip_nulls(jsonb_build_object("
        "'input_sha256', payload_json -> 'payload_digest', 'result_sha256', payload_json -> 'result_digest'))"
    )
    job = Job.objects.get(pk=failed.pk)
    assert events.unbound_parts(job, job.payload_digest) == []
    job.exit_code = 0
    assert events.unbound_parts(job, "other") == ["input", "result"]


@pytest.mark.parametrize(
    ("spec", "wrong"),
    [
        ({"cursors": {"vex": "cursor-b"}}, ["request", "cursors"]),
        ({"cursors": {}}, ["request", "cursors"]),
        ({"requested_at": "2026-01-02T00:00:00Z"}, ["request"]),
        ({"payload": {"imageRef": "nginx:1"}}, ["input"]),
    ],
)
def test_the_first_event_binds_all_of_a_request_with_a_payload(spec, wrong):
    given = submission(ProjectFactory(), PayloadSpec("scan", {"imageRef": "nginx:2"}, 300, {"vex": "cursor-a"}))
    policy = JOB_TYPES["scan"].policy(**TIMINGS)
    job = submit(given, policy=policy, default_pool="shared-linux", actor=ALICE).job
    first = JobEvent.objects.get(job=job, seq=1).payload_json
    assert first["cursors"] == {"vex": "cursor-a"}
    stored = Job.objects.get(pk=job.pk)
    digest = JOB_TYPES[stored.job_type].from_job(stored).digest
    assert events.unbound_parts(stored, digest) == []
    before = dict(stored.spec)
    stored.spec = before | spec
    assert events.unbound_parts(stored, JOB_TYPES[stored.job_type].from_job(stored).digest) == wrong
    stored.spec, stored.timeout_seconds = before, 7
    assert events.unbound_parts(stored, digest) == ["request"]


def test_the_final_event_binds_the_complete_artifacts():
    submitted_steps()
    taken = claimed(job_types=("steps",))
    begun = {"lease_ulid": taken.lease.lease_ulid, "worker": taken.lease.worker, "size_bytes": 3}
    for name in ("report.json", "log.txt"):
        row = piece_operations.begin_lease_artifact(**begun, name=name)
        StoredArtifact.objects.filter(pk=row.pk).update(sha256="a" * 64, completed_at=database_now())
    late = piece_operations.begin_lease_artifact(**begun, name="late")
    job_end.complete(lease_ulid=taken.lease.lease_ulid, worker=taken.lease.worker, exit_code=0)
    final = JobEvent.objects.get(job=taken.job, to_state="succeeded").payload_json
    assert [(entry["name"], entry["size_bytes"]) for entry in final["artifacts"]] == [
        ("report.json", 3),
        ("log.txt", 3),
    ]
    StoredArtifact.objects.filter(pk=late.pk).update(sha256="c" * 64, completed_at=database_now())
    assert findings() == set()
    StoredArtifact.objects.filter(name="log.txt").delete()  # retention
    StorageUsage.objects.update(byte_count=F("byte_count") - 3)
    assert findings() == set()
    StoredArtifact.objects.filter(name="report.json").update(sha256="b" * 64)
    assert [finding.broken_for[0] for finding in run_audit(chains=True)] == [
        f"{taken.job.job_ulid}: artifact report.json"
    ]


def test_a_job_without_artifacts_binds_none():
    job = submitted_steps()
    cancellation.cancel(job_ulid=job.job_ulid, actor=ALICE, deadline_seconds=1)
    assert "artifacts" not in JobEvent.objects.get(job=job, to_state="canceled").payload_json


def test_a_missing_event_is_found(leased):
    tamper("UPDATE runtime_job_events SET actor_id = actor_id")
    JobEvent.objects.filter(seq=2).delete()
    assert {"I6", "I8", "I8h"} <= findings()


def test_a_cut_off_tail_is_found(leased):
    tamper("UPDATE runtime_job_events SET actor_id = actor_id")
    JobEvent.objects.filter(seq=3).delete()
    assert {"I8", "I8h"} <= findings()


@pytest.mark.parametrize(
    ("sql", "code"),
    [
        ("UPDATE runtime_jobs SET fence = 7", "I4"),
        ("UPDATE runtime_jobs SET state = 'queued'", "I2"),
        ("UPDATE runtime_worker_leases SET state = 'revoked', completed_at = now()", "I3"),
        ("UPDATE runtime_worker_leases SET state = 'expired', completed_at = leased_at", "I14"),
        ("UPDATE runtime_jobs SET root_job_ulid = 'rtj_x'", "I22"),
        ("UPDATE runtime_jobs SET retry_of_job_ulid = 'rtj_x'", "I10"),
        ("UPDATE runtime_jobs SET event_seq = 9", "I8"),
        ("UPDATE runtime_worker_leases SET acknowledged_at = leased_at - interval '1 s'", "I16"),
        ("UPDATE runtime_worker_leases SET job_ulid = 'rtj_x'", "I28"),
        ("UPDATE runtime_worker_leases SET worker_id = 'wrk_x'", "I28"),
        ("UPDATE runtime_job_events SET job_ulid = 'rtj_x'", "I28"),
        ("UPDATE runtime_job_events SET event_ulid = 'evt_x'", "I29"),
        (
            (
                "INSERT INTO runtime_failure_explanations (job_ulid, category, confidence, summary, details, created_at)"
                " SELECT job_ulid, 'USER', 'LOW', 'x', '', now() FROM runtime_jobs"
            ),
            "I26",
        ),
        (
            (
                "INSERT INTO runtime_job_artifacts (artifact_ulid, job_ulid, type, uri, created_at)"
                " SELECT 'art_x', job_ulid, 'log', '', now() FROM runtime_jobs"
            ),
            "I27",
        ),
    ],
)
def test_the_audit_finds_what_no_constraint_can_refuse(leased, sql, code):
    tamper(sql)
    assert code in findings()


def test_the_audit_finds_a_status_that_was_written_without_the_trigger(leased):
    tamper("SET CONSTRAINTS ALL IMMEDIATE")  # no ALTER TABLE while deferred checks wait
    for table, trigger in (("runtime_jobs", "guard_job"), ("runtime_worker_leases", "guard_lease")):
        tamper(f"ALTER TABLE {table} DISABLE TRIGGER {trigger}")
        tamper(f"UPDATE {table} SET status = 'odd'")
        tamper(f"ALTER TABLE {table} ENABLE TRIGGER {trigger}")
        assert "I30" in findings()
        tamper(f"UPDATE {table} SET state = state")
        assert findings() == set()


@pytest.mark.parametrize(
    ("table", "changes", "code"),
    [
        ("jobs", "state = 'odd'", "I31"),
        ("jobs", "finished_at = now()", "I31"),
        ("jobs", "state = 'canceled', cancel_requested_at = now()", "I31"),
        ("jobs", "failure_reason = 'worker_error'", "I31"),
        ("jobs", "failure_class = 'platform'", "I31"),
        ("jobs", "state = 'failed', finished_at = now(), failure_reason = 'timed_out'", "I31"),
        ("jobs", "state = 'failed', finished_at = now(), failure_class = 'job'", "I31"),
        ("jobs", "state = 'succeeded', finished_at = now()", "I31"),
        ("jobs", "ingest_run_id = 'run_x'", "I31"),
        ("jobs", "state = 'canceled', finished_at = now()", "I31"),
        ("jobs", "requeue_count = max_requeues + 1", "I31"),
        ("jobs", "automatic_retries_spent = automatic_retries + 1", "I31"),
        *(
            ("jobs", f"{column} = -1", "I31")
            for column in (
                *("requeue_count", "release_count", "automatic_retries_spent", "attempt", "timeout_seconds"),
                *("lease_ttl_seconds", "heartbeat_interval_seconds", "acknowledge_within_seconds"),
            )
        ),
        ("jobs", "max_requeues = -1, requeue_count = -1", "I31"),
        ("jobs", "automatic_retries = -1, automatic_retries_spent = -1", "I31"),
        ("worker_leases", "state = 'odd', completed_at = now()", "I32"),
        ("worker_leases", "state = 'completed'", "I32"),
        ("worker_leases", "completed_at = now()", "I32"),
        ("worker_leases", "acknowledged_at = NULL", "I32"),
        *(
            ("worker_leases", f"{column} = -1", "I32")
            for column in ("ttl_seconds", "heartbeat_interval_seconds", "acknowledge_within_seconds")
        ),
    ],
)
def test_the_audit_finds_each_row_that_the_switched_off_triggers_would_refuse(leased, table, changes, code):
    trigger = {"jobs": "guard_job", "worker_leases": "guard_lease"}[table]
    statement = f"UPDATE runtime_{table} SET {changes}"
    assert findings() == set()
    assert "violates check constraint" in refused(statement)
    tamper("SET CONSTRAINTS ALL IMMEDIATE")  # no ALTER TABLE while deferred checks wait
    tamper(f"ALTER TABLE runtime_{table} DISABLE TRIGGER {trigger}")
    tamper(statement)
    assert code in findings()


def test_what_people_do_is_written_down_with_before_and_after():
    worker = WorkerFactory()
    worker_state.set_worker_state(
        worker_id=worker.worker_id, state="maintenance", cause=Cause(OPERATOR), note="new disk"
    )
    event = OperatorEvent.objects.get()
    assert (event.action, event.actor, event.target) == ("worker.state", "operator:olga", worker.worker_id)
    assert event.before == {"state": "active", "note": ""}
    assert event.after == {"state": "maintenance", "note": "new disk"}


def test_a_queue_of_one_has_an_intact_chain():
    job = submitted()
    assert Job.objects.get(pk=job.pk).event_head == JobEvent.objects.get(job=job).hash
