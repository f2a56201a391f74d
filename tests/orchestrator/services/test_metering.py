"""Contract 6: the minutes of a job, billed once each, in the transaction of the heartbeat or the end that crosses one."""

import dataclasses
from datetime import timedelta
from fractions import Fraction

import pytest
from django.db import DatabaseError, connection, transaction
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from leases.errors import StaleLease
from orchestrator.audit.runner import run_audit
from orchestrator.services import batch_calls, cancellation, expiry, heartbeat, job_end, worker_state
from orchestrator.services.batch_calls import WorkerMessage
from orchestrator.services.heartbeat import HeartbeatUpdate
from orchestrator.services.metering import MAX_MINUTES, billed_minutes
from runtime_jobs.models import Job, Organization, UsageRecord
from runtime_jobs.specs import JOB_TYPES
from runtime_jobs.states import FailureReason, JobState
from tests.api_client import Caller
from tests.factories import ALICE, OPERATOR, TIMINGS, PlanFactory, api_token, claimed, submitted_steps

pytestmark = pytest.mark.django_db(transaction=True)

METERED = dataclasses.replace(JOB_TYPES["steps"].policy(**TIMINGS), is_metered=True, lease_ttl_seconds=100_000)


@pytest.fixture
def start():
    """The time at which the job began to execute; in the past, so that no time of a test is in the future."""
    return timezone.now() - timedelta(hours=4)


@pytest.fixture
def executing(start):
    """A metered job that executes since `start`."""
    return begin(start)


def begin(start, *, timeout_seconds=900, **changes):
    submitted_steps(policy=dataclasses.replace(METERED, **changes), now=start, timeout_seconds=timeout_seconds)
    claim = claimed(job_types=("steps",), now=start)
    heartbeat.report(lease_ulid=claim.lease.lease_ulid, worker=claim.lease.worker, phase="executing", now=start)
    return claim


def beat(claim, now):
    return heartbeat.renew(lease_ulid=claim.lease.lease_ulid, worker=claim.lease.worker, now=now)


def ledger() -> list[tuple[int, int]]:
    """The records in order: the last minute of each, and its number of minutes."""
    return list(UsageRecord.objects.order_by("id").values_list("minute", "minutes"))


def watermark() -> int | None:
    return Job.objects.get().last_billed_minute


def agree() -> None:
    assert [str(finding) for finding in run_audit() if finding.code.startswith("U")] == []


# --- minutes(elapsed) -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "minutes"),
    [(0, 1), (1, 1), (59, 1), (60, 1), (61, 2), (120, 2), (121, 3), (7200, 120), (-1, 1), (-1e9, 1), (60.9, 1)],
)
def test_each_minute_that_has_begun_counts_and_at_least_one(seconds, minutes):
    assert billed_minutes(seconds) == minutes


@given(st.integers(-(10**6), 10**12))
def test_minutes_are_the_ceiling_within_the_range_of_the_column(seconds):
    clamped = min(max(seconds, 0), MAX_MINUTES * 60)
    assert billed_minutes(seconds) == max(1, -((-Fraction(clamped, 60)) // 1))
    assert billed_minutes(seconds) <= MAX_MINUTES


# --- heartbeats -------------------------------------------------------------------------------------------------------


def test_the_first_heartbeat_of_the_execution_bills_one_minute(executing, start):
    beat(executing, start + timedelta(seconds=1))
    assert (ledger(), watermark()) == ([(1, 1)], 1)
    agree()


def test_the_start_of_the_execution_bills_nothing(executing):
    assert (ledger(), watermark()) == ([], None)


@pytest.mark.parametrize("named", ["phase", "reached"])
def test_a_heartbeat_that_begins_the_execution_bills_nothing(start, named):
    submitted_steps(policy=METERED, now=start)
    claim = claimed(job_types=("steps",), now=start)
    lease = {"lease_ulid": claim.lease.lease_ulid, "worker": claim.lease.worker}
    heartbeat.renew(**lease, **{named: "executing"}, now=start)
    assert (ledger(), watermark()) == ([], None)
    heartbeat.renew(**lease, **{named: "executing"}, now=start + timedelta(seconds=1))
    assert (ledger(), watermark()) == ([(1, 1)], 1)


def test_repeated_heartbeats_add_no_minute(executing, start):
    for second in (1, 1, 30, 60, 60):
        beat(executing, start + timedelta(seconds=second))
    assert (ledger(), watermark()) == ([(1, 1)], 1)
    beat(executing, start + timedelta(seconds=61))
    beat(executing, start + timedelta(seconds=61))
    assert (ledger(), watermark()) == ([(1, 1), (2, 1)], 2)
    agree()


def test_a_heartbeat_after_silence_bills_the_minutes_since_the_last_one(executing, start):
    beat(executing, start + timedelta(seconds=1))
    beat(executing, start + timedelta(seconds=301))
    assert ledger() == [(1, 1), (6, 5)]
    agree()


def test_a_heartbeat_before_the_execution_bills_nothing(start):
    submitted_steps(policy=METERED, now=start)
    claim = claimed(job_types=("steps",), now=start)
    beat(claim, start + timedelta(seconds=100))
    assert (ledger(), watermark()) == ([], None)


def test_jobs_of_other_types_are_not_metered(start):
    claim = begin(start, is_metered=False)
    beat(claim, start + timedelta(seconds=100))
    job_end.complete(lease_ulid=claim.lease.lease_ulid, worker=claim.lease.worker, now=start + timedelta(seconds=200))
    assert (ledger(), watermark()) == ([], None)
    agree()


def test_heartbeats_of_many_jobs_in_one_call_bill_each(start):
    claims = [begin(start), begin(start)]
    workers = {claim.lease.worker for claim in claims}
    for worker in workers:
        updates = {c.lease.lease_ulid: HeartbeatUpdate() for c in claims if c.lease.worker == worker}
        batch_calls.renew_many(batch_calls.messages_of(worker, updates), now=start + timedelta(seconds=61))
    assert ledger() == [(2, 2), (2, 2)]
    agree()


def test_heartbeats_of_many_workers_in_one_call_bill_each(start):
    claims = [begin(start), begin(start)]
    beats = {claim.lease.lease_ulid: WorkerMessage(claim.lease.worker, HeartbeatUpdate()) for claim in claims}
    for second in (61, 62):
        batch_calls.renew_many(beats, now=start + timedelta(seconds=second))
    assert ledger() == [(2, 2), (2, 2)]
    agree()


def test_a_stale_heartbeat_bills_nothing(start):
    claim = begin(start, lease_ttl_seconds=10)
    with pytest.raises(StaleLease):
        beat(claim, start + timedelta(seconds=100))
    assert (ledger(), watermark()) == ([], None)


# --- ends -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seconds", "minutes"), [(0, 1), (60, 1), (61, 2), (800, 14)])
def test_the_end_bills_what_no_heartbeat_has(executing, start, seconds, minutes):
    end = start + timedelta(seconds=seconds)
    job_end.complete(lease_ulid=executing.lease.lease_ulid, worker=executing.lease.worker, now=end)
    assert (ledger(), watermark()) == ([(minutes, minutes)], minutes)
    job_end.complete(lease_ulid=executing.lease.lease_ulid, worker=executing.lease.worker, now=end + timedelta(hours=1))
    assert (ledger(), watermark()) == ([(minutes, minutes)], minutes)
    agree()


@pytest.mark.parametrize(("seconds", "minutes"), [(0, 1), (60, 1), (61, 2), (7_200, 120)])
def test_ledger_watermark_and_api_agree(start, seconds, minutes):
    """Heartbeats every minute, each of them twice, and then the end, twice."""
    PlanFactory(max_timeout_seconds=10_000)
    claim, end = begin(start, timeout_seconds=10_000), start + timedelta(seconds=seconds)
    lease = {"lease_ulid": claim.lease.lease_ulid, "worker": claim.lease.worker}
    for second in sorted([*range(1, seconds, 60)] * 2):
        beat(claim, start + timedelta(seconds=second))
    before = list(UsageRecord.objects.order_by("id").values())
    for _ in range(2):
        job_end.complete(**lease, now=end)
    found = list(UsageRecord.objects.order_by("id").values())
    assert found[: len(before)] == before, "no record is changed"
    assert sum(record["minutes"] for record in found) == minutes == watermark()
    token = api_token(Organization.objects.get(slug=claim.job.org_slug))
    usage = Caller(token).get("/v1/usage?limit=200").json()["results"]
    assert [(record["minute"], record["minutes"]) for record in reversed(usage)] == ledger()
    agree()


def test_a_failure_bills_its_last_minutes(executing, start):
    job_end.fail(
        lease_ulid=executing.lease.lease_ulid,
        worker=executing.lease.worker,
        reason=FailureReason.COMMAND_FAILED,
        now=start + timedelta(seconds=61),
    )
    assert ledger() == [(2, 2)]
    agree()


def test_a_canceled_execution_bills_until_the_worker_stopped(executing, start):
    cancellation.cancel(
        job_ulid=executing.job.job_ulid, actor=ALICE, deadline_seconds=30, now=start + timedelta(seconds=50)
    )
    job_end.acknowledge_cancel(
        lease_ulid=executing.lease.lease_ulid, worker=executing.lease.worker, now=start + timedelta(seconds=61)
    )
    assert ledger() == [(2, 2)]
    agree()


def test_silence_bills_until_the_lease_expired_and_not_until_it_was_noticed(start):
    """A scheduler that was away for an hour must not bill the hour."""
    claim = begin(start, lease_ttl_seconds=100, automatic_retries=0)
    expiry.expire(job_ulid=claim.job.job_ulid, now=start + timedelta(hours=1))
    assert Job.objects.get().state == JobState.FAILED
    assert ledger() == [(2, 2)]
    agree()


def test_an_execution_past_its_limit_is_billed_at_its_end(start):
    claim = begin(start)
    expiry.time_out(job_ulid=claim.job.job_ulid, now=start + timedelta(seconds=961))
    assert ledger() == [(17, 17)]
    agree()


def test_a_revoked_lease_is_billed(executing, start):
    worker_state.revoke(
        job_ulid=executing.job.job_ulid, actor=OPERATOR, reason="new disks", now=start + timedelta(seconds=121)
    )
    assert ledger() == [(3, 3)]
    agree()


def test_a_job_that_never_executed_costs_nothing(start):
    submitted_steps(policy=METERED, now=start)
    claim = claimed(job_types=("steps",), now=start)
    heartbeat.release(lease_ulid=claim.lease.lease_ulid, worker=claim.lease.worker, now=start + timedelta(seconds=61))
    assert (ledger(), watermark()) == ([], None)
    agree()


# --- the ledger -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["UPDATE usage_records SET minutes = 9", "DELETE FROM usage_records"])
def test_the_ledger_is_append_only(executing, start, change):
    beat(executing, start + timedelta(seconds=1))
    with pytest.raises(DatabaseError, match="append-only"), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(change)
    assert ledger() == [(1, 1)]


def test_a_minute_of_a_job_is_recorded_once(executing, start):
    beat(executing, start + timedelta(seconds=1))
    record = UsageRecord.objects.get()
    record.pk = None
    with pytest.raises(DatabaseError, match="one_usage_record_per_minute"), transaction.atomic():
        record.save(force_insert=True)


def test_record_and_watermark_are_stored_together_or_not_at_all(executing, start):
    """The record cannot be stored: neither is there, and the next heartbeat bills the minute."""
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE usage_records ADD CONSTRAINT refused CHECK (minute <> 2)")
        try:
            with pytest.raises(DatabaseError, match="refused"):
                beat(executing, start + timedelta(seconds=61))
        finally:
            cursor.execute("ALTER TABLE usage_records DROP CONSTRAINT refused")
    assert (ledger(), watermark()) == ([], None)
    beat(executing, start + timedelta(seconds=62))
    assert (ledger(), watermark()) == ([(2, 2)], 2)
    agree()


def test_a_heartbeat_that_begins_a_minute_costs_two_statements_as_any_other(
    executing, start, django_assert_num_queries
):
    for seconds in (1, 30, 61):
        with django_assert_num_queries(2):
            beat(executing, start + timedelta(seconds=seconds))
    assert ledger() == [(1, 1), (2, 1)]


# --- the audit --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ("UPDATE runtime_jobs SET last_billed_minute = 9", "U1"),
        ("UPDATE runtime_jobs SET last_billed_minute = NULL", "U1"),
        ("UPDATE usage_records SET minute = 3, minutes = 3", "U2"),
        ("UPDATE usage_records SET started_at = started_at - interval '1 hour'", "U3"),
        ("UPDATE runtime_worker_leases SET completed_at = completed_at + interval '1 hour'", "U4"),
    ],
)
def test_the_audit_finds_minutes_that_disagree(executing, start, change, code):
    job_end.complete(
        lease_ulid=executing.lease.lease_ulid, worker=executing.lease.worker, now=start + timedelta(seconds=61)
    )
    agree()
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL orchestrator.maintenance = 'update'")
        cursor.execute(change)
    assert code in {finding.code for finding in run_audit()}
