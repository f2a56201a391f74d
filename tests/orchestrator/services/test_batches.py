"""Jobs that belong together: all or none, one cancel for all, the same again."""

import threading

import pytest
from django.db import connection

from orchestrator.core.cause import Cause
from orchestrator.core.idempotency import IdempotentRequest
from orchestrator.services import batches, cancellation, expiry, job_end, project_defaults, retries
from orchestrator.services.batches import BatchJob, BatchSubmission, state_of
from runtime_jobs.errors import (
    AlreadyFinal,
    IdempotencyConflict,
    Invalid,
    NotFound,
    RepositoryNotAllowed,
    TimeoutAbovePlan,
)
from runtime_jobs.models import Batch, Job
from runtime_jobs.specs import JOB_TYPES, configured_policy
from runtime_jobs.states import FailureReason
from tests.db_snapshot import nothing_lost
from tests.factories import (
    ALICE,
    COMMIT,
    OrganizationFactory,
    ProjectFactory,
    WorkerFactory,
    claimed,
    source,
    spec,
    steps_spec,
)
from tests.live_server import eventually
from tests.orchestrator.services.conftest import after
from tests.orchestrator.services.test_clock_after_locks import waits_for_a_lock

pytestmark = pytest.mark.django_db


def origin(project, **changes):
    values = {
        "org_slug": project.organization.slug, "project_slug": project.slug, "source": source(),
        "trigger_kind": "manual", "trigger_actor": "alice", "correlation_id": "test", "source_address": None,
        "details": {"reason": "nightly"},
    }  # fmt: skip
    return BatchSubmission(**values | changes)


def submitted(project=None, *specs, idempotency=None, required=True, **changes):
    jobs = [BatchJob(one, required) for one in specs or (steps_spec(name="a"), steps_spec(name="b"))]
    return batches.submit_batch(
        origin(project or ProjectFactory(), **changes), jobs, policy_for=configured_policy, default_pool="shared-linux",
        actor=ALICE, idempotency=idempotency,
    )  # fmt: skip


def rerun(batch, idempotency=None):
    return batches.rerun_batch(
        batch_ulid=batch.batch_ulid, policy_for=configured_policy, default_pool="shared-linux", cause=Cause(ALICE, source_address="127.0.0.1"),
        correlation_id="again", idempotency=idempotency,
    )  # fmt: skip


def canceled(batch):
    return batches.cancel_batch(batch_ulid=batch.batch_ulid, actor=ALICE, deadline_seconds=30, message="enough")


def key(name="k", operation="run", body="x"):
    return IdempotentRequest("token:1", operation, name, body)


def take(worker):
    return claimed(worker, job_types=("steps", "runtime"))


def done(lease, worker):
    return job_end.complete(lease_ulid=lease.lease_ulid, worker=worker)


def failed(lease, worker, reason=FailureReason.COMMAND_FAILED):
    return job_end.fail(lease_ulid=lease.lease_ulid, worker=worker, reason=reason)


def test_its_jobs_are_there_together():
    batch = submitted().batch
    assert [job.spec["name"] for job in batch.jobs.order_by("id")] == ["a", "b"]
    assert (batch.git_commit, batch.details, state_of(batch)) == (COMMIT, {"reason": "nightly"}, "queued")


def test_one_that_is_not_admitted_keeps_all_out():
    project = ProjectFactory()
    with nothing_lost(), pytest.raises(TimeoutAbovePlan):
        submitted(project, steps_spec(), steps_spec(timeout_seconds=901))
    for number in (0, 65):
        with nothing_lost(), pytest.raises(Invalid):
            batches.submit_batch(
                origin(project),
                [BatchJob(steps_spec())] * number,
                policy_for=configured_policy,
                default_pool="x",
                actor=ALICE,
            )


def test_the_same_key_makes_one_batch():
    project = ProjectFactory()
    first, again = submitted(project, idempotency=key()), submitted(project, idempotency=key())
    assert (first.batch, again.replayed) == (again.batch, True)
    with pytest.raises(IdempotencyConflict):
        submitted(project, idempotency=key(body="y"))
    assert Job.objects.count() == 2


def test_its_state_is_that_of_its_newest_attempts():
    worker, batch = WorkerFactory(), submitted().batch
    first, second = take(worker), take(worker)
    assert state_of(batch) == "running"
    done(first.lease, worker)
    failed(second.lease, worker)
    assert state_of(batch) == "failed"
    retries.retry(job_ulid=second.job.job_ulid, actor=ALICE, reason="again")
    assert state_of(batch) == "running"
    done(take(worker).lease, worker)
    assert state_of(batch) == "succeeded"


def test_an_optional_job_may_fail():
    worker = WorkerFactory()
    batch = submitted(None, steps_spec(), required=False).batch
    assert batch.details["optional"] == [batch.jobs.get().root_job_ulid]
    project = ProjectFactory(slug="other")
    jobs = [BatchJob(steps_spec(name="a")), BatchJob(steps_spec(name="b"), required=False)]
    mixed = batches.submit_batch(
        origin(project), jobs, policy_for=configured_policy, default_pool="shared-linux", actor=ALICE
    ).batch
    for _ in range(3):
        held = take(worker)
        (done if held.job.spec["name"] == "a" else failed)(held.lease, worker)
    assert (state_of(mixed), state_of(batch)) == ("succeeded", "failed")


def test_a_cancel_ends_what_waits_and_asks_who_runs():
    worker, batch = WorkerFactory(), submitted().batch
    running = take(worker)
    outcome = canceled(batch)
    assert outcome.accepted
    states = dict(batch.jobs.values_list("job_ulid", "state"))
    assert sorted(states.values()) == ["canceled", "starting"]
    assert set(batch.jobs.values_list("cancel_reason", flat=True)) == {"batch_canceled"}
    assert state_of(Batch.objects.get()) == "cancel_requested"
    with nothing_lost():
        assert not canceled(batch).accepted, "asked before"
    job_end.acknowledge_cancel(lease_ulid=running.lease.lease_ulid, worker=worker)
    assert state_of(Batch.objects.get()) == "canceled"
    with nothing_lost():
        assert canceled(batch).batch.cancel_reason == "batch_canceled"


def test_what_has_ended_otherwise_is_not_canceled():
    worker, batch = WorkerFactory(), submitted(None, steps_spec()).batch
    done(take(worker).lease, worker)
    with nothing_lost(), pytest.raises(AlreadyFinal):
        canceled(batch)
    with pytest.raises(NotFound):
        batches.cancel_batch(batch_ulid="rtb_none", actor=ALICE, deadline_seconds=1)


def test_a_job_that_somebody_canceled_before_keeps_its_reason():
    batch = submitted().batch
    first = batch.jobs.order_by("id").first()
    cancellation.cancel(job_ulid=first.job_ulid, actor=ALICE, deadline_seconds=30)
    canceled(batch)
    assert list(batch.jobs.order_by("id").values_list("cancel_reason", flat=True)) == ["requested", "batch_canceled"]


@pytest.mark.django_db(transaction=True)
def test_a_cancel_reaches_the_retry_of_a_job_that_fails_while_it_waits():
    """The retry is a row that the cancel's first look cannot see."""
    worker, batch = WorkerFactory(), submitted(None, steps_spec()).batch
    held = take(worker)
    locked, go = threading.Event(), threading.Event()
    real = expiry.end_lease_externally

    def expire():
        def slowly(*args, **kwargs):
            locked.set()
            assert go.wait(60)
            return real(*args, **kwargs)

        expiry.end_lease_externally = slowly
        try:
            expiry.expire(job_ulid=held.job.job_ulid, now=after(held.lease.expires_at, 1))
        finally:
            expiry.end_lease_externally = real
            connection.close()

    def cancel():
        try:
            canceled(batch)
        finally:
            connection.close()

    threads = [threading.Thread(target=expire), threading.Thread(target=cancel)]
    threads[0].start()
    assert locked.wait(60)
    threads[1].start()
    _until_somebody_waits()
    go.set()
    for thread in threads:
        thread.join(60)
    assert sorted(batch.jobs.values_list("state", flat=True)) == ["canceled", "failed"]
    assert state_of(Batch.objects.get()) == "canceled"


def _until_somebody_waits():
    eventually(waits_for_a_lock)


def test_a_rerun_is_the_same_jobs_in_a_new_batch():
    worker, batch = WorkerFactory(), submitted(None, steps_spec(name="a", source=source()), spec()).batch
    for _ in range(2):
        held = take(worker)
        failed(held.lease, worker, FailureReason.WORKER_ERROR)
    retries.retry(job_ulid=batch.jobs.order_by("id")[0].job_ulid, actor=ALICE, reason="x")
    again = rerun(batch).batch
    assert (again.rerun_of, again.git_commit, again.details) == (batch.batch_ulid, COMMIT, batch.details)
    old, new = (list(one.jobs.filter(attempt=1).order_by("id")) for one in (batch, again))
    assert [job.payload_digest for job in old] == [job.payload_digest for job in new]
    assert [job.correlation_id for job in new] == ["again", "again"]
    assert {job.attempt for job in new} == {1}
    assert state_of(again) == "queued"
    assert rerun(again).batch.rerun_of == again.batch_ulid


def test_a_rerun_is_admitted_by_todays_rules():
    project = ProjectFactory()
    batch = submitted(project, steps_spec(source=source())).batch
    project.repositories = []
    project.save()
    with nothing_lost(), pytest.raises(RepositoryNotAllowed):
        rerun(batch)
    with pytest.raises(NotFound):
        rerun(Batch(batch_ulid="rtb_none"))


def test_the_rerun_of_a_pull_request_is_one():
    project = ProjectFactory()
    for kind, expected in {"push": "manual", "pull_request": "pull_request"}.items():
        again = rerun(submitted(project, steps_spec(), trigger_kind=kind).batch).batch
        assert {again.trigger_kind, again.jobs.get().trigger_kind} == {expected}


def test_a_rerun_keeps_what_is_optional():
    batch = submitted(None, steps_spec(), required=False).batch
    again = rerun(batch).batch
    assert again.details["optional"] == [again.jobs.get().root_job_ulid]


def test_one_key_makes_one_rerun():
    batch = submitted().batch
    assert rerun(batch, key()).batch == rerun(batch, key()).batch
    assert Batch.objects.count() == 2


@pytest.mark.parametrize("wanted", [
    spec(), spec(ref=None, pull_request_number=None, allow_exec=False), steps_spec(),
    steps_spec(source=source(), environment={"A": "b"}, image="x:1", allow_network=True, working_directory="a"),
])  # fmt: skip
def test_a_spec_comes_back_from_its_row_as_it_was(wanted):
    job = Job(**wanted.columns())
    assert JOB_TYPES[wanted.job_type].from_job(job) == wanted


# --- planning ---------------------------------------------------------------------------------------------------------


def test_the_configured_command_is_one_job():
    project = ProjectFactory(configured_command=["sh", "-c", "echo 'a b'"], configured_directory="app")
    planned = project_defaults.configured_job(project, source())
    assert (planned.steps, planned.working_directory) == (("""sh -c 'echo '"'"'a b'"'"''""",), "app")
    assert (planned.timeout_seconds, planned.allow_network, planned.source) == (300, False, source())
    with pytest.raises(Invalid):
        project_defaults.configured_job(ProjectFactory(slug="bare"), source())


def test_the_project_is_the_one_that_runs_the_repository():
    mine, theirs = OrganizationFactory(slug="mine"), OrganizationFactory(slug="theirs")
    named = ProjectFactory(organization=mine, slug="named", repositories=["Acme/Web"])
    ProjectFactory(organization=mine, slug="all", repositories=["acme/*"])
    ProjectFactory(organization=mine, slug="off", repositories=["acme/web"], enabled=False)
    other = ProjectFactory(organization=theirs, slug="theirs", repositories=["acme/web"])
    assert project_defaults.find_project("acme", "web", organizations=["mine"]) == named
    assert project_defaults.find_project("acme", "api", organizations=["mine"]).slug == "all"
    assert project_defaults.find_project("acme", "web", organizations=["mine"], slug="all").slug == "all"
    assert project_defaults.find_project("acme", "web", organizations=["theirs"]) == other
    for wrong in ({"organizations": []}, {"organizations": ["mine"], "slug": "off"}):
        with pytest.raises(RepositoryNotAllowed):
            project_defaults.find_project("acme", "web", **wrong)
    with pytest.raises(Invalid):
        project_defaults.find_project("acme", "web", organizations=None)


def test_a_ref_has_the_commit_that_was_pushed_last():
    project = ProjectFactory()
    url = source().repo_url
    for commit, kind in (("a" * 40, "push"), ("b" * 40, "push"), ("c" * 40, "pull_request")):
        submitted(project, steps_spec(), trigger_kind=kind, source=source(git_commit=commit))
    assert project_defaults.newest_commit(project, url, "main") is None, "its pushes are not listened to"
    project.push_enabled = True
    for ref in ("main", "refs/heads/main"):
        assert project_defaults.newest_commit(project, url, ref) == "b" * 40
    assert project_defaults.newest_commit(project, url, "other") is None
