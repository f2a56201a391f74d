"""Messages of a lease's holder, and their effect when they are repeated, late, or about another lease."""

from dataclasses import replace
from datetime import timedelta

import pytest

from leases.errors import StaleLease
from leases.models import Lease
from leases.states import LeaseState
from orchestrator.services import cancellation, claiming, expiry, heartbeat, job_end, worker_state
from orchestrator.step_logs import job_log_writes
from runtime_jobs.errors import CancelNotRequested, Conflict, InvalidTransition
from runtime_jobs.models import Job, JobEvent, LogChunk
from runtime_jobs.states import FailureReason, JobState
from tests.factories import ALICE, OPERATOR, POLICY, WorkerFactory, claimed, offer, submitted
from tests.orchestrator.services.conftest import after

pytestmark = pytest.mark.django_db


def row(lease):
    return Job.objects.get(job_ulid=lease.job_id)


def kinds(job):
    return list(JobEvent.objects.of(job.job_ulid).values_list("event_type", flat=True))


def speak(claim, **kwargs):
    return {"lease_ulid": claim.lease.lease_ulid, "worker": claim.lease.worker} | kwargs


def test_a_claim_without_a_promise_is_active_for_the_whole_ttl(leased):
    assert leased.lease.state == LeaseState.ACTIVE
    assert leased.lease.expires_at == after(leased.lease.leased_at, 120)
    assert row(leased.lease).state == JobState.STARTING


def test_a_claim_with_a_promise_dies_after_its_window(granted):
    assert granted.lease.state == LeaseState.GRANTED
    assert granted.lease.expires_at == after(granted.lease.leased_at, 30)
    assert row(granted.lease).public_status == "queued"


def test_acknowledging_makes_it_run_and_again_changes_nothing(granted):
    heartbeat.acknowledge(**speak(granted))
    first = Lease.objects.get(pk=granted.lease.pk)
    heartbeat.acknowledge(**speak(granted))
    again = Lease.objects.get(pk=granted.lease.pk)
    assert first.state == LeaseState.ACTIVE
    assert (again.acknowledged_at, again.expires_at) == (first.acknowledged_at, first.expires_at)
    assert kinds(row(granted.lease)) == ["job.queued", "job.leased", "job.started"]


def test_a_second_acknowledgement_at_the_same_time_writes_nothing(granted, django_assert_num_queries):
    """Two equal timestamps do not mean that this message acknowledged the lease."""
    now = after(granted.lease.leased_at, 1)
    heartbeat.acknowledge(**speak(granted, now=now))
    before = row(granted.lease).updated_at
    Job.objects.filter(pk=granted.job.pk).update(progress={"files": 1})
    heartbeat.acknowledge(**speak(granted, now=now))
    assert (row(granted.lease).updated_at, row(granted.lease).progress) == (before, {"files": 1})
    with django_assert_num_queries(3):  # one read; the test's transaction adds a savepoint
        heartbeat.acknowledge(**speak(granted, now=now))


def test_an_acknowledged_lease_lives_for_its_ttl_even_if_that_is_shorter_than_the_window(db):
    submitted(policy=replace(POLICY, lease_ttl_seconds=6))
    claim = claimed(acknowledge=True)
    heartbeat.acknowledge(**speak(claim, now=after(claim.lease.leased_at, 1)))
    assert Lease.objects.get(pk=claim.lease.pk).expires_at == after(claim.lease.leased_at, 7)


@pytest.mark.parametrize(
    "say",
    [
        lambda claim: heartbeat.renew(**speak(claim)),
        lambda claim: heartbeat.report(**speak(claim, phase="checking_out")),
        lambda claim: job_end.complete(**speak(claim, ingest_run_id="run_1")),
        lambda claim: job_end.fail(**speak(claim, reason=FailureReason.WORKER_ERROR)),
    ],
    ids=["heartbeat", "report", "complete", "fail"],
)
def test_any_word_about_the_job_acknowledges_its_lease(granted, say):
    say(granted)
    assert Lease.objects.get(pk=granted.lease.pk).acknowledged_at is not None


def test_a_heartbeat_extends_from_now_and_never_shortens(leased):
    start = leased.lease.leased_at
    later = heartbeat.renew(**speak(leased, now=after(start, 60)))
    assert later.lease.expires_at == after(start, 180)
    stepped_back = heartbeat.renew(**speak(leased, now=after(start, 10)))
    assert stepped_back.lease.expires_at == after(start, 180)


def test_heartbeats_that_move_nothing_are_not_written(leased, django_assert_num_queries):
    heartbeat.report(**speak(leased, phase="executing"))
    at = after(leased.lease.leased_at, 60)
    heartbeat.renew(**speak(leased, now=at))
    before = Lease.objects.get(pk=leased.lease.pk).last_heartbeat_at
    answered = heartbeat.renew(**speak(leased, now=at + timedelta(milliseconds=100))).lease.expires_at
    stored = Lease.objects.get(pk=leased.lease.pk)
    assert stored.last_heartbeat_at == before
    assert answered == stored.expires_at, "a worker is promised what the clock will honour"


def test_progress_is_kept_and_makes_no_event(leased):
    before = kinds(row(leased.lease))
    heartbeat.renew(**speak(leased, progress={"percent": 40.0}))
    assert row(leased.lease).progress == {"percent": 40.0}
    assert kinds(row(leased.lease)) == before


@pytest.mark.parametrize("seconds", [120, 121, 4000])
def test_at_its_expiry_a_lease_is_dead(leased, seconds):
    with pytest.raises(StaleLease) as stale:
        heartbeat.renew(**speak(leased, now=after(leased.lease.leased_at, seconds)))
    assert stale.value.facts["reason"] == "lease_expired"


def test_just_before_its_expiry_a_lease_lives(leased):
    heartbeat.renew(**speak(leased, now=after(leased.lease.leased_at, 119.999)))


def test_another_workers_lease_is_unknown(leased):
    with pytest.raises(StaleLease) as stale:
        job_end.complete(lease_ulid=leased.lease.lease_ulid, worker=WorkerFactory(), ingest_run_id="run_1")
    assert stale.value.facts == {"reason": "unknown_lease"}


def test_another_session_may_not_renew_but_may_finish(db):
    submitted()
    claim = claimed(session="01ARZ3NDEKTSV4RRFFQ69G5FAV")
    with pytest.raises(StaleLease):
        heartbeat.renew(**speak(claim, session="01ARZ3NDEKTSV4RRFFQ69G5FAW"))
    assert job_end.complete(**speak(claim, ingest_run_id="run_1")).state == JobState.SUCCEEDED


def test_phases_run_forward_and_may_be_skipped(leased):
    heartbeat.report(**speak(leased, phase="executing"))
    heartbeat.report(**speak(leased, phase="executing"))
    assert row(leased.lease).executing_at is not None
    with pytest.raises(InvalidTransition):
        heartbeat.report(**speak(leased, phase="checking_out"))
    assert kinds(row(leased.lease)).count("job.progress") == 1


def test_a_success_has_its_run_and_ends_the_lease(leased):
    job = job_end.complete(**speak(leased, ingest_run_id="run_1", exit_code=3))
    assert (job.state, job.ingest_run_id, job.exit_code) == (JobState.SUCCEEDED, "run_1", 3)
    assert Lease.objects.get(pk=leased.lease.pk).state == LeaseState.COMPLETED


def test_the_same_end_again_is_answered_the_same_even_after_the_expiry(leased):
    job_end.complete(**speak(leased, ingest_run_id="run_1"))
    before = kinds(row(leased.lease))
    again = job_end.complete(**speak(leased, ingest_run_id="run_1", now=after(leased.lease.leased_at, 9999)))
    assert again.state == JobState.SUCCEEDED
    assert kinds(again) == before


def test_another_end_is_a_conflict_and_changes_nothing(leased):
    job_end.complete(**speak(leased, ingest_run_id="run_1"))
    with pytest.raises(Conflict):
        job_end.complete(**speak(leased, ingest_run_id="run_2"))
    with pytest.raises(Conflict):
        job_end.fail(**speak(leased, reason=FailureReason.WORKER_ERROR))
    assert row(leased.lease).ingest_run_id == "run_1"


def test_texts_do_not_make_a_final_message_another_one(leased):
    job_end.fail(**speak(leased, reason=FailureReason.CHECKOUT_FAILED, message="first"))
    job = job_end.fail(**speak(leased, reason=FailureReason.CHECKOUT_FAILED, message="second"))
    assert job.failure_message == "first"


def test_two_jobs_never_share_a_run(leased):
    submitted()
    other = claimed(leased.lease.worker)
    job_end.complete(**speak(leased, ingest_run_id="run_1"))
    with pytest.raises(Conflict):
        job_end.complete(**speak(other, ingest_run_id="run_1"))


@pytest.mark.parametrize(
    "reason", [FailureReason.UPLOAD_FAILED, FailureReason.CHECKOUT_FAILED, FailureReason.TIMED_OUT]
)
def test_what_a_worker_found_is_not_retried_by_itself(leased, reason):
    job_end.fail(**speak(leased, reason=reason))
    assert Job.objects.count() == 1


def test_a_worker_that_shuts_down_costs_one_automatic_retry(leased):
    job_end.fail(**speak(leased, reason=FailureReason.WORKER_SHUTDOWN))
    retry = Job.objects.get(retry_of_job_ulid=leased.job.job_ulid)
    assert (retry.state, retry.attempt, retry.root_job_ulid) == (JobState.QUEUED, 2, leased.job.job_ulid)
    second = claimed(leased.lease.worker)
    assert second.job.job_ulid == retry.job_ulid
    job_end.fail(**speak(second, reason=FailureReason.WORKER_SHUTDOWN))
    assert Job.objects.count() == 2


def test_a_released_job_waits_again_under_the_next_fence(granted):
    heartbeat.release(**speak(granted))
    assert row(granted.lease).state == JobState.QUEUED
    again = claimed(granted.lease.worker)
    assert (again.job.job_ulid, again.lease.fence) == (granted.job.job_ulid, 2)


def test_what_runs_cannot_be_given_back(leased):
    heartbeat.report(**speak(leased, phase="executing"))
    with pytest.raises(InvalidTransition):
        heartbeat.release(**speak(leased))


def test_a_worker_that_is_too_weak_is_not_offered_the_job_again(leased):
    heartbeat.release(**speak(leased, unable=True))

    worker = leased.lease.worker
    assert claiming.claim(worker=worker, offer=offer(worker)) is None
    assert claimed().job.job_ulid == leased.job.job_ulid


def test_after_three_workers_that_are_too_weak_the_job_fails(db):
    submitted()
    for _ in range(3):
        claim = claimed()
        heartbeat.release(**speak(claim, unable=True, message="no user namespaces"))
    assert row(claim.lease).failure_reason == FailureReason.SANDBOX_UNAVAILABLE


def test_after_ten_releases_the_eleventh_fails_the_job(db):
    submitted()
    worker = WorkerFactory()
    for _ in range(11):
        heartbeat.release(**speak(claim := claimed(worker)))
    assert row(claim.lease).state == JobState.FAILED


def test_a_cancel_is_only_acknowledged_where_it_was_asked_for(leased):
    with pytest.raises(CancelNotRequested):
        job_end.acknowledge_cancel(**speak(leased))
    cancellation.cancel(job_ulid=leased.job.job_ulid, actor=ALICE, deadline_seconds=30)
    assert job_end.acknowledge_cancel(**speak(leased)).state == JobState.CANCELED
    assert job_end.acknowledge_cancel(**speak(leased)).state == JobState.CANCELED


def test_a_result_that_ingest_has_beats_a_cancel_before_the_deadline(leased):
    cancellation.cancel(job_ulid=leased.job.job_ulid, actor=ALICE, deadline_seconds=30)
    assert job_end.complete(**speak(leased, ingest_run_id="run_1")).state == JobState.SUCCEEDED


def test_after_the_deadline_the_cancel_wins(leased):
    asked = cancellation.cancel(job_ulid=leased.job.job_ulid, actor=ALICE, deadline_seconds=30).job
    job = job_end.complete(**speak(leased, ingest_run_id="run_1", now=asked.cancel_deadline_at))
    assert (job.state, job.ingest_run_id) == (JobState.CANCELED, None)


def test_with_a_cancel_requested_a_failure_ends_canceled_without_a_retry(leased):
    cancellation.cancel(job_ulid=leased.job.job_ulid, actor=ALICE, deadline_seconds=30)
    assert job_end.fail(**speak(leased, reason=FailureReason.WORKER_SHUTDOWN)).state == JobState.CANCELED
    assert Job.objects.count() == 1


def expire(claim):
    expiry.expire(job_ulid=claim.job.job_ulid, now=after(claim.lease.expires_at, 1))


def revoke(claim):
    worker_state.revoke(job_ulid=claim.job.job_ulid, actor=OPERATOR, reason="burning")


def force(claim):
    asked = cancellation.cancel(job_ulid=claim.job.job_ulid, actor=ALICE, deadline_seconds=30).job
    expiry.force_cancel(job_ulid=claim.job.job_ulid, now=asked.cancel_deadline_at)


@pytest.mark.parametrize(
    ("end", "reason", "status"),
    [(expire, "lease_expired", "failed"), (revoke, "lease_revoked", "failed"), (force, "lease_revoked", "canceled")],
)
@pytest.mark.parametrize(
    "say",
    [
        lambda claim: heartbeat.acknowledge(**speak(claim)),
        lambda claim: heartbeat.renew(**speak(claim)),
        lambda claim: heartbeat.report(**speak(claim, phase="executing")),
        lambda claim: job_log_writes.append_log(**speak(claim, seq=0, chunk=b"late")),
        lambda claim: job_end.complete(**speak(claim, ingest_run_id="run_1")),
        lambda claim: job_end.fail(**speak(claim, reason=FailureReason.WORKER_ERROR)),
        lambda claim: heartbeat.release(**speak(claim)),
        lambda claim: job_end.acknowledge_cancel(**speak(claim)),
    ],
    ids=["acknowledge", "heartbeat", "report", "logs", "complete", "fail", "release", "acknowledge-cancel"],
)
def test_a_stale_holder_hears_why_and_changes_nothing(leased, end, reason, status, say):
    end(leased)
    before = images()
    with pytest.raises(StaleLease) as stale:
        say(leased)
    assert stale.value.facts == {"reason": reason, "job_status": status}
    assert images() == before


def images():
    """Every row that an operation could have changed."""
    return [list(model.objects.order_by("pk").values()) for model in (Job, Lease, JobEvent, LogChunk)]


def test_a_too_weak_worker_cannot_end_a_job_that_it_already_runs(db):
    submitted()
    for _ in range(2):
        heartbeat.release(**speak(claimed(), unable=True))
    last = claimed()
    heartbeat.report(**speak(last, phase="executing"))
    with pytest.raises(InvalidTransition):
        heartbeat.release(**speak(last, unable=True))
    assert row(last.lease).state == JobState.EXECUTING
