"""Jobs that settle: lost jobs and their late results, results that are read, and who may still change either."""

from dataclasses import replace
from datetime import timedelta

import pytest
from django.db import IntegrityError, transaction

from leases.errors import StaleLease
from leases.models import Lease, LimitSlot
from leases.states import LeaseState
from orchestrator.core import unit_of_work
from orchestrator.maintenance.leases import sweep
from orchestrator.services import (
    batch_calls,
    batches,
    cancellation,
    claim_next,
    claiming,
    concurrency,
    expiry,
    heartbeat,
    job_end,
    late_results,
    worker_state,
)
from orchestrator.services import retries as service_retries
from orchestrator.services.batch_calls import WorkerMessage
from orchestrator.services.batches import BatchState, state_of
from orchestrator.services.claim_next import ClaimRequest
from orchestrator.services.heartbeat import HeartbeatUpdate
from orchestrator.services.job_end import ArtifactRef, CompleteMessage, ReadResult
from orchestrator.services.submission import submit
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import AlreadyFinal, Conflict, InvalidTransition, NotFinal
from runtime_jobs.models import Artifact, FailureExplanation, Job, JobEvent
from runtime_jobs.specs import JOB_TYPES, JobPolicy
from runtime_jobs.states import CancelReason, FailureClass, FailureReason, JobState
from tests.factories import (
    ALICE,
    LATE_POLICY,
    OPERATOR,
    TIMINGS,
    OrganizationFactory,
    PlanFactory,
    ProjectFactory,
    WorkerFactory,
    claimed,
    offer,
    steps_spec,
    submission,
    submitted,
    submitted_steps,
)
from tests.orchestrator.services.conftest import after
from tests.orchestrator.services.test_heartbeat import kinds, row, speak

pytestmark = pytest.mark.django_db

STEPS = ("steps",)


def late_job(project=None, *, now=None, **changes):
    return submitted_steps(project, policy=replace(LATE_POLICY, **changes), now=now)


def long_ago():
    return database_now() - timedelta(minutes=12)


@pytest.fixture
def executing(db):
    """A job with late results, in execution since its lease began."""
    late_job()
    claim = claimed(job_types=STEPS)
    heartbeat.report(**speak(claim, phase="executing", now=claim.lease.leased_at))
    return claim


@pytest.fixture
def lost(db):
    """Such a job whose worker fell silent ten minutes ago."""
    job = late_job(now=long_ago())
    claim = claimed(job_types=STEPS, now=job.created_at)
    heartbeat.report(**speak(claim, phase="executing", now=job.created_at))
    expiry.expire(job_ulid=job.job_ulid, now=after(job.created_at, 120))
    return claim


@pytest.fixture
def processing(executing):
    """The same job, after its result has arrived."""
    job_end.complete(**speak(executing, exit_code=0))
    return executing


# --- policies ---------------------------------------------------------------------------------------------------------


def test_the_types_of_today_have_no_late_results():
    for job_type in ("runtime", "steps"):
        policy = JOB_TYPES[job_type].policy(**TIMINGS)
        assert (policy.late_result_seconds, policy.needs_processing, policy.timeout_grace_seconds) == (0, False, 60)


@pytest.mark.parametrize(
    ("changes", "field"),
    [({"needs_processing": False}, "late_result_seconds"), ({"needs_ingest": True}, "needs_processing")],
)
def test_rules_that_contradict_one_another_are_refused(changes, field):
    with pytest.raises(ValueError, match=f"^{field}: "):
        JobPolicy(**vars(LATE_POLICY) | changes)


def test_a_retry_keeps_the_policy(lost):
    retry = service_retries.retry(job_ulid=lost.job.job_ulid, actor=OPERATOR, reason="x").job
    assert (retry.late_result_seconds, retry.needs_processing, retry.late_result_at) == (3600, True, None)


# --- the ways into `lost` ---------------------------------------------------------------------------------------------


def test_an_expired_lease_leaves_the_job_lost(executing):
    expired_at = after(executing.lease.leased_at, 120)
    assert sweep(now=expired_at) == 1
    job, lease = row(executing.lease), Lease.objects.get(pk=executing.lease.pk)
    assert (job.state, job.public_status, job.status) == (JobState.LOST, "running", "running")
    assert (job.failure_reason, job.failure_class) == (FailureReason.LEASE_EXPIRED, FailureClass.WORKER)
    assert (job.late_result_at, job.finished_at) == (after(expired_at, 3600), None)
    assert (lease.state, lease.completed_at) == (LeaseState.EXPIRED, expired_at)
    assert kinds(job)[-2:] == ["lease.expired", "job.lost"]
    payload = JobEvent.objects.of(job.job_ulid).last().payload_json
    assert payload == {"reason": "lease_expired", "late_result_seconds": 3600}


@pytest.mark.parametrize("phase", ["starting", "checking_out", "executing", "uploading"])
def test_a_job_is_lost_from_each_running_state(db, phase):
    late_job()
    claim = claimed(job_types=STEPS)
    heartbeat.report(**speak(claim, phase=phase, now=claim.lease.leased_at))
    expiry.expire(job_ulid=claim.job.job_ulid, now=after(claim.lease.leased_at, 121))
    assert row(claim.lease).state == JobState.LOST


def test_a_revoked_lease_leaves_the_job_lost(executing):
    worker_state.revoke(job_ulid=executing.job.job_ulid, actor=OPERATOR, reason="burning")
    assert (row(executing.lease).state, row(executing.lease).failure_reason) == (JobState.LOST, "worker_lost")


def test_a_failure_that_the_worker_reports_leaves_the_job_lost(executing):
    job_end.fail(**speak(executing, reason=FailureReason.WORKER_ERROR, exit_code=3, message="boom"))
    job, lease = row(executing.lease), Lease.objects.get(pk=executing.lease.pk)
    assert (job.state, job.failure_reason, job.failure_message, job.exit_code) == ("lost", "worker_error", "boom", 3)
    assert (lease.state, lease.ended_reason) == (LeaseState.COMPLETED, "failed")


@pytest.mark.parametrize(("requeues", "state"), [(0, JobState.LOST), (1, JobState.QUEUED)])
def test_a_lease_that_is_never_acknowledged_leaves_the_job_lost_without_a_requeue(db, requeues, state):
    late_job(max_requeues=requeues)
    claim = claimed(job_types=STEPS, acknowledge=True)
    sweep(now=after(claim.lease.leased_at, 31))
    assert row(claim.lease).state == state
    assert row(claim.lease).failure_reason == (FailureReason.NEVER_ACKNOWLEDGED if requeues == 0 else None)


def test_a_job_that_exceeds_its_time_limit_fails_at_once(executing):
    for beat in range(0, 360, 100):
        heartbeat.renew(**speak(executing, now=after(executing.lease.leased_at, beat)))
    sweep(now=after(executing.lease.leased_at, 361))
    assert (row(executing.lease).state, row(executing.lease).failure_reason) == (JobState.FAILED, "timed_out")


@pytest.mark.parametrize(("late", "state"), [(3600, JobState.LOST), (0, JobState.FAILED)])
def test_a_worker_that_is_lost_within_the_grace_is_lost_and_not_timed_out(db, late, state):
    """The lease of 120 s expires after the time limit of 90 s and before the grace ends."""
    submitted_steps(policy=replace(LATE_POLICY, late_result_seconds=late), timeout_seconds=90)
    claim = claimed(job_types=STEPS)
    heartbeat.report(**speak(claim, phase="executing", now=claim.lease.leased_at))
    expiry.expire(job_ulid=claim.job.job_ulid, now=after(claim.lease.leased_at, 120))
    assert (row(claim.lease).state, row(claim.lease).failure_reason) == (state, FailureReason.LEASE_EXPIRED)


def test_a_job_whose_cancel_was_requested_is_canceled_at_once(executing):
    cancellation.cancel(job_ulid=executing.job.job_ulid, actor=ALICE, deadline_seconds=3000)
    sweep(now=after(executing.lease.leased_at, 121))
    assert row(executing.lease).state == JobState.CANCELED


def test_a_lost_job_frees_its_slot(db):
    project = ProjectFactory(organization=OrganizationFactory(plan=PlanFactory(max_active=1, priority=100)))
    late_job(project), late_job(project)
    worker = WorkerFactory()
    first = claimed(worker, job_types=STEPS)
    assert claiming.claim(worker=worker, offer=offer(worker, job_types=STEPS)) is None
    worker_state.revoke(job_ulid=first.job.job_ulid, actor=OPERATOR, reason="x")
    assert row(first.lease).state == JobState.LOST
    assert not LimitSlot.objects.filter(job_id=first.job.pk).exists()
    assert claimed(worker, job_types=STEPS).job.pk != first.job.pk


# --- the end of the late window ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seconds", "state"), [(3599.9, JobState.LOST), (3600, JobState.FAILED)])
def test_a_lost_job_fails_at_the_end_of_its_window(lost, seconds, state):
    sweep(now=after(lost.lease.leased_at, 120 + seconds))
    assert row(lost.lease).state == state


def test_it_fails_for_the_reason_of_its_loss(executing):
    job_end.fail(**speak(executing, reason=FailureReason.OUT_OF_MEMORY, exit_code=137, message="killed"))
    job = late_results.give_up(job_ulid=executing.job.job_ulid, now=row(executing.lease).late_result_at)
    assert (job.state, job.failure_reason, job.failure_message, job.exit_code) == (
        *(JobState.FAILED, FailureReason.OUT_OF_MEMORY, "killed", 137),
    )
    last = JobEvent.objects.of(job.job_ulid).last()
    assert (last.event_type, last.actor_kind, last.worker_id) == (
        *("job.failed", "clock", executing.lease.worker.worker_id),
    )
    assert late_results.give_up(job_ulid=job.job_ulid, now=after(job.finished_at, 1)) is None


def test_the_failure_of_a_command_is_explained_when_it_is_final(executing):
    job_end.fail(
        **speak(
            executing, reason=FailureReason.COMMAND_FAILED, exit_code=1, artifacts=[ArtifactRef("log", "https://x/l")]
        )
    )
    assert not FailureExplanation.objects.exists()
    late_results.give_up(job_ulid=executing.job.job_ulid, now=row(executing.lease).late_result_at)
    assert FailureExplanation.objects.get().job_id == executing.job.job_ulid
    assert Artifact.objects.count() == 1


def test_an_automatic_retry_waits_for_the_end_of_the_window(db):
    late_job(automatic_retries=1)
    claim = claimed(job_types=STEPS)
    sweep(now=after(claim.lease.leased_at, 121))
    assert Job.objects.count() == 1
    sweep(now=after(claim.lease.leased_at, 5000))
    assert Job.objects.get(retry_of_job_ulid=claim.job.job_ulid).retry_kind == "automatic"


def test_dependents_wait_until_the_end_of_the_window(db):
    project = ProjectFactory()
    needed = late_job(project)
    dependent = submitted(project, depends_on=(needed,))
    claim = claimed(job_types=STEPS)
    sweep(now=after(claim.lease.leased_at, 121))
    assert Job.objects.get(pk=dependent.pk).state == JobState.BLOCKED
    sweep(now=after(claim.lease.leased_at, 5000))
    assert Job.objects.get(pk=dependent.pk).state == JobState.CANCELED


def test_a_failure_is_counted_when_it_is_final(lost):
    failures = JobEvent.objects.filter(event_type="job.failed")
    assert not failures.exists()
    late_results.give_up(job_ulid=lost.job.job_ulid, now=row(lost.lease).late_result_at)
    assert failures.count() == 1


# --- results ----------------------------------------------------------------------------------------------------------


def test_a_result_is_read_before_the_job_succeeds(processing):
    job, lease = row(processing.lease), Lease.objects.get(pk=processing.lease.pk)
    assert (job.state, job.public_status, job.finished_at) == (JobState.PROCESSING, "running", None)
    assert (lease.state, lease.ended_reason) == (LeaseState.COMPLETED, "completed")
    done = late_results.settle(job_ulid=job.job_ulid)
    assert (done.state, done.public_status, done.exit_code) == (JobState.SUCCEEDED, "succeeded", 0)
    assert kinds(done)[-2:] == ["job.processing", "job.completed"]


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (FailureReason.RESULT_UNREADABLE, FailureClass.JOB),
        (FailureReason.RESULT_MISSING, FailureClass.INFRASTRUCTURE),
    ],
)
def test_a_result_that_cannot_be_read_fails_the_job(processing, failure, expected):
    job = late_results.settle(job_ulid=processing.job.job_ulid, read_result=ReadResult(failure, "line 3"))
    assert (job.state, job.failure_reason, job.failure_class, job.failure_message) == (
        *(JobState.FAILED, failure, expected, "line 3"),
    )
    retry = service_retries.retry(job_ulid=job.job_ulid, actor=OPERATOR, reason="x").job
    assert retry.state == JobState.QUEUED


def test_only_failures_of_results_settle_a_job(processing):
    with pytest.raises(ValueError, match="result_missing"):
        late_results.settle(job_ulid=processing.job.job_ulid, read_result=ReadResult(FailureReason.WORKER_ERROR))


def artifact(job, number, **changes):
    return Artifact(**{"job": job, "type": "log", "uri": f"https://x/{number}", "created_at": job.created_at} | changes)


def test_rows_are_stored_with_the_end_of_the_job_and_once(processing):
    job = row(processing.lease)
    first = ReadResult(rows=lambda job: [artifact(job, 1), artifact(job, 2)])
    assert late_results.settle(job_ulid=job.job_ulid, read_result=first).state == JobState.SUCCEEDED
    second = ReadResult(rows=lambda job: [artifact(job, 3)])
    assert late_results.settle(job_ulid=job.job_ulid, read_result=second) is None
    assert set(Artifact.objects.values_list("uri", flat=True)) == {"https://x/1", "https://x/2"}


def test_rows_that_cannot_be_stored_leave_the_job_as_it_is(processing):
    job = row(processing.lease)
    wrong = ReadResult(rows=lambda job: [artifact(job, 1), artifact(job, 1, uri=None)])
    with pytest.raises(IntegrityError):
        late_results.settle(job_ulid=job.job_ulid, read_result=wrong)
    assert row(processing.lease).state == JobState.PROCESSING
    assert not Artifact.objects.exists()


@pytest.mark.parametrize("state", ["executing", "lost"])
def test_a_job_without_a_result_is_not_settled(request, state):
    claim = request.getfixturevalue(state)
    before = row(claim.lease)
    assert late_results.settle(job_ulid=claim.job.job_ulid) is None
    assert row(claim.lease).event_seq == before.event_seq


@pytest.mark.parametrize("phase", ["starting", "checking_out"])
def test_a_result_before_the_execution_is_refused(db, phase):
    late_job()
    claim = claimed(job_types=STEPS)
    heartbeat.report(**speak(claim, phase=phase))
    for send in (
        lambda: job_end.complete(**speak(claim)),
        lambda: late_results.complete_late(job_ulid=claim.job.job_ulid, worker=claim.lease.worker),
    ):
        with pytest.raises(InvalidTransition) as refused:
            send()
        assert refused.value.code == "illegal_move"
    assert row(claim.lease).state == phase


def test_a_result_does_not_acknowledge_a_lease(db):
    """The refusal leaves no change, so the lease still ends after its window."""
    late_job()
    claim = claimed(job_types=STEPS, acknowledge=True)
    with pytest.raises(InvalidTransition):
        job_end.complete(**speak(claim))
    assert Lease.objects.get(pk=claim.lease.pk).state == LeaseState.GRANTED


def test_a_cancel_that_was_requested_beats_the_result(executing):
    cancellation.cancel(job_ulid=executing.job.job_ulid, actor=ALICE, deadline_seconds=30)
    assert job_end.complete(**speak(executing)).state == JobState.CANCELED


def test_a_result_that_beats_a_cancel_is_read(db):
    late_job(complete_beats_cancel=True)
    claim = claimed(job_types=STEPS)
    heartbeat.report(**speak(claim, phase="executing"))
    cancellation.cancel(job_ulid=claim.job.job_ulid, actor=ALICE, deadline_seconds=30)
    assert job_end.complete(**speak(claim)).state == JobState.PROCESSING
    with pytest.raises(AlreadyFinal):
        cancellation.cancel(job_ulid=claim.job.job_ulid, actor=ALICE, deadline_seconds=30)
    assert (
        late_results.settle(job_ulid=claim.job.job_ulid, read_result=ReadResult(FailureReason.RESULT_UNREADABLE)).state
        == JobState.FAILED
    )


# --- late results -----------------------------------------------------------------------------------------------------


def complete_as_one_of_many(claim, now):
    name = claim.lease.lease_ulid
    messages = batch_calls.messages_of(claim.lease.worker, {name: CompleteMessage()})
    ended = batch_calls.complete_many(messages, now=now)[name]
    return ended if isinstance(ended, StaleLease) else ended.job


LATE_RESULTS = {
    "complete": lambda claim, now: job_end.complete(**speak(claim, now=now)),
    "complete_late": lambda claim, now: late_results.complete_late(
        job_ulid=claim.job.job_ulid, worker=claim.lease.worker, now=now
    ),
    "complete_many": complete_as_one_of_many,
}


@pytest.mark.parametrize("name", LATE_RESULTS)
@pytest.mark.parametrize(("seconds", "counts"), [(0, True), (3599.9, True), (3600, False)])
def test_a_late_result_counts_within_the_window(lost, name, seconds, counts):
    now = after(lost.lease.leased_at, 120 + seconds)
    before = row(lost.lease)
    try:
        answer = LATE_RESULTS[name](lost, now)
    except StaleLease as refused:
        answer = refused
    job = row(lost.lease)
    if counts:
        assert (job.state, job.failure_reason, job.failure_message) == (JobState.PROCESSING, None, None)
        assert LATE_RESULTS[name](lost, after(now, 9999)).state == JobState.PROCESSING, "the same message again"
        assert Lease.objects.get(pk=lost.lease.pk).state == LeaseState.EXPIRED
        assert late_results.settle(job_ulid=job.job_ulid, now=now).state == JobState.SUCCEEDED
    elif name == "complete_late":  # as the scheduler process would
        assert (answer.state, job.state, job.failure_reason) == ("failed", "failed", FailureReason.LEASE_EXPIRED)
        assert JobEvent.objects.of(job.job_ulid).last().actor_kind == "clock"
    else:
        assert isinstance(answer, StaleLease)
        assert (job.state, job.event_seq) == (JobState.LOST, before.event_seq)


def test_a_late_result_outweighs_the_failure_that_its_worker_reported(executing):
    job_end.fail(**speak(executing, reason=FailureReason.COMMAND_FAILED, exit_code=1))
    job_end.complete(**speak(executing, exit_code=0))
    job = late_results.settle(job_ulid=executing.job.job_ulid)
    assert (job.state, job.exit_code, job.failure_reason) == (JobState.SUCCEEDED, 0, None)
    with pytest.raises(Conflict):
        job_end.fail(**speak(executing, reason=FailureReason.COMMAND_FAILED, exit_code=1))


@pytest.mark.parametrize("name", LATE_RESULTS)
def test_only_the_worker_of_the_newest_lease_has_a_late_result(db, name):
    late_job(max_requeues=1)
    first = claimed(job_types=STEPS, acknowledge=True)
    expiry.expire(job_ulid=first.job.job_ulid, now=after(first.lease.leased_at, 31))
    second = claimed(job_types=STEPS, now=after(first.lease.leased_at, 40))
    expiry.expire(job_ulid=first.job.job_ulid, now=after(first.lease.leased_at, 200))
    now = after(first.lease.leased_at, 300)
    try:
        answer = LATE_RESULTS[name](first, now)
    except StaleLease as refused:
        answer = refused
    assert isinstance(answer, StaleLease)
    assert row(first.lease).state == JobState.LOST
    assert LATE_RESULTS[name](second, now).state == JobState.PROCESSING


def test_a_job_that_nobody_leased_has_no_late_result(db):
    job = late_job()
    for job_ulid in (job.job_ulid, "rtj_none"):
        with pytest.raises(StaleLease):
            late_results.complete_late(job_ulid=job_ulid, worker=WorkerFactory())


def test_a_late_result_claims_no_next_job(lost):
    late_job()
    worker = lost.lease.worker
    finished = claim_next.complete_and_claim(
        lease_ulid=lost.lease.lease_ulid,
        worker=worker,
        message=CompleteMessage(),
        claim=ClaimRequest(offer(worker, job_types=STEPS)),
        now=after(lost.lease.leased_at, 130),
    )
    assert (finished.job.state, finished.next_claim) == (JobState.PROCESSING, None)


@pytest.mark.parametrize(
    "say", [heartbeat.renew, heartbeat.release, job_end.acknowledge_cancel, cancellation.stop_by_worker]
)
def test_a_lost_job_takes_no_other_message(lost, say):
    with pytest.raises(StaleLease):
        say(**speak(lost))
    assert row(lost.lease).state == JobState.LOST


# --- clients and operators --------------------------------------------------------------------------------------------


def test_a_cancel_ends_a_lost_job_at_once(lost):
    outcome = cancellation.cancel(job_ulid=lost.job.job_ulid, actor=ALICE, deadline_seconds=30)
    job = row(lost.lease)
    assert (outcome.accepted, job.state, job.failure_reason) == (False, JobState.CANCELED, None)
    assert JobEvent.objects.of(job.job_ulid).last().payload_json["instead_of"] == "lease_expired"
    with pytest.raises(StaleLease):
        late_results.complete_late(job_ulid=job.job_ulid, worker=lost.lease.worker)


def test_a_result_that_has_arrived_is_not_canceled(processing):
    with pytest.raises(AlreadyFinal) as refused:
        cancellation.cancel(job_ulid=processing.job.job_ulid, actor=ALICE, deadline_seconds=30)
    assert (refused.value.code, refused.value.facts["job_status"]) == ("already_final", "running")
    assert row(processing.lease).cancel_requested_at is None


@pytest.mark.parametrize("state", ["lost", "processing"])
def test_a_batch_with_a_job_that_settles_is_canceled(db, state):
    project = ProjectFactory()
    origin = batches.BatchSubmission(
        org_slug=project.organization.slug,
        project_slug=project.slug,
        source=None,
        trigger_kind="manual",
        trigger_actor="alice",
        correlation_id="test",
        source_address=None,
        details={},
    )
    jobs = [batches.BatchJob(steps_spec())]
    batch = batches.submit_batch(
        origin, jobs, policy_for=lambda _: LATE_POLICY, default_pool="shared-linux", actor=ALICE
    ).batch
    claim = claimed(job_types=STEPS)
    heartbeat.report(**speak(claim, phase="executing"))
    if state == "lost":
        worker_state.revoke(job_ulid=claim.job.job_ulid, actor=OPERATOR, reason="x")
    else:
        job_end.complete(**speak(claim))
    assert state_of(batch) == BatchState.RUNNING
    canceled = batches.cancel_batch(batch_ulid=batch.batch_ulid, actor=ALICE, deadline_seconds=30).batch
    if state == "lost":
        assert state_of(canceled) == BatchState.CANCELED
    else:
        assert state_of(canceled) == BatchState.CANCEL_REQUESTED
        late_results.settle(job_ulid=claim.job.job_ulid)
        assert state_of(canceled) == BatchState.SUCCEEDED


@pytest.mark.parametrize(("state", "then"), [("lost", JobState.CANCELED), ("processing", JobState.PROCESSING)])
def test_a_newer_job_of_its_group_replaces_a_lost_job_but_no_result(db, state, then):
    project = ProjectFactory()
    group = concurrency.ConcurrencyGroup("deploy", concurrency.OnConflict.CANCEL_OLDER)
    given = {"policy": LATE_POLICY, "default_pool": "shared-linux", "actor": ALICE}
    older = submit(submission(project, steps_spec(), group=group), **given).job
    claim = claimed(job_types=STEPS)
    heartbeat.report(**speak(claim, phase="executing"))
    if state == "lost":
        worker_state.revoke(job_ulid=older.job_ulid, actor=OPERATOR, reason="x")
    else:
        job_end.complete(**speak(claim))
    newer = submit(submission(project, steps_spec(), group=group), **given).job
    assert (row(claim.lease).state, newer.state) == (then, JobState.QUEUED)
    assert (row(claim.lease).cancel_requested_at is None) == (state == "processing")


def test_a_retry_settles_a_lost_job_first(lost):
    retry = service_retries.retry(job_ulid=lost.job.job_ulid, actor=OPERATOR, reason="now").job
    job = row(lost.lease)
    assert (job.state, job.failure_reason) == (JobState.FAILED, FailureReason.LEASE_EXPIRED)
    assert (retry.retry_of_job_ulid, retry.state) == (job.job_ulid, JobState.QUEUED)
    assert JobEvent.objects.of(job.job_ulid).last().actor_kind == "operator"
    with pytest.raises(StaleLease):
        late_results.complete_late(job_ulid=job.job_ulid, worker=lost.lease.worker)


def test_a_retry_of_a_lost_job_leaves_it_its_automatic_retry_no_second_attempt(db):
    job = late_job(automatic_retries=1, now=long_ago())
    claim = claimed(job_types=STEPS, now=job.created_at)
    sweep(now=after(claim.lease.leased_at, 121))
    service_retries.retry(job_ulid=claim.job.job_ulid, actor=OPERATOR, reason="now")
    assert Job.objects.filter(retry_of_job_ulid=claim.job.job_ulid).count() == 1


def test_a_result_that_is_read_is_not_retried(processing):
    with pytest.raises(NotFinal):
        service_retries.retry(job_ulid=processing.job.job_ulid, actor=OPERATOR, reason="now")


# --- heartbeats past the limit ----------------------------------------------------------------------------------------


def beat_until(claim, seconds):
    for beat in range(0, seconds, 100):
        heartbeat.renew(**speak(claim, now=after(claim.lease.leased_at, beat)))


@pytest.mark.parametrize("is_canceled", [False, True])
def test_a_heartbeat_past_the_limit_ends_the_job(executing, is_canceled):
    start = executing.lease.leased_at
    beat_until(executing, 360)
    heartbeat.renew(**speak(executing, now=after(start, 360)))
    if is_canceled:
        cancellation.cancel(job_ulid=executing.job.job_ulid, actor=ALICE, deadline_seconds=30, now=after(start, 360))
    for _ in range(2):
        with pytest.raises(StaleLease) as refused:
            heartbeat.renew(**speak(executing, now=after(start, 360.1)))
        status = "canceled" if is_canceled else "failed"
        assert refused.value.facts == {"reason": "lease_revoked", "job_status": status}
    job, lease = row(executing.lease), Lease.objects.get(pk=executing.lease.pk)
    assert job.public_status == status
    assert job.failure_reason == (None if is_canceled else FailureReason.TIMED_OUT)
    assert (lease.state, lease.ended_reason) == (LeaseState.REVOKED, "timed_out")


def test_the_grace_is_a_policy_of_the_job(db):
    late_job(timeout_grace_seconds=5)
    claim = claimed(job_types=STEPS)
    heartbeat.report(**speak(claim, phase="executing", now=claim.lease.leased_at))
    beat_until(claim, 301)
    heartbeat.renew(**speak(claim, now=after(claim.lease.leased_at, 305)))
    with pytest.raises(StaleLease):
        heartbeat.renew(**speak(claim, now=after(claim.lease.leased_at, 305.1)))


def test_among_many_heartbeats_one_past_the_limit_ends_its_job(db):
    project, worker = ProjectFactory(), WorkerFactory()
    late_job(project), late_job(project)
    first, second = (claimed(worker, job_types=STEPS) for _ in range(2))
    heartbeat.report(**speak(first, phase="executing", now=first.lease.leased_at))
    now = first.lease.leased_at
    names = [first.lease.lease_ulid, second.lease.lease_ulid]
    for beat in range(0, 400, 100):
        answers = batch_calls.renew_many(
            batch_calls.messages_of(worker, dict.fromkeys(names, HeartbeatUpdate())), now=after(now, beat)
        )
    answers = batch_calls.renew_many(
        batch_calls.messages_of(worker, dict.fromkeys(names, HeartbeatUpdate())), now=after(now, 361)
    )
    assert isinstance(answers[names[0]], StaleLease)
    assert answers[names[1]].lease.expires_at == after(now, 361 + 120)
    assert row(first.lease).failure_reason == FailureReason.TIMED_OUT


def test_heartbeats_of_several_workers_are_one_read_and_one_write(db, django_assert_num_queries):
    project = ProjectFactory()
    claims = []
    for _ in range(3):
        late_job(project)
        claims.append(claimed(WorkerFactory(), job_types=STEPS))
    now = after(claims[-1].lease.leased_at, 5)
    beats = {claim.lease.lease_ulid: WorkerMessage(claim.lease.worker, HeartbeatUpdate()) for claim in claims}
    with django_assert_num_queries(4):  # the test's transaction adds a savepoint to the write
        answers = batch_calls.renew_many(beats, now=now)
    assert {answer.lease.expires_at for answer in answers.values()} == {after(now, 120)}
    assert list(answers) == list(beats)


def test_heartbeats_of_several_workers_count_for_their_own_leases_only(db):
    project = ProjectFactory()
    claims = []
    for _ in range(3):
        late_job(project)
        claims.append(claimed(WorkerFactory(), job_types=STEPS))
    own, lent, borrowed = claims
    now = after(own.lease.leased_at, 60)
    beats = {
        own.lease.lease_ulid: WorkerMessage(own.lease.worker, HeartbeatUpdate(reached="executing")),
        lent.lease.lease_ulid: WorkerMessage(borrowed.lease.worker, HeartbeatUpdate()),
        borrowed.lease.lease_ulid: WorkerMessage(lent.lease.worker, HeartbeatUpdate()),
        "rtl_none": WorkerMessage(lent.lease.worker, HeartbeatUpdate()),
    }
    answers = batch_calls.renew_many(beats, now=now)
    refused = {name for name, answer in answers.items() if isinstance(answer, StaleLease)}
    assert refused == set(beats) - {own.lease.lease_ulid}
    assert row(own.lease).state == JobState.EXECUTING
    for claim in (lent, borrowed):
        assert Lease.objects.get(pk=claim.lease.pk).expires_at == claim.lease.expires_at


def test_a_heartbeat_that_needs_a_transaction_repeats_no_other(db, monkeypatch):
    """One job begins a minute to bill, one is past its limit, one lease has ended, and two are only renewed."""
    project = ProjectFactory()
    began = long_ago()
    claims = []
    for changes in ({}, {"is_metered": True, "timeout_grace_seconds": 1000}, {}, {}, {}):
        late_job(project, now=began, lease_ttl_seconds=10_000, **changes)
        claims.append(claimed(WorkerFactory(), job_types=STEPS, now=began))
    plain, metered, overdue, ended, phase = claims
    heartbeat.report(**speak(metered, phase="executing", now=began))
    heartbeat.report(**speak(overdue, phase="executing", now=began))
    worker_state.revoke(job_ulid=ended.job.job_ulid, actor=OPERATOR, reason="x", now=after(began, 1))

    repeated: list[list[str]] = []
    original = unit_of_work._run_in_transaction

    def recorded(retries, function, /, decider, messages, *args, **kwargs):
        repeated.append(list(messages))
        return original(retries, function, decider, messages, *args, **kwargs)

    monkeypatch.setattr(unit_of_work, "_run_in_transaction", recorded)
    beats = {claim.lease.lease_ulid: WorkerMessage(claim.lease.worker, HeartbeatUpdate()) for claim in claims}
    beats[phase.lease.lease_ulid] = WorkerMessage(phase.lease.worker, HeartbeatUpdate(reached="executing"))
    now = after(began, 400)
    answers = batch_calls.renew_many(beats, now=now)
    assert list(answers) == list(beats)
    assert repeated == [[ended.lease.lease_ulid]]
    refused = {name for name, answer in answers.items() if isinstance(answer, StaleLease)}
    assert refused == {overdue.lease.lease_ulid, ended.lease.lease_ulid}
    assert (row(metered.lease).last_billed_minute, row(phase.lease).state) == (7, JobState.EXECUTING)
    assert row(overdue.lease).failure_reason == FailureReason.TIMED_OUT
    for claim in (plain, metered, phase):
        assert Lease.objects.get(pk=claim.lease.pk).expires_at == after(now, 10_000)


def test_a_refused_heartbeat_of_one_worker_leaves_no_change_beside_others(db):
    project = ProjectFactory()
    late_job(project), late_job(project)
    first = claimed(WorkerFactory(), job_types=STEPS, acknowledge=True)
    second = claimed(WorkerFactory(), job_types=STEPS, acknowledge=True)
    beats = {
        first.lease.lease_ulid: WorkerMessage(first.lease.worker, HeartbeatUpdate(phase="nowhere")),
        second.lease.lease_ulid: WorkerMessage(second.lease.worker, HeartbeatUpdate()),
    }
    refusal, renewed = batch_calls.renew_many(beats).values()
    assert isinstance(refusal, InvalidTransition)
    assert Lease.objects.get(pk=first.lease.pk).state == LeaseState.GRANTED
    assert (renewed.lease.state, row(second.lease).state) == (LeaseState.ACTIVE, JobState.STARTING)


# --- a worker that stops by itself ------------------------------------------------------------------------------------


def test_a_worker_that_stops_by_itself_cancels_its_job(executing):
    job = cancellation.stop_by_worker(**speak(executing, message="interrupted"))
    lease = Lease.objects.get(pk=executing.lease.pk)
    assert (job.state, job.cancel_reason, job.cancel_message) == ("canceled", CancelReason.REQUESTED, "interrupted")
    assert job.cancel_actor == f"worker:{executing.lease.worker.worker_id}"
    assert (lease.state, lease.ended_reason) == (LeaseState.CANCELED, "canceled")
    assert kinds(job)[-2:] == ["job.cancel_requested", "job.canceled"]
    seq = job.event_seq
    assert cancellation.stop_by_worker(**speak(executing)).event_seq == seq
    assert job_end.acknowledge_cancel(**speak(executing)).event_seq == seq


def test_a_worker_that_stops_on_request_keeps_the_request(executing):
    cancellation.cancel(job_ulid=executing.job.job_ulid, actor=ALICE, deadline_seconds=30, message="mistake")
    job = cancellation.stop_by_worker(**speak(executing))
    assert (job.state, job.cancel_actor, job.cancel_message) == (JobState.CANCELED, str(ALICE), "mistake")
    assert kinds(job).count("job.cancel_requested") == 1


def test_a_worker_that_never_acknowledged_may_stop(db):
    late_job()
    claim = claimed(job_types=STEPS, acknowledge=True)
    assert cancellation.stop_by_worker(**speak(claim)).state == JobState.CANCELED


@pytest.mark.parametrize("state", ["lost", "processing"])
def test_a_worker_whose_lease_has_ended_stops_nothing(request, state):
    claim = request.getfixturevalue(state)
    with pytest.raises((StaleLease, Conflict)):
        cancellation.stop_by_worker(**speak(claim))
    assert row(claim.lease).state == state


# --- what others see --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["lost", "processing"])
def test_lists_of_running_jobs_contain_jobs_that_settle(request, state):
    claim = request.getfixturevalue(state)
    assert [job.pk for job in Job.objects.with_status("running")] == [claim.job.pk]
    assert [job.pk for job in Job.objects.all().through_partial_indexes()] == [claim.job.pk]


def test_the_database_refuses_a_lost_job_without_a_window(executing):
    with pytest.raises(IntegrityError, match="job_lost_has_window"), transaction.atomic():
        Job.objects.filter(pk=executing.job.pk).update(
            state="lost", failure_reason="lease_expired", failure_class="worker"
        )


def test_the_scheduler_waits_for_no_lock_of_a_lost_job_that_is_not_due(lost):
    assert sweep(now=after(lost.lease.leased_at, 120) + timedelta(minutes=59)) == 0
