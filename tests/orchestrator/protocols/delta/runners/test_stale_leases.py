"""Responses to messages under leases that are not valid: one shape, the right reason, no change."""

from datetime import timedelta

import pytest

from leases.models import Lease
from orchestrator.protocols.delta.states import CANCEL, STALE
from orchestrator.services import cancellation, expiry, heartbeat, worker_state
from runtime_jobs.identifiers import fingerprint
from runtime_jobs.models import Job
from runtime_jobs.states import CancelReason
from tests.api_client import Caller
from tests.db_snapshot import nothing_lost
from tests.factories import ALICE, OPERATOR, WorkerFactory
from tests.orchestrator.protocols.delta.messages import WORDS, recorded
from tests.orchestrator.services.conftest import after

pytestmark = pytest.mark.django_db
BEAT = {"extend_lease", "stale", "new_lease_ttl_seconds", "cancel_requested", "cancel_deadline_seconds"}


def acknowledged(held):
    held.say("runner_ack_lease")


def late(held):
    """Past its time, and the clock has not come by yet."""
    acknowledged(held)
    Lease.objects.update(expires_at=held.lease.leased_at + timedelta(milliseconds=1))
    Lease.objects.update(leased_at=held.lease.leased_at - timedelta(seconds=300))


def expired(held):
    acknowledged(held)
    expiry.expire(job_ulid=held.job.job_ulid, now=held.lease.expires_at)


def never_acknowledged(held):
    expiry.expire(job_ulid=held.job.job_ulid, now=held.lease.expires_at)


def revoked(held):
    acknowledged(held)
    worker_state.revoke(job_ulid=held.job.job_ulid, actor=OPERATOR, reason="burning")


def forced(held):
    acknowledged(held)
    cancellation.cancel(job_ulid=held.job.job_ulid, actor=ALICE, deadline_seconds=0)
    expiry.force_cancel(job_ulid=held.job.job_ulid)


def timed_out(held):
    held.say("runner_heartbeat")
    Lease.objects.update(expires_at=after(held.job.executing_at, 400))  # its heartbeats continue
    expiry.time_out(job_ulid=held.job.job_ulid, now=after(held.job.executing_at, 361))


def succeeded(held):
    """With other artifacts than any of the recorded messages has."""
    acknowledged(held)
    held.say("runner_complete_succeeded", artifacts=[{"type": "log", "uri": "s3://elsewhere"}])


def canceled(held):
    acknowledged(held)
    cancellation.cancel(job_ulid=held.job.job_ulid, actor=ALICE, deadline_seconds=30)
    held.say("runner_cancel_ack", artifacts=[{"type": "log", "uri": "s3://elsewhere"}])


def released(held):
    heartbeat.release(lease_ulid=held.lease.lease_ulid, worker=held.worker)


ENDS = {
    late: ("LEASE_EXPIRED", "lease_expired"),
    expired: ("LEASE_EXPIRED", "lease_expired"),
    never_acknowledged: ("LEASE_REVOKED", "lease_revoked"),
    revoked: ("LEASE_REVOKED", "lease_revoked"),
    forced: ("LEASE_REVOKED", "lease_revoked"),
    timed_out: ("LEASE_REVOKED", "lease_revoked"),
    succeeded: ("UNKNOWN_LEASE", "lease_ended"),
    canceled: ("UNKNOWN_LEASE", "lease_ended"),
    released: ("UNKNOWN_LEASE", "lease_ended"),
}


def told_stale(response, *, lease_id: str, word: str, reason: str, beat: bool) -> dict:
    """The body of a stale answer, which must have every form there is."""
    assert response.status_code == 409, response.content
    assert response["Content-Type"] == "application/json"
    body = response.json()
    shape = recorded("stale_superset")
    assert set(body) == set(shape) | (BEAT if beat else set())
    assert set(body["error"]) == {*shape["error"], "details"}
    assert body["type"] == recorded("note_stale_lease")["type"] == "StaleLease"
    assert (body["lease_id"], body["reason"]) == (lease_id, word)
    assert body["error"] | {"details": 0} == {
        "code": "STALE_LEASE", "message": "stale lease", "lease_id": lease_id, "details": 0
    }  # fmt: skip
    assert body["error"]["details"]["reason"] == reason
    if beat:
        assert (body["extend_lease"], body["stale"]) == (False, True)
        assert (body["cancel_requested"], body["cancel_deadline_seconds"]) == (True, 0)
    return body


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
def test_a_lease_that_counts_no_more(granted, end, word):
    end(granted)
    job = granted.job
    with nothing_lost():
        response = granted.say(word)
    body = told_stale(
        response,
        lease_id=granted.lease.lease_ulid,
        word=ENDS[end][0],
        reason=ENDS[end][1],
        beat=word == "runner_heartbeat",
    )
    final = {"job_status": job.public_status} if job.is_final else {}
    assert body["error"]["details"] == {"reason": ENDS[end][1]} | final


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("taken_up", [False, True])
def test_a_foreign_lease_is_an_unknown_one(granted, unknown, word, taken_up):
    if taken_up:
        acknowledged(granted)
    stranger = Caller(WorkerFactory().token)
    names = [granted.lease.lease_ulid, unknown, "lease_abc", "x", "%00", "💩"]
    with nothing_lost():
        answers = {name: granted.say(word, actor=stranger, lease_id=name) for name in names}
    for name, response in answers.items():
        body = told_stale(
            response, lease_id=name, word="UNKNOWN_LEASE", reason="unknown_lease", beat=word == "runner_heartbeat"
        )
        assert body["error"]["details"] == {"reason": "unknown_lease"}, "nothing is shown of the job"


@pytest.mark.parametrize("word", ["runner_ack_lease", "runner_heartbeat"])
def test_of_two_runners_with_one_lease_the_one_that_took_it_up_may_speak(held, word):
    with nothing_lost():
        response = held.say(word, runner_id="its-twin")
    told_stale(
        response,
        lease_id=held.lease.lease_ulid,
        word="UNKNOWN_LEASE",
        reason="lease_ended",
        beat=word == "runner_heartbeat",
    )
    assert held.say(word).status_code == 200


def test_a_restarted_runner_may_deliver_what_it_had(held):
    assert held.say("runner_complete_succeeded", runner_id="local-worker-2").status_code == 200


def test_a_heartbeat_that_lands_after_the_end_hurts_nothing(held):
    first = held.say("runner_complete_failed")
    with nothing_lost():
        assert held.say("runner_heartbeat").status_code == 409
        assert held.say("runner_complete_failed").json() == first.json()


def test_the_second_attempt_is_untouched_by_the_holder_of_the_first(granted):
    expired(granted)
    second = Job.objects.exclude(pk=granted.job.pk).get()
    with nothing_lost():
        for word in WORDS:
            assert granted.say(word).status_code == 409
    assert Job.objects.get(pk=second.pk).state == "queued"


def test_a_message_is_stale_before_it_is_wrong_about_its_job_only_if_the_lease_is_unknown(granted, unknown):
    """The holder of a lease learns that it named another job; other callers learn nothing."""
    assert granted.say("runner_ack_lease", job_id="rtj_x").status_code == 400
    assert granted.say("runner_ack_lease", job_id="rtj_x", lease_id=unknown).status_code == 409


def test_the_log_has_no_lease_id(granted, caplog):
    acknowledged(granted)
    for word in WORDS:
        granted.say(word)
    assert granted.lease.lease_ulid not in caplog.text
    assert fingerprint(granted.lease.lease_ulid)  # what would stand there instead


def test_every_reason_has_its_word():
    assert set(CANCEL) == set(CancelReason)
    assert set(STALE) == {"lease_expired", "lease_revoked", "lease_ended", "unknown_lease"}
