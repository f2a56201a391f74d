"""Envelopes: the members of document 004, equal in every copy, without the capability of a lease."""

from datetime import UTC, datetime
from uuid import UUID

import pytest

from orchestrator.events.envelopes import consumers_of, envelope_of
from orchestrator.events.pages import JOB, OPERATOR, Place, StoredEvent
from runtime_jobs.event_types import CONSUMERS
from runtime_jobs.identifiers import fingerprint, new_event_id, new_job_id, new_lease_id, new_worker_id, uuid_of
from runtime_jobs.orchestration_status import STATUS_OF_STATE
from runtime_jobs.states import JobState

NOW = datetime(2025, 11, 29, 12, tzinfo=UTC)
# Section 6.1 to the letter, and `integrity`.
MEMBERS = {
    *("eventId", "eventType", "timestamp", "tenant", "jobId", "jobType", "correlationId", "idempotencyKey", "payload"),
    *("provenance", "integrity"),
}


def event_of_job(**changes):
    job = new_job_id()
    values = {
        "place": Place(7, JOB, 1), "event_id": new_event_id(), "event_type": "job.completed", "created_at": NOW,
        "org_slug": "acme-corp", "job_type": "scan", "correlation_id": "trace", "actor": "worker:wrk_x", "details": {},
        "job_id": job, "root_job_id": job, "attempt": 1, "seq": 5, "state": "succeeded", "worker_id": new_worker_id(),
        "lease_id": new_lease_id(), "seconds": 45.2, "exit_code": 0, "verdict": "pass", "prev_hash": "a" * 64,
        "hash": "b" * 64,
    }  # fmt: skip
    return StoredEvent(**values | changes)


def event_of_operator(**changes):
    values = {
        "place": Place(7, OPERATOR, 1), "event_id": new_event_id(), "event_type": "limit.set", "created_at": NOW,
        "org_slug": "acme-corp", "job_type": "scan", "correlation_id": None, "actor": "operator:olga",
        "details": {"target": "acme-corp", "before": None, "after": {"max_active": 3}, "reason": "why"},
    }  # fmt: skip
    return StoredEvent(**values | changes)


def test_the_example_of_the_document():
    event = event_of_job()
    envelope = envelope_of(event)
    assert set(envelope) == MEMBERS
    assert envelope["eventId"] == str(uuid_of(event.event_id))
    assert (envelope["eventType"], envelope["timestamp"]) == ("job.completed", "2025-11-29T12:00:00Z")
    assert (envelope["tenant"], envelope["jobType"], envelope["correlationId"]) == ("acme-corp", "scan", "trace")
    assert envelope["payload"]["status"] == "completed"
    assert envelope["payload"]["duration"] == 45.2
    assert envelope["payload"]["result"] == {"verdict": "pass", "exitCode": 0}
    assert envelope["provenance"]["workerId"] == event.worker_id


def test_a_job_is_its_root_and_the_key_names_the_attempt():
    event = event_of_job(root_job_id=new_job_id(), attempt=2)
    envelope = envelope_of(event)
    assert UUID(envelope["jobId"]) == uuid_of(event.root_job_id)
    assert envelope["idempotencyKey"] == f"{uuid_of(event.job_id)}:5"
    assert envelope["integrity"] == {"attempt": 2, "sequence": 5, "prevHash": "a" * 64, "hash": "b" * 64}


def test_the_lease_is_a_fingerprint():
    event = event_of_job()
    assert envelope_of(event)["provenance"]["leaseId"] == fingerprint(event.lease_id)
    assert event.lease_id not in str(envelope_of(event))


def test_only_ends_have_a_duration_and_a_result():
    payload = envelope_of(event_of_job(event_type="job.queued", state="queued", seconds=None))["payload"]
    assert (payload["status"], payload["duration"], payload["result"]) == ("queued", None, None)


def test_details_have_the_names_of_the_document_and_no_hashes_of_rows():
    of = new_job_id()
    hashes = {"payload_digest": "x", "result_digest": "y", "input_sha256": "z", "cursors": {}, "artifacts": []}
    details = {"retry_of": of, "depends_on": [of], "reason": "job_1", "after": {"job_ulid": of}}
    payload = envelope_of(event_of_job(details=details | hashes))["payload"]
    public = str(uuid_of(of))
    assert payload["details"] == {
        "retryOf": public, "dependsOn": [public], "reason": "job_1", "after": {"jobUlid": public},
    }  # fmt: skip


def test_the_worker_of_a_pack_run_is_its_task_runner():
    event = event_of_job(job_type="pack-run")
    assert envelope_of(event)["provenance"]["taskRunnerId"] == event.worker_id
    assert envelope_of(event_of_job())["provenance"]["taskRunnerId"] is None


def test_an_event_of_an_operator_has_the_same_members():
    event = event_of_operator()
    envelope = envelope_of(event)
    assert set(envelope) == MEMBERS
    assert (envelope["jobId"], envelope["provenance"], envelope["integrity"]) == (None, None, None)
    assert envelope["idempotencyKey"] == envelope["eventId"] == str(uuid_of(event.event_id))
    details = {"target": "acme-corp", "before": None, "after": {"maxActive": 3}, "reason": "why"}
    assert envelope["payload"] == {"actor": "operator:olga", "details": details}


@pytest.mark.parametrize("state", JobState)
def test_the_status_is_that_of_the_state(state):
    assert envelope_of(event_of_job(state=state))["payload"]["status"] == STATUS_OF_STATE[state]


def test_section_6_2_is_a_table_of_consumers():
    assert set(CONSUMERS) == {
        *("job.queued", "job.leased", "job.started", "job.progress", "job.completed", "job.failed", "job.canceled"),
        "job.replayed",
    }
    assert consumers_of("job.completed") == ("dashboard", "notify", "export")
    assert consumers_of("lease.expired") == ("dashboard",)
