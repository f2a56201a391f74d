"""Operations that time causes: on both sides of every deadline."""

import pytest

from leases.models import Lease
from leases.states import LeaseState
from orchestrator.maintenance.leases import sweep
from orchestrator.services import cancellation, expiry, heartbeat, retries, worker_state
from runtime_jobs.models import Job, Plan
from runtime_jobs.specs import configured_policy
from runtime_jobs.states import FailureReason, JobState
from tests.factories import ALICE, OPERATOR, ProjectFactory, WorkerFactory, claimed, submitted
from tests.orchestrator.services.conftest import after
from tests.orchestrator.services.test_heartbeat import kinds, row, speak

pytestmark = pytest.mark.django_db
LONGEST = 2**31 - 1  # seconds


@pytest.mark.parametrize(("seconds", "state"), [(29.9, JobState.LEASED), (30, JobState.QUEUED)])
def test_a_lease_that_nobody_acknowledges_goes_back_at_its_window(granted, seconds, state):
    sweep(now=after(granted.lease.leased_at, seconds))
    assert row(granted.lease).state == state


def test_an_unacknowledged_lease_is_revoked_and_costs_no_retry(granted):
    sweep(now=after(granted.lease.leased_at, 31))
    lease = Lease.objects.get(pk=granted.lease.pk)
    assert (lease.state, lease.ended_reason) == (LeaseState.REVOKED, "not_acknowledged")
    assert row(lease).requeue_count == 1
    assert Job.objects.count() == 1


def test_after_five_requeues_the_next_unacknowledged_lease_fails_the_job(db):
    submitted()
    worker = WorkerFactory()
    for _ in range(6):
        claim = claimed(worker, acknowledge=True)
        sweep(now=after(claim.lease.leased_at, 31))
    job = row(claim.lease)
    assert (job.failure_reason, job.requeue_count) == (FailureReason.NEVER_ACKNOWLEDGED, 5)
    assert Job.objects.count() == 1


@pytest.mark.parametrize(("seconds", "state"), [(119.9, JobState.STARTING), (120, JobState.FAILED)])
def test_a_silent_worker_loses_its_job_at_the_expiry(leased, seconds, state):
    sweep(now=after(leased.lease.leased_at, seconds))
    assert row(leased.lease).state == state


def test_a_crash_is_retried_once_and_once_only(leased):
    sweep(now=after(leased.lease.leased_at, 121))
    assert row(leased.lease).failure_reason == FailureReason.LEASE_EXPIRED
    retry = claimed(leased.lease.worker)
    assert retry.job.retry_of_job_ulid == leased.job.job_ulid
    sweep(now=after(retry.lease.leased_at, 121))
    assert Job.objects.count() == 2
    assert sweep(now=after(retry.lease.leased_at, 9999)) == 0


def test_a_manual_retry_brings_its_own_automatic_one(leased):
    sweep(now=after(leased.lease.leased_at, 121))
    second = claimed(leased.lease.worker)
    sweep(now=after(second.lease.leased_at, 121))
    manual = retries.retry(job_ulid=second.job.job_ulid, actor=OPERATOR, reason="the rack is back").job
    third = claimed(leased.lease.worker)
    assert third.job.job_ulid == manual.job_ulid
    sweep(now=after(third.lease.leased_at, 121))
    assert Job.objects.filter(root_job_ulid=leased.job.job_ulid).count() == 4


def test_the_trail_of_a_crash_says_what_happened(leased):
    sweep(now=after(leased.lease.leased_at, 121))
    assert kinds(row(leased.lease)) == ["job.queued", "job.leased", "job.started", "lease.expired", "job.failed"]
    assert kinds(Job.objects.get(retry_of_job_ulid=leased.job.job_ulid)) == ["job.queued", "job.retried"]


def test_a_cancel_that_is_not_obeyed_is_forced_at_its_deadline(leased):
    asked = cancellation.cancel(job_ulid=leased.job.job_ulid, actor=ALICE, deadline_seconds=30).job
    assert sweep(now=after(asked.cancel_deadline_at, -0.1)) == 0
    assert sweep(now=asked.cancel_deadline_at) == 1
    assert row(leased.lease).state == JobState.CANCELED
    assert Lease.objects.get(pk=leased.lease.pk).ended_reason == "cancel_deadline"


def test_the_clock_looks_again_under_the_lock(leased):
    """A job that a task found may have changed meanwhile: the operation itself decides."""
    cancellation.cancel(job_ulid=leased.job.job_ulid, actor=ALICE, deadline_seconds=30)
    now = after(leased.lease.leased_at, 1)
    assert expiry.force_cancel(job_ulid=leased.job.job_ulid, now=now) is None
    assert expiry.expire(job_ulid=leased.job.job_ulid, now=now) is None
    assert expiry.time_out(job_ulid=leased.job.job_ulid, now=now) is None
    assert row(leased.lease).state == JobState.STARTING


def test_a_dead_worker_with_a_cancel_leaves_a_canceled_job(leased):
    cancellation.cancel(job_ulid=leased.job.job_ulid, actor=ALICE, deadline_seconds=3000)
    sweep(now=after(leased.lease.leased_at, 121))
    assert row(leased.lease).state == JobState.CANCELED
    assert Job.objects.count() == 1


@pytest.mark.parametrize(
    ("phase", "limit"), [("starting", 600), ("checking_out", 600), ("executing", 360), ("uploading", 900)]
)
def test_each_phase_has_a_limit_of_its_own(leased, phase, limit):
    start = leased.lease.leased_at
    reported = heartbeat.report(**speak(leased, phase=phase, now=start))
    assert reported.state == phase
    for beat in range(0, limit + 20, 100):
        heartbeat.renew(**speak(leased, now=after(start, beat)))
    sweep(now=after(start, limit))
    assert row(leased.lease).state == phase
    sweep(now=after(start, limit + 1))
    job = row(leased.lease)
    assert (job.state, job.failure_reason) == (JobState.FAILED, FailureReason.TIMED_OUT)


def test_a_job_with_the_longest_time_limit_keeps_no_other_from_its_end(leased):
    """The time limit and the grace together exceed an integer of 32 bits."""
    Plan.objects.update(max_timeout_seconds=LONGEST)
    submitted(ProjectFactory(), timeout_seconds=LONGEST)
    long = claimed()
    start = leased.lease.leased_at
    for claim in (leased, long):
        heartbeat.report(**speak(claim, phase="executing", now=start))
        for beat in range(100, 400, 100):
            heartbeat.renew(**speak(claim, now=after(start, beat)))
    sweep(now=after(start, 361))
    assert row(leased.lease).failure_reason == FailureReason.TIMED_OUT
    assert row(long.lease).state == JobState.EXECUTING


@pytest.mark.parametrize("grace", [0, 5, 200])
def test_the_grace_after_the_time_limit_is_a_setting_of_the_submit(db, settings, grace):
    settings.TIMEOUT_GRACE_SECONDS = grace
    submitted(policy=configured_policy("runtime"))
    settings.TIMEOUT_GRACE_SECONDS = 10_000
    leased = claimed()
    start = leased.lease.leased_at
    heartbeat.report(**speak(leased, phase="executing", now=start))
    for beat in range(0, 300 + grace, 50):
        heartbeat.renew(**speak(leased, now=after(start, beat)))
    sweep(now=after(start, 300 + grace))
    assert row(leased.lease).state == JobState.EXECUTING
    sweep(now=after(start, 301 + grace))
    assert row(leased.lease).failure_reason == FailureReason.TIMED_OUT


@pytest.mark.parametrize(
    ("last_heartbeat", "reason", "attempts"),
    [
        (100, FailureReason.LEASE_EXPIRED, 2),  # expired at 220
        (239, FailureReason.LEASE_EXPIRED, 2),  # expired at 359
        (240, FailureReason.LEASE_EXPIRED, 2),  # both at 360: the limit was reached, not passed
        (241, FailureReason.TIMED_OUT, 1),  # 361
        (300, FailureReason.TIMED_OUT, 1),
    ],
)
@pytest.mark.parametrize("order", [(expiry.expire, expiry.time_out), (expiry.time_out, expiry.expire)])
def test_after_a_pause_of_the_scheduler_a_job_fails_for_what_came_first(
    leased, last_heartbeat, reason, attempts, order
):
    """The time limit of 300 s and 60 s of grace, or the end of the lease 120 s after the last heartbeat."""
    start = leased.lease.leased_at
    heartbeat.report(**speak(leased, phase="executing", now=start))
    for beat in [*range(0, last_heartbeat, 100), last_heartbeat]:
        heartbeat.renew(**speak(leased, now=after(start, beat)))
    for operation in order:
        operation(job_ulid=leased.job.job_ulid, now=after(start, 5000))
    assert row(leased.lease).failure_reason == reason
    assert Job.objects.count() == attempts


def test_a_revoked_lease_fails_its_job_as_lost(leased):
    worker_state.revoke(job_ulid=leased.job.job_ulid, actor=OPERATOR, reason="burning")
    assert row(leased.lease).failure_reason == FailureReason.WORKER_LOST
    assert Lease.objects.get(pk=leased.lease.pk).state == LeaseState.REVOKED
    assert Job.objects.filter(retry_of_job_ulid=leased.job.job_ulid).exists()


def test_a_revoked_lease_that_was_not_taken_up_costs_nothing(granted):
    worker_state.revoke(job_ulid=granted.job.job_ulid, actor=OPERATOR, reason="burning")
    assert row(granted.lease).state == JobState.QUEUED
