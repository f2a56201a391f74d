"""Submit, cancel, retry: what is refused, what a repeat does."""

from datetime import timedelta

import pytest

from leases.errors import StaleLease
from orchestrator.core.cause import Cause
from orchestrator.core.idempotency import IdempotentRequest
from orchestrator.services import batch_calls, cancellation, claiming, job_end, worker_state
from orchestrator.services import retries as service_retries
from orchestrator.services import submission as service_submission
from orchestrator.services.job_end import FailMessage
from orchestrator.services.retries import reupload
from orchestrator.services.submission import TRACER, Submission
from runtime_jobs.errors import (
    AlreadyFinal,
    AlreadyRetried,
    FeatureNotEnabled,
    IdempotencyConflict,
    NotFinal,
    NotFound,
    ProjectNotEnabled,
    RepositoryNotAllowed,
    TimeoutAbovePlan,
)
from runtime_jobs.models import Job, JobEvent, Project, UnsentRun
from runtime_jobs.models.tenants import JobTrace
from runtime_jobs.states import FailureReason, JobState
from tests.factories import (
    ALICE,
    OPERATOR,
    POLICY,
    OrganizationFactory,
    PlanFactory,
    PoolFactory,
    ProjectFactory,
    WorkerFactory,
    claimed,
    offer,
    spec,
    submitted,
    submitted_steps,
)
from tests.orchestrator.services.test_heartbeat import kinds, speak
from workers.engines.contract import TraceLevel
from workers.models import Pool

pytestmark = pytest.mark.django_db


def submit(project, idempotency=None, **changes):
    submission = Submission(
        org_slug=project.organization.slug,
        project_slug=project.slug,
        spec=spec(**changes),
        trigger_kind="manual",
        trigger_actor=None,
        correlation_id="c",
        source_address=None,
    )
    return service_submission.submit(
        submission, policy=POLICY, default_pool="shared-linux", actor=ALICE, idempotency=idempotency
    )


def cancel(job):
    return cancellation.cancel(job_ulid=job.job_ulid, actor=ALICE, deadline_seconds=30)


def test_a_job_takes_priority_pool_and_isolation_from_its_tenant():
    PoolFactory(slug="shared-linux", least_isolation="restricted")
    job = submit(ProjectFactory()).job
    assert (job.priority, job.pool, job.least_isolation) == (200, "shared-linux", "restricted")
    assert submit(ProjectFactory(least_isolation="none")).job.least_isolation == "none"


def test_the_trace_is_that_of_the_job_its_project_its_pool_or_its_type():
    assert JobTrace.values == [str(level) for level in TraceLevel], "as the worker names them"
    pool, project = PoolFactory(slug="shared-linux"), ProjectFactory()
    cases = (
        # job, project, pool: of a runtime job, of steps
        ((None, "", ""), ("full", "none")),
        ((None, "", "network"), ("network", "network")),
        ((None, "none", "network"), ("none", "none")),
        ((None, "full", "none"), ("full", "full")),
        (("none", "full", "full"), ("none", "none")),
        (("full", "none", ""), ("full", "full")),
    )
    for (wanted, of_project, of_pool), expected in cases:
        Pool.objects.filter(pk=pool.pk).update(trace=of_pool)
        Project.objects.filter(pk=project.pk).update(trace=of_project)
        jobs = submitted(project, trace=wanted), submitted_steps(project, trace=wanted)
        assert tuple(job.trace for job in jobs) == expected, (wanted, of_project, of_pool)
        # A worker that cannot trace gets no steps whose trace somebody asked for. Document 000's offers linux only.
        assert [TRACER in job.requirements for job in jobs] == [False, jobs[1].trace != "none"]


def test_a_further_attempt_keeps_the_trace():
    project, worker = ProjectFactory(trace="network"), WorkerFactory(capabilities=["linux", "ptrace", "namespaces"])
    submitted_steps(project)
    Project.objects.update(trace="")
    lease = claimed(worker, job_types=("steps",)).lease.lease_ulid
    failed = job_end.fail(lease_ulid=lease, worker=worker, reason=FailureReason.COMMAND_FAILED)
    again = service_retries.retry(job_ulid=failed.job_ulid, reason="r", actor=ALICE).job
    again.refresh_from_db()
    assert (again.trace, again.requirements) == ("network", ["linux", TRACER])


@pytest.mark.parametrize(
    ("project", "changes", "error"),
    [
        (
            lambda: ProjectFactory(organization=OrganizationFactory(hosted_runtime_analysis=False)),
            {},
            FeatureNotEnabled,
        ),
        (lambda: ProjectFactory(enabled=False), {}, ProjectNotEnabled),
        (lambda: ProjectFactory(repositories=["cc-consulting-nv/other"]), {}, RepositoryNotAllowed),
        (lambda: ProjectFactory(repositories=[]), {}, RepositoryNotAllowed),
        (ProjectFactory, {"timeout_seconds": 901}, TimeoutAbovePlan),
    ],
)
def test_a_job_that_its_tenant_may_not_run_is_refused_and_leaves_nothing(project, changes, error):
    with pytest.raises(error):
        submit(project(), **changes)
    assert (Job.objects.count(), JobEvent.objects.count()) == (0, 0)


def test_an_owner_may_be_allowed_as_a_whole():
    assert submit(ProjectFactory(repositories=["CC-Consulting-NV/*"])).job.state == JobState.QUEUED


def test_the_same_key_gets_the_first_job_and_another_request_a_conflict():
    project = ProjectFactory()
    idempotency = IdempotentRequest("alice", "submit", "k1", "f1")
    first = submit(project, idempotency)
    again = submit(project, idempotency)
    assert (again.job.job_ulid, again.replayed) == (first.job.job_ulid, True)
    with pytest.raises(IdempotencyConflict):
        submit(project, IdempotentRequest("alice", "submit", "k1", "f2"))
    assert submit(project, IdempotentRequest("bob", "submit", "k1", "f2")).replayed is False
    assert Job.objects.count() == 2


def test_a_refused_submit_does_not_use_up_its_key():
    project = ProjectFactory(enabled=False)
    idempotency = IdempotentRequest("alice", "submit", "k1", "f1")
    with pytest.raises(ProjectNotEnabled):
        submit(project, idempotency)
    project.enabled = True
    project.save()
    assert submit(project, idempotency).replayed is False


def test_a_waiting_job_is_canceled_at_once_and_again_is_the_same():
    job = submitted()
    assert cancel(job).accepted is False
    before = kinds(job)
    assert cancel(job).job.state == JobState.CANCELED
    assert kinds(job) == before == ["job.queued", "job.canceled"]


def test_a_running_job_is_asked_and_a_repeat_keeps_the_first_deadline(leased):
    first = cancel(leased.job)
    assert first.accepted
    second = cancel(leased.job)
    assert second.accepted
    assert second.job.cancel_deadline_at == first.job.cancel_deadline_at
    assert kinds(first.job).count("job.cancel_requested") == 1


def test_a_result_cannot_be_canceled(leased):
    job_end.complete(**speak(leased, ingest_run_id="run_1"))
    with pytest.raises(AlreadyFinal) as refused:
        cancel(leased.job)
    assert refused.value.facts == {"job_status": "uploaded"}


def test_only_what_failed_or_was_canceled_can_be_retried(leased):
    with pytest.raises(NotFinal):
        service_retries.retry(job_ulid=leased.job.job_ulid, actor=OPERATOR, reason="why not")
    job_end.complete(**speak(leased, ingest_run_id="run_1"))
    with pytest.raises(AlreadyFinal):
        service_retries.retry(job_ulid=leased.job.job_ulid, actor=OPERATOR, reason="why not")


def test_a_retry_is_a_new_row_that_points_back_and_there_is_one_of_each():
    job = submitted()
    cancel(job)
    new = service_retries.retry(job_ulid=job.job_ulid, actor=OPERATOR, reason="it was a mistake").job
    assert (new.retry_of_job_ulid, new.attempt, new.state) == (job.job_ulid, 2, JobState.QUEUED)
    assert new.payload_digest == job.payload_digest
    with pytest.raises(AlreadyRetried) as refused:
        service_retries.retry(job_ulid=job.job_ulid, actor=OPERATOR, reason="again")
    assert refused.value.facts == {"newer_job_id": new.job_ulid}
    result = JobEvent.objects.get(job=new, event_type="job.retried")
    assert result.payload_json == {"retry_of": job.job_ulid, "retry": "manual", "reason": "it was a mistake"}


def test_what_does_not_exist_is_not_found():
    with pytest.raises(NotFound):
        cancellation.cancel(job_ulid="rtj_none", actor=ALICE, deadline_seconds=30)


def test_jobs_are_claimed_by_priority_then_age_then_number():
    project = ProjectFactory()
    poor = OrganizationFactory(plan=PlanFactory(name="low", priority=50))
    low = submitted(ProjectFactory(organization=poor))
    second, third = submitted(project), submitted(project)
    same = Job.objects.get(pk=second.pk).created_at
    Job.objects.filter(pk=third.pk).update(created_at=same)
    worker = WorkerFactory()
    order = [claimed(worker).job.pk for _ in range(3)]
    assert order == [second.pk, third.pk, low.pk]


@pytest.mark.parametrize(
    "weaker",
    [
        {"isolation": "restricted"},
        {"pool": "other"},
        {"job_types": ("steps",)},
        {"offers": frozenset({"ptrace"})},
    ],
)
def test_a_worker_gets_only_what_it_can_run(weaker):
    submitted()
    worker = WorkerFactory()
    assert claiming.claim(worker=worker, offer=offer(worker, **weaker)) is None


@pytest.mark.parametrize("state", ["draining", "maintenance", "revoked"])
def test_a_worker_that_is_not_active_gets_nothing_new(state):
    submitted()
    worker = WorkerFactory()
    worker_state.set_worker_state(worker_id=worker.worker_id, state=state, cause=Cause(OPERATOR))
    assert claiming.claim(worker=worker, offer=offer(worker)) is None


def test_a_worker_holds_no_more_than_its_capacity():
    project = ProjectFactory()
    worker = WorkerFactory(capacity=2)
    for _ in range(3):
        submitted(project)
    assert claimed(worker)
    assert claimed(worker)
    assert claiming.claim(worker=worker, offer=offer(worker)) is None


def test_the_same_claim_again_gets_the_same_lease_while_it_is_open():
    project = ProjectFactory()
    submitted(project)
    submitted(project)
    worker = WorkerFactory()
    idempotency = IdempotentRequest(worker.worker_id, "claim", "k1", "f1")
    first = claimed(worker, idempotency=idempotency)
    again = claimed(worker, idempotency=idempotency)
    assert (again.lease.pk, again.replayed) == (first.lease.pk, True)
    job_end.fail(**speak(first, reason="checkout_failed"))
    assert claimed(worker, idempotency=idempotency).lease.pk != first.lease.pk


def test_the_newest_process_of_a_worker_counts():

    submitted()
    worker = WorkerFactory()
    older, newer = "01ARZ3NDEKTSV4RRFFQ69G5FAV", "01BX5ZZKBKACTAV9WEVGEMMVRZ"
    assert claiming.claim(worker=worker, offer=offer(worker), session=newer)
    with pytest.raises(StaleLease):
        claiming.claim(worker=worker, offer=offer(worker), session=older)


def test_a_restarted_worker_claims_as_soon_as_the_leases_of_its_last_process_end():
    project = ProjectFactory()
    submitted(project)
    submitted(project)
    worker = WorkerFactory(capacity=1)
    old, new = "01ARZ3NDEKTSV4RRFFQ69G5FAV", "01BX5ZZKBKACTAV9WEVGEMMVRZ"
    first = claimed(worker, session=old).lease
    before = first.expires_at - timedelta(seconds=1)
    assert claiming.claim(worker=worker, offer=offer(worker), session=new, now=before) is None
    assert claiming.claim(worker=worker, offer=offer(worker), session=new, now=first.expires_at)


def test_a_run_that_could_not_be_uploaded_is_sent_again_without_executing(leased):
    job_end.fail(**speak(leased, reason="upload_failed", unsent_run={"schema_version": "run.v1"}))
    new = reupload(job_ulid=leased.job.job_ulid, actor=OPERATOR, reason="ingest is back").job
    assert new.requirements == ["linux", "resend"]
    assert new.unsent_run.payload == {"schema_version": "run.v1"}
    old_worker = WorkerFactory()
    assert claiming.claim(worker=old_worker, offer=offer(old_worker)) is None
    with pytest.raises(AlreadyRetried):
        reupload(job_ulid=leased.job.job_ulid, actor=OPERATOR, reason="again")


def test_a_job_that_left_no_run_cannot_be_sent_again(leased):
    job_end.fail(**speak(leased, reason="upload_failed"))
    with pytest.raises(NotFound):
        reupload(job_ulid=leased.job.job_ulid, actor=OPERATOR, reason="ingest is back")


@pytest.fixture
def resending(leased):
    """The lease of an attempt that only uploads the run of the one before."""
    job_end.fail(**speak(leased, reason="upload_failed", unsent_run={"number": 1}))
    reupload(job_ulid=leased.job.job_ulid, actor=OPERATOR, reason="ingest is back")
    return claimed(WorkerFactory(capabilities=["linux", "resend"]))


def test_an_upload_that_fails_again_keeps_the_run(resending):
    failed = job_end.fail(**speak(resending, reason="upload_failed", unsent_run={"number": 1}))
    assert (failed.state, failed.failure_reason) == (JobState.FAILED, "upload_failed")
    again = reupload(job_ulid=failed.job_ulid, actor=OPERATOR, reason="once more").job
    assert again.unsent_run.payload == {"number": 1}


def test_an_upload_that_fails_again_does_not_refuse_the_other_failures_of_its_call(resending):
    submitted(ProjectFactory(organization__slug="other"))
    other = claimed(resending.lease.worker)
    run = FailMessage(FailureReason.UPLOAD_FAILED, unsent_run={"number": 1})
    results = batch_calls.fail_many(
        batch_calls.messages_of(resending.lease.worker, {resending.lease.lease_ulid: run, other.lease.lease_ulid: run})
    )
    assert [ended.job.state for ended in results.values()] == [JobState.FAILED, JobState.FAILED]
    assert set(UnsentRun.objects.values_list("job_id", flat=True)) >= {resending.job.job_ulid, other.job.job_ulid}


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_a_retry_of_an_upload_that_failed_again_executes_the_job(leased, retries):
    Job.objects.filter(pk=leased.job.pk).update(automatic_retries=retries)
    job_end.fail(**speak(leased, reason="upload_failed", unsent_run={"number": 1}))
    worker = WorkerFactory(capabilities=["linux", "resend"])
    for _ in range(2):
        newest = Job.objects.latest("attempt")
        reupload(job_ulid=newest.job_ulid, actor=OPERATOR, reason="ingest is back")
        failed = job_end.fail(**speak(claimed(worker), reason="upload_failed", unsent_run={"number": 1}))
    retry = service_retries.retry(job_ulid=failed.job_ulid, actor=OPERATOR, reason="execute it again").job
    assert (retry.attempt, retry.requirements, retry.automatic_retries) == (4, ["linux"], retries)
    assert claimed(leased.lease.worker).job.job_ulid == retry.job_ulid
