"""Messages of a lease's holder: accepted while the lease is valid, repeated without harm, refused without a trace."""

import base64
from datetime import timedelta

import pytest
from django.db.models import F

from leases.models import Lease
from orchestrator.ingest.models import Run
from orchestrator.services import cancellation, expiry, worker_state
from runtime_jobs.models import Job, LogChunk, UnsentRun
from tests.api_client import refused
from tests.db_snapshot import nothing_lost
from tests.factories import ALICE, OPERATOR, claimed, submitted

pytestmark = pytest.mark.django_db
RUN = "run_20260317143329_bd39b25f6f31"
DONE = {"result": {"status": "uploaded", "ingest_run_id": RUN}}
FAILED = {"result": {"status": "failed", "reason": "worker_error"}}
WORDS = {
    "acknowledge": {},
    "heartbeat": {"phase": "executing", "progress": {"percent": 5}},
    "report": {"phase": "executing"},
    "logs": {"seq": 0, "chunk": "eA=="},
    "complete": DONE,
    "fail": FAILED,
    "acknowledge-cancel": {},
    "release": {},
}
FINAL = ("complete", "fail", "acknowledge-cancel", "release")


@pytest.fixture
def job(organization):
    return submitted(organization.projects.get())


@pytest.fixture
def lease(job, worker):
    return claimed(worker).lease


@pytest.fixture
def run(lease, worker):
    return Run.objects.create(
        run_id=RUN, job_id=lease.job_id, org_slug="sandtrace", project_slug="web", worker_id=worker.worker_id,
        payload={}, payload_sha256="0" * 64,
    )  # fmt: skip


@pytest.fixture
def say(wendy, lease):
    return lambda word, body=None: wendy.post(
        f"/v1/runtime/leases/{lease.lease_ulid}/{word}", WORDS[word] if body is None else body
    )


def expire(lease):
    Lease.objects.filter(pk=lease.pk).update(expires_at=F("leased_at") - timedelta(seconds=1))


@pytest.mark.parametrize("word", WORDS)
def test_an_expired_lease_speaks_no_more(lease, run, say, word):
    expire(lease)
    document = refused(lambda: say(word), 409, "stale_lease")
    assert (document["reason"], "job_status" in document) == ("lease_expired", False)


@pytest.mark.parametrize("word", WORDS)
def test_after_the_clock_has_taken_it_back_the_jobs_end_is_reported(lease, run, say, word):
    expire(lease)
    expiry.expire(job_ulid=lease.job_id)
    document = refused(lambda: say(word), 409, "stale_lease")
    assert (document["reason"], document["job_status"]) == ("lease_expired", "failed")


@pytest.mark.parametrize("word", WORDS)
def test_a_revoked_lease_speaks_no_more(lease, run, say, word):
    worker_state.revoke(job_ulid=lease.job_id, actor=OPERATOR, reason="test")
    document = refused(lambda: say(word), 409, "stale_lease")
    assert (document["reason"], document["job_status"]) == ("lease_revoked", "failed")


@pytest.mark.parametrize("word", WORDS)
def test_a_lease_that_was_given_back_does_not_speak_for_the_next_holder(lease, run, say, worker, word):
    say("release")
    claimed(worker)
    if word == "release":
        with nothing_lost():
            assert say(word).status_code == 200, "the same message again"
    else:
        refused(lambda: say(word), 409, "conflict" if word in FINAL else "stale_lease")


@pytest.mark.parametrize("word", FINAL)
def test_a_final_message_may_be_repeated_and_counts_once(lease, run, say, word):
    if word == "acknowledge-cancel":
        cancellation.cancel(job_ulid=lease.job_id, actor=ALICE, deadline_seconds=30)
    first = say(word)
    assert first.status_code == 200, first.content
    expire(lease)
    with nothing_lost():
        again = [say(word) for _ in range(3)]
    assert {answer.content for answer in again} == {first.content}


@pytest.mark.parametrize("first", FINAL)
@pytest.mark.parametrize("second", FINAL)
def test_another_end_is_a_conflict_with_what_was_stored(lease, run, say, first, second):
    if first == second:
        return
    if first == "acknowledge-cancel":
        cancellation.cancel(job_ulid=lease.job_id, actor=ALICE, deadline_seconds=30)
    status = say(first).json()["status"]
    assert refused(lambda: say(second), 409, "conflict")["job_status"] == status


def test_another_run_or_reason_is_another_end(run, say):
    say("complete")
    other = {"result": {"status": "uploaded", "ingest_run_id": RUN, "exit_code": 1}}
    refused(lambda: say("complete", other), 409, "conflict")


@pytest.mark.parametrize(
    "result",
    [
        {}, {"status": "uploaded"}, {"ingest_run_id": RUN}, {"status": "queued", "ingest_run_id": RUN},
        {"status": "uploaded", "ingest_run_id": ""}, {"status": "uploaded", "ingest_run_id": "x" * 65},
        {"status": "uploaded", "ingest_run_id": "a/b"}, {"status": "uploaded", "ingest_run_id": RUN + "\n"},
        {"status": "uploaded", "ingest_run_id": 7}, {"status": "uploaded", "ingest_run_id": "run_of_nobody"},
        {"status": "uploaded", "ingest_run_id": "run_of_another"}, {"status": True, "ingest_run_id": RUN},
        *[
            {"status": "uploaded", "ingest_run_id": RUN, name: value}
            for name, values in {
                "uploaded_at": ["2099-01-01T00:00:00Z", "yesterday", 7, "", "2026-03-17", "2026-03-17T20:03:20",
                                "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"],
                "exit_code": ["0", 0.0, True, 2**31, -(2**31) - 1],
                "counts": [[], 7, {"files": -1}, {"files": "1"}, {"files": 1.5}, {"files": True}, {"files": None}],
                "summary": ["x" * 1000],
            }.items()
            for value in values
        ],
    ],
    ids=lambda value: str(value)[:70],
)  # fmt: skip
def test_a_result_is_a_run_that_ingest_holds_for_this_job(job, run, say, organization, worker, result):
    other = submitted(organization.projects.get())
    Run.objects.create(
        run_id="run_of_another", job_id=other.job_ulid, org_slug="sandtrace", project_slug="web",
        worker_id=worker.worker_id, payload={}, payload_sha256="0" * 64,
    )  # fmt: skip
    refused(lambda: say("complete", {"result": result}), 400, "unknown_field" if "summary" in result else "invalid")


def test_a_worker_whose_clock_is_hours_wrong_may_still_finish(run, say, job):
    in_two_hours = (job.created_at + timedelta(hours=2)).isoformat().replace("+00:00", "Z")
    assert say("complete", {"result": DONE["result"] | {"uploaded_at": in_two_hours}}).status_code == 200


@pytest.mark.parametrize(
    "result",
    [
        {}, {"status": "failed"}, {"status": "failed", "reason": "because"}, {"status": "failed", "reason": "lease_expired"},
        {"status": "failed", "reason": "worker_lost"}, {"status": "failed", "reason": "never_acknowledged"},
        {"status": "uploaded", "reason": "worker_error"}, {"status": "failed", "reason": ["worker_error"]},
        {"status": "failed", "reason": "worker_error", "message": 7},
        {"status": "failed", "reason": "worker_error", "message": "x" * 65_537},
        {"status": "failed", "reason": "worker_error", "exit_code": "1"},
        {"status": "failed", "reason": "worker_error", "payload": {}},
        {"status": "failed", "reason": "upload_failed", "payload": []},
    ],
    ids=str,
)  # fmt: skip
def test_a_failure_has_a_reason_of_the_list_that_a_worker_may_give(lease, say, result):
    refused(lambda: say("fail", {"result": result}), 400, "invalid")


def test_what_a_worker_writes_is_cut_and_shows_no_control_characters_and_no_capability(lease, say, alice, worker):
    message = f"\x1b[31mred\x00 {lease.lease_ulid} {worker.token}\r\n\u202e".replace("\x00", "") + "x" * 60_000
    assert say("fail", {"result": FAILED["result"] | {"message": message}}).status_code == 200
    shown = alice.get(f"/v1/runtime/jobs/{lease.job_id}").json()["failure"]["message"]
    assert len(shown) == 4096
    assert shown.startswith("\\x1b[31mred rtl:")
    assert not {"\x1b", "\r", "\u202e"} & set(shown)
    assert lease.lease_ulid not in shown
    assert worker.token not in shown


def test_a_run_that_could_not_be_uploaded_is_kept(lease, say):
    payload = {"a": [1, {"b": "x"}], "c": 1.5}
    assert (
        say("fail", {"result": {"status": "failed", "reason": "upload_failed", "payload": payload}}).status_code == 200
    )
    assert UnsentRun.objects.get().payload == payload


@pytest.mark.parametrize(
    "progress",
    [
        {"percent": 1e308}, {"percent": -5}, {"percent": "a"}, {"percent": True}, {"percent": 100.1}, {"log_cursor": 1},
        {"step_index": -1}, {"step_index": 1.5}, {"step_index": 100_001}, {"current_step": 7}, {"message": "x" * 1001}, [], "x", 7,
    ],
    ids=str,
)  # fmt: skip
def test_progress_is_of_its_form(lease, say, progress):
    code = "unknown_field" if "log_cursor" in str(progress) else "invalid"
    refused(lambda: say("heartbeat", {"progress": progress}), 400, code)


@pytest.mark.parametrize(
    "phase", ["queued", "leased", "succeeded", "failed", "canceled", "", "Executing", 7, ["executing"]]
)
@pytest.mark.parametrize("word", ["heartbeat", "report"])
def test_a_phase_is_one_of_the_four(lease, say, word, phase):
    refused(lambda: say(word, {"phase": phase}), 400, "invalid")


@pytest.mark.parametrize("word", ["heartbeat", "report"])
def test_no_phase_runs_backwards_and_nothing_is_renewed_by_trying(lease, say, word):
    assert say("report", {"phase": "uploading"}).status_code == 200
    with nothing_lost():
        refused(lambda: say(word, {"phase": "executing"}), 409, "illegal_move")
    assert say(word, {"phase": "uploading"}).status_code == 200


def test_a_heartbeat_without_a_body_renews(lease, say):
    Lease.objects.filter(pk=lease.pk).update(expires_at=F("expires_at") - timedelta(seconds=60))
    answer = say("heartbeat", b"").json()
    assert set(answer) == {
        "job_id",
        "status",
        "lease_expires_at",
        "cancel_requested",
        "cancel_reason",
        "cancel_deadline_seconds",
    }
    lease.refresh_from_db()
    assert (lease.expires_at - lease.last_heartbeat_at).total_seconds() == 120


def test_a_cancel_is_acknowledged_only_where_it_was_asked_for(lease, say, alice):
    refused(lambda: say("acknowledge-cancel"), 409, "cancel_not_requested")
    assert alice.post(f"/v1/runtime/jobs/{lease.job_id}/cancel", {"reason": "enough"}).status_code == 202
    heard = say("heartbeat").json()
    assert (heard["cancel_requested"], heard["cancel_reason"]) == (True, "requested")
    assert 0 < heard["cancel_deadline_seconds"] <= 30
    assert say("acknowledge-cancel").json()["status"] == "canceled"


def test_what_runs_is_not_given_back(lease, say):
    say("report", {"phase": "executing"})
    refused(lambda: say("release"), 409, "illegal_move")


def chunk(raw, seq=0, **more):
    return {"seq": seq, "chunk": base64.b64encode(raw).decode(), **more}


@pytest.mark.parametrize(
    "body",
    [
        {}, {"seq": 0}, {"chunk": ""}, {"seq": "0", "chunk": ""}, {"seq": 0.0, "chunk": ""}, {"seq": True, "chunk": ""},
        {"seq": -1, "chunk": ""}, {"seq": 2**31, "chunk": ""}, {"seq": 0, "chunk": 7}, {"seq": 0, "chunk": "not base64!"},
        {"seq": 0, "chunk": "eA"}, {"seq": 0, "chunk": "eA==\n"}, {"seq": 0, "chunk": "e A=="}, {"seq": 0, "chunk": "_-8="},
        {"seq": 0, "chunk": "é"}, {"seq": 0, "chunk": "", "step": -1}, {"seq": 0, "chunk": "", "step": "0"},
        chunk(b"x" * (512 * 1024 + 1)),
    ],
    ids=lambda body: str(body)[:50],
)  # fmt: skip
def test_a_chunk_is_numbered_base64_of_at_most_half_a_mebibyte(lease, say, body):
    refused(lambda: say("logs", body), 400, "invalid")


def test_chunks_are_kept_once_in_order_and_whole(lease, say, alice):
    bytes_of_all_kinds = bytes(range(256))
    assert say("logs", chunk(bytes_of_all_kinds)).json() == {"next_seq": 1, "truncated": False}
    with nothing_lost():
        assert say("logs", chunk(bytes_of_all_kinds)).json() == {"next_seq": 1, "truncated": False}
        refused(lambda: say("logs", chunk(b"other")), 409, "chunk_conflict")
        assert refused(lambda: say("logs", chunk(b"later", seq=2)), 409, "chunk_gap")["expected_seq"] == 1
        assert refused(lambda: say("logs", chunk(b"x", seq=1, step=1)), 409, "chunk_gap")["expected_seq"] == 0
    assert say("logs", chunk(b"x" * (512 * 1024), seq=1)).status_code == 200
    assert say("logs", chunk(b"step", step=1)).status_code == 200
    text = b"".join(alice.get(f"/v1/runtime/jobs/{lease.job_id}/logs").streaming_content)
    assert text == bytes_of_all_kinds + b"x" * (512 * 1024) + b"step"
    assert LogChunk.objects.count() == 3


def test_a_log_that_is_full_takes_no_more_and_the_job_goes_on(lease, say):
    Job.objects.update(log_bytes=50 << 20)
    assert say("logs", chunk(b"x")).json() == {"next_seq": 0, "truncated": True}
    assert LogChunk.objects.count() == 0
    assert say("heartbeat").status_code == 200
