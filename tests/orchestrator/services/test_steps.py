"""Type `steps` in the core: its columns, its policy, what its success needs, and who may claim it."""

from dataclasses import replace

import pytest

from leases.models import Lease
from orchestrator.audit.runner import run_audit
from orchestrator.services import cancellation, claiming, expiry, job_end, worker_state
from orchestrator.services.submission import submit
from runtime_jobs.errors import Invalid, PoolForbidden, RepositoryNotAllowed, TimeoutAbovePlan
from runtime_jobs.models import Job
from runtime_jobs.specs import JOB_TYPES, configured_policy
from runtime_jobs.states import STATUS, STATUS_WITHOUT_INGEST, FailureReason
from tests.db_snapshot import nothing_lost
from tests.factories import (
    ALICE,
    COMMIT,
    OPERATOR,
    TIMINGS,
    ProjectFactory,
    WorkerFactory,
    claimed,
    offer,
    source,
    steps_spec,
    submission,
    submitted,
    submitted_steps,
)
from tests.orchestrator.services.conftest import after

pytestmark = pytest.mark.django_db


def claim_steps(worker=None, **kwargs):
    return claimed(worker, job_types=("steps",), **kwargs)


def complete(lease, worker, **kwargs):
    return job_end.complete(lease_ulid=lease.lease_ulid, worker=worker, **kwargs)


def test_its_row_holds_all_that_was_asked_for():
    job = submitted_steps(source=source(), image="registry.example/tool:1")
    assert (job.job_type, job.command_json, job.git_commit, job.repo_owner) == (
        "steps", None, COMMIT, "cc-consulting-nv",
    )  # fmt: skip
    assert job.requirements == ["linux", "image"]
    assert (job.needs_ingest, job.automatic_retries, job.complete_beats_cancel) == (False, 1, False)
    shown = JOB_TYPES["steps"].serialize(job)
    assert shown["steps"] == ["make test"]
    assert shown["source"]["git_commit"] == COMMIT
    assert shown["image"] == "registry.example/tool:1"


def test_without_a_repository_it_has_no_source():
    assert JOB_TYPES["steps"].serialize(submitted_steps())["source"] is None


def test_its_project_must_allow_the_repository_that_it_names():
    project = ProjectFactory(repositories=[])
    assert submitted_steps(project).state == "queued"
    with pytest.raises(RepositoryNotAllowed):
        submitted_steps(project, source=source())


def test_the_plan_bounds_its_timeout():
    with pytest.raises(TimeoutAbovePlan):
        submitted_steps(timeout_seconds=901)


def test_it_goes_into_its_projects_pool_and_no_other():
    project = ProjectFactory(pool="own")
    assert submitted_steps(project, pool="own").pool == "own"
    with pytest.raises(PoolForbidden):
        submitted_steps(project, pool="shared-linux")


def test_another_request_has_another_digest():
    assert steps_spec().digest == steps_spec().digest
    assert steps_spec().digest != steps_spec(environment={"CI": "1"}).digest


def test_who_claims_runtime_jobs_only_gets_none_of_it():
    worker = WorkerFactory()
    submitted_steps()
    assert claiming.claim(worker=worker, offer=offer(worker)) is None
    assert claim_steps(worker).job.job_type == "steps"


def test_who_claims_both_gets_the_older_first():
    worker, runtime = WorkerFactory(), submitted()
    submitted_steps()
    assert claimed(worker, job_types=("runtime", "steps")).job.job_ulid == runtime.job_ulid
    assert claimed(worker, job_types=("runtime", "steps")).job.job_type == "steps"


def test_a_job_with_an_image_waits_for_who_has_an_engine_for_it():
    worker = WorkerFactory()
    submitted_steps(image="tool:1")
    assert claiming.claim(worker=worker, offer=offer(worker, job_types=("steps",))) is None
    assert claim_steps(WorkerFactory(capabilities=["linux", "image"])).job.spec["image"] == "tool:1"


def test_it_succeeds_without_a_run():
    worker = WorkerFactory()
    submitted_steps()
    lease = claim_steps(worker).lease
    job = complete(lease, worker, exit_code=0, result={"steps": []})
    assert (job.state, job.public_status) == ("succeeded", "succeeded")
    assert Job.objects.get().status == "succeeded"
    assert complete(lease, worker, exit_code=0).state == "succeeded", "the same message again"


@pytest.mark.parametrize(("make", "run"), [(submitted_steps, "run_a"), (submitted, None)])
def test_a_run_is_there_if_and_only_if_the_type_has_one(make, run):
    worker = WorkerFactory()
    make()
    lease = claimed(worker, job_types=("runtime", "steps")).lease
    with nothing_lost(), pytest.raises(Invalid) as refused:
        complete(lease, worker, ingest_run_id=run)
    assert list(refused.value.errors) == ["ingest_run_id"]


def test_a_failed_step_keeps_what_was_done_until_then():
    worker = WorkerFactory()
    submitted_steps()
    lease = claim_steps(worker).lease
    result = {"steps": [{"index": 0, "exit_code": 0}, {"index": 1, "exit_code": 2}]}
    job = job_end.fail(
        lease_ulid=lease.lease_ulid, worker=worker, reason=FailureReason.COMMAND_FAILED, exit_code=2, result=result
    )
    assert (job.failure_class, job.exit_code, job.result) == ("job", 2, result)
    assert not Job.objects.filter(retry_of_job_ulid=job.job_ulid).exists(), "no retry by itself"


def test_a_cancel_beats_its_end():
    worker = WorkerFactory()
    job = submitted_steps()
    lease = claim_steps(worker).lease
    cancellation.cancel(job_ulid=job.job_ulid, actor=ALICE, deadline_seconds=30)
    assert complete(lease, worker, exit_code=0).state == "canceled"


def test_a_silent_worker_costs_one_retry_of_the_same_steps():
    submitted_steps()
    first = claim_steps()
    expiry.expire(job_ulid=first.job.job_ulid, now=after(first.lease.expires_at, 1))
    retry = Job.objects.get(retry_of_job_ulid=first.job.job_ulid)
    assert (retry.job_type, retry.spec, retry.needs_ingest) == ("steps", first.job.spec, False)
    second = claim_steps()
    expiry.expire(job_ulid=retry.job_ulid, now=after(second.lease.expires_at, 1))
    assert Job.objects.count() == 2
    assert Lease.objects.open().count() == 0


def test_the_audit_knows_both_words_for_a_success():
    worker = WorkerFactory()
    submitted_steps()
    complete(claim_steps(worker).lease, worker)
    submitted()
    complete(claimed(worker).lease, worker, ingest_run_id="run_a")
    assert run_audit(chains=True) == []
    assert sorted(Job.objects.values_list("status", flat=True)) == ["succeeded", "uploaded"]
    assert (STATUS["succeeded"], STATUS_WITHOUT_INGEST["succeeded"]) == ("uploaded", "succeeded")


@pytest.mark.parametrize("job_type", JOB_TYPES)
def test_every_type_has_its_policy(job_type):
    policy = JOB_TYPES[job_type].policy(
        lease_ttl_seconds=120, heartbeat_interval_seconds=20, acknowledge_within_seconds=30, max_requeues=5
    )
    assert policy.needs_ingest == (job_type == "runtime")


def test_automatic_retries_are_set_by_type_and_by_submit(settings):
    settings.AUTOMATIC_RETRIES = {"steps": 0, "runtime": 2}
    assert (configured_policy("steps").automatic_retries, configured_policy("runtime").automatic_retries) == (0, 2)
    requested = replace(submission(ProjectFactory(), steps_spec()), automatic_retries=0)
    job = submit(requested, policy=JOB_TYPES["steps"].policy(**TIMINGS), default_pool="shared-linux", actor=ALICE).job
    assert job.automatic_retries == 0
    claim = claim_steps()
    worker_state.revoke(job_ulid=claim.job.job_ulid, actor=OPERATOR, reason="burning")
    assert Job.objects.get().failure_reason == FailureReason.WORKER_LOST  # no second attempt
