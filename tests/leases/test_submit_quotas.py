"""Submit quotas: no more waiting jobs and no faster submits than a plan allows, also under concurrent submits."""

import threading

import pytest
from django.db import connection, transaction

from leases.models import SubmitQuota
from leases.scheduling import submit_quotas
from orchestrator.audit.runner import run_audit
from orchestrator.core.cause import Cause
from orchestrator.core.unit_of_work import UnitOfWork
from orchestrator.services import batches, bulk_submit, cancellation, heartbeat, job_end, retries
from orchestrator.services.batches import BatchJob, BatchSubmission
from orchestrator.services.concurrency import ConcurrencyGroup, OnConflict
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import LifecycleError, QueueFull, SubmitRateExceeded
from runtime_jobs.models import Batch, Job
from runtime_jobs.states import FailureReason
from tests.factories import (
    ALICE,
    OPERATOR,
    POLICY,
    OrganizationFactory,
    PlanFactory,
    ProjectFactory,
    WorkerFactory,
    claimed,
    spec,
    steps_spec,
    submission,
    submitted,
)

pytestmark = pytest.mark.django_db(transaction=True)

POOL = "shared-linux"
RESULTS = (Job, bulk_submit.BulkOutcome, batches.BatchOutcome)
AT_ONCE = 6  # connections: a process has few


def project_with(*, slug="small", **terms):
    """A project whose organization has a plan of its own with these terms; what is not named is unlimited."""
    unlimited = {"max_queued": None, "submits_per_minute": None, "submit_burst": 64}
    plan = PlanFactory(name=f"plan-of-{slug}", **unlimited | terms)
    return ProjectFactory(organization=OrganizationFactory(slug=slug, plan=plan))


def change_plan(project, **terms):
    plan = project.organization.plan
    type(plan).objects.filter(pk=plan.pk).update(**terms)


def waiting(project) -> int:
    return Job.objects.filter(org_slug=project.organization.slug, state__in=["queued", "blocked"]).count()


def refusal(act) -> LifecycleError:
    with pytest.raises(LifecycleError) as caught:
        act()
    return caught.value


def at_once(count, act):
    """Run `act` on so many connections at the same time; return what each returned or raised."""
    barrier, answers = threading.Barrier(count), [None] * count

    def run(place):
        try:
            connection.ensure_connection()
            barrier.wait(timeout=60)
            answers[place] = act(place)
        except Exception as error:  # noqa: BLE001 - shown below
            answers[place] = error
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=[place]) for place in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert [one for one in answers if not isinstance(one, (LifecycleError, *RESULTS))] == []
    return answers


def many(project, count, **kwargs):
    entries = [submission(project, spec()) for _ in range(count)]
    return bulk_submit.submit_many(entries, policy_for=lambda _: POLICY, default_pool=POOL, actor=ALICE, **kwargs)


def batch(project, count, actor=ALICE):
    origin = BatchSubmission(
        org_slug=project.organization.slug,
        project_slug=project.slug,
        source=None,
        trigger_kind="manual",
        trigger_actor="alice",
        correlation_id="test",
        source_address=None,
        details={},
    )
    jobs = [BatchJob(steps_spec(name=f"job-{n}")) for n in range(count)]
    return batches.submit_batch(origin, jobs, policy_for=lambda _: POLICY, default_pool=POOL, actor=actor)


def test_a_full_queue_refuses_the_next_job_with_the_numbers():
    project = project_with(max_queued=3)
    for _ in range(3):
        submitted(project)
    error = refusal(lambda: submitted(project))
    assert isinstance(error, QueueFull)
    assert error.facts == {"limit": 3, "current": 3, "retry_after": 1}
    assert waiting(project) == 3
    assert run_audit() == []


def test_a_claim_and_a_cancel_make_room():
    project = project_with(max_queued=2)
    first, _ = submitted(project), submitted(project)
    refusal(lambda: submitted(project))
    claimed()
    submitted(project)
    refusal(lambda: submitted(project))
    newest = Job.objects.filter(state="queued").order_by("-pk").first()
    cancellation.cancel(job_ulid=newest.job_ulid, actor=ALICE, deadline_seconds=1)
    submitted(project)
    refusal(lambda: submitted(project))
    assert (waiting(project), first.org_slug) == (2, "small")
    assert run_audit() == []


def test_blocked_jobs_count():
    project = project_with(max_queued=2)
    first = submitted(project)
    submitted(project, depends_on=(first,))
    assert refusal(lambda: submitted(project)).code == "queue_full"
    assert refusal(lambda: submitted(project, depends_on=(first,))).code == "queue_full"
    assert run_audit() == []


@pytest.mark.parametrize("round_", range(3))
def test_submits_at_the_same_moment_do_not_overshoot(round_):
    project = project_with(max_queued=4)
    submitted(project)  # its lane and its quota are there
    answers = at_once(AT_ONCE, lambda _: submitted(project))
    refused = [one for one in answers if isinstance(one, LifecycleError)]
    assert waiting(project) == 4, round_
    assert len(refused) == AT_ONCE - 3
    assert {one.code for one in refused} == {"queue_full"}
    assert run_audit() == []


def test_the_first_submits_of_an_organization_do_not_overshoot():
    project = project_with()
    submitted(project)  # its lane is there; a limit, and with it the row of its quota, comes now
    change_plan(project, max_queued=4)
    answers = at_once(AT_ONCE, lambda _: submitted(project))
    assert waiting(project) == 4
    assert sum(isinstance(one, LifecycleError) for one in answers) == AT_ONCE - 3
    assert run_audit() == []


def test_single_submits_bulks_and_batches_at_the_same_moment_do_not_overshoot():
    project = project_with(max_queued=40)
    submitted(project)

    def act(place):
        return [lambda: submitted(project), lambda: many(project, 25), lambda: batch(project, 10)][place % 3]()

    at_once(AT_ONCE, act)
    assert waiting(project) <= 40
    while waiting(project) < 40:
        submitted(project)
    assert refusal(lambda: submitted(project)).code == "queue_full"
    assert run_audit() == []


def test_a_recount_sees_a_submit_that_is_about_to_commit():
    """The recount waits for it: counted before its commit, the same room would be given twice."""
    project = project_with(max_queued=2)
    submitted(project)
    inside, may_commit = threading.Event(), threading.Event()

    def slow_submit():
        plain_write = UnitOfWork.write

        def write(uow):
            with transaction.atomic():  # the write commits by itself, so its locks are kept for the test
                plain_write(uow)
                inside.set()
                assert may_commit.wait(timeout=60)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(UnitOfWork, "write", write)
            submitted(project)

    submitting = threading.Thread(target=_closing(slow_submit))
    submitting.start()
    assert inside.wait(timeout=60)
    counting = threading.Thread(target=_closing(lambda: submit_quotas.recount("small")))
    counting.start()
    waited = _until_waiting_for_guard(12)
    may_commit.set()
    for thread in (submitting, counting):
        thread.join(timeout=60)
    assert waited
    assert SubmitQuota.objects.get().room == 0
    assert refusal(lambda: submitted(project)).code == "queue_full"
    assert run_audit() == []


def _closing(act):
    def run():
        try:
            act()
        finally:
            connection.close()

    return run


def _until_waiting_for_guard(number) -> bool:
    pause = threading.Event()
    for _ in range(600):
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND classid = %s AND NOT granted)",
                [number],
            )
            if cursor.fetchone()[0]:
                return True
        pause.wait(0.05)
    return False


def test_submits_of_others_do_not_wait_for_a_tenants_quota():
    small, other = project_with(max_queued=100), project_with(slug="other", max_queued=100)
    submitted(small)
    submitted(other)
    locked, done = threading.Event(), threading.Event()

    def hold():
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT take_submit_quota('small', 1, true, 100, NULL, 64)")
            locked.set()
            done.wait(timeout=60)

    holder = threading.Thread(target=_closing(hold))
    holder.start()
    assert locked.wait(timeout=60)
    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '50ms'")
    try:
        submitted(other)
        assert waiting(other) == 2
    finally:
        done.set()
        holder.join(timeout=60)
        with connection.cursor() as cursor:
            cursor.execute("RESET lock_timeout")  # the connection returns to the pool


def test_what_comes_back_to_the_queue_is_never_refused_and_counts():
    project = project_with(max_queued=2)
    worker = WorkerFactory()
    for _ in range(2):
        submitted(project)
    held = [claimed(worker), claimed(worker)]
    for _ in range(2):
        submitted(project)
    for one in held:
        heartbeat.release(lease_ulid=one.lease.lease_ulid, worker=worker)
    assert waiting(project) == 4
    error = refusal(lambda: submitted(project))
    assert (error.facts["limit"], error.facts["current"]) == (2, 4)
    assert run_audit() == []


def test_a_requeue_uses_up_room_that_was_counted_before():
    """Otherwise a job that is queued again and a job that is submitted would both use the same room."""
    project = project_with(max_queued=3)
    worker = WorkerFactory()
    submitted(project)
    held = claimed(worker)
    submit_quotas.recount("small")  # nothing waits: room for three
    heartbeat.release(lease_ulid=held.lease.lease_ulid, worker=worker)
    for _ in range(2):
        submitted(project)
    assert refusal(lambda: submitted(project)).code == "queue_full"
    assert waiting(project) == 3
    assert run_audit() == []


def test_an_automatic_retry_is_never_refused():
    project = project_with(max_queued=1)
    worker = WorkerFactory()
    submitted(project)
    held = claimed(worker)
    submitted(project)
    job_end.fail(
        lease_ulid=held.lease.lease_ulid,
        worker=worker,
        reason=FailureReason.WORKER_SHUTDOWN,
    )
    assert waiting(project) == 2
    assert run_audit() == []


def test_a_clients_retry_counts_and_an_operators_is_not_refused():
    project = project_with(max_queued=1)
    job = submitted(project)
    cancellation.cancel(job_ulid=job.job_ulid, actor=ALICE, deadline_seconds=1)
    submitted(project)
    again = {"job_ulid": job.job_ulid, "reason": "again"}
    assert refusal(lambda: retries.retry(actor=ALICE, **again)).code == "queue_full"
    retries.retry(actor=OPERATOR, **again)
    assert waiting(project) == 2
    assert run_audit() == []


def test_a_batch_comes_in_whole_or_not_at_all():
    project = project_with(max_queued=5)
    made = batch(project, 4).batch
    assert refusal(lambda: batch(project, 2)).code == "queue_full"
    assert (waiting(project), Batch.objects.count()) == (4, 1)
    rerun = {"batch_ulid": made.batch_ulid, "policy_for": lambda _: POLICY, "default_pool": POOL}
    rerun |= {"correlation_id": "test"}
    assert refusal(lambda: batches.rerun_batch(cause=Cause(ALICE), **rerun)).code == "queue_full"
    batches.rerun_batch(cause=Cause(OPERATOR), **rerun)
    assert waiting(project) == 8
    assert run_audit() == []


def test_of_many_as_many_come_in_as_there_is_room_for():
    project, other = project_with(max_queued=3), project_with(slug="other", max_queued=100)
    entries = [submission(one, spec()) for one in [project] * 5 + [other] * 2]
    outcome = bulk_submit.submit_many(entries, policy_for=lambda _: POLICY, default_pool=POOL, actor=ALICE)
    assert [getattr(one, "code", "ok") for one in outcome.results] == ["ok"] * 3 + ["queue_full"] * 2 + ["ok"] * 2
    assert (waiting(project), waiting(other)) == (3, 2)
    assert refusal(lambda: many(project, 2)).code == "queue_full"
    assert run_audit() == []


def test_a_burst_may_be_submitted_at_once_and_no_more():
    project = project_with(submits_per_minute=1, submit_burst=5)
    for _ in range(5):
        submitted(project)
    error = refusal(lambda: submitted(project))
    assert isinstance(error, SubmitRateExceeded)
    assert error.facts | {"retry_after": 0} == {"limit": 1, "burst": 5, "current": 5, "retry_after": 0}
    assert 1 <= error.facts["retry_after"] <= 60
    assert waiting(project) == 5


def test_the_bucket_fills_up_again_with_time():
    project = project_with(submits_per_minute=6, submit_burst=64)
    many(project, 64)
    refusal(lambda: submitted(project))
    row = SubmitQuota.objects.get()
    SubmitQuota.objects.update(spent_until=row.spent_until - (row.spent_until - database_now()) / 2)
    outcome = many(project, 64)
    came = sum(isinstance(one, Job) for one in outcome.results)
    assert 32 <= came <= 34  # half of the bucket, and what these calls took is given back


def test_submits_at_the_same_moment_do_not_exceed_the_rate():
    project = project_with()
    submitted(project)  # its lane is there
    change_plan(project, submits_per_minute=1, submit_burst=4)
    answers = at_once(AT_ONCE, lambda _: submitted(project))
    refused = [one for one in answers if isinstance(one, LifecycleError)]
    assert waiting(project) == 1 + 4
    assert {one.code for one in refused} == {"submit_rate_exceeded"}


def test_a_submit_that_is_refused_for_another_reason_costs_no_token():
    project = project_with(submits_per_minute=1, submit_burst=1)
    for _ in range(3):
        assert refusal(lambda: submitted(project, timeout_seconds=901)).code == "timeout_above_plan"
    submitted(project)


def test_a_change_of_the_plan_counts_at_once_in_both_directions():
    project = project_with(max_queued=2)
    for _ in range(2):
        submitted(project)
    refusal(lambda: submitted(project))
    change_plan(project, max_queued=None)
    for _ in range(5):
        submitted(project)
    assert run_audit() == []
    change_plan(project, max_queued=2)
    assert refusal(lambda: submitted(project)).facts["current"] == 7
    change_plan(project, max_queued=8)
    submitted(project)
    refusal(lambda: submitted(project))
    assert waiting(project) == 8
    assert run_audit() == []


def test_a_flood_of_refused_submits_does_not_count_the_queue_each_time(monkeypatch):
    project = project_with(max_queued=64)
    many(project, 64)
    refusal(lambda: submitted(project))
    counted = SubmitQuota.objects.get().counted_at
    with connection.cursor() as cursor:
        cursor.execute("UPDATE submit_quotas SET recount_at = clock_timestamp() + interval '10 minutes'")
    claimed()
    with monkeypatch.context() as patched:
        patched.setattr(submit_quotas, "recount", lambda _: pytest.fail("counted"))
        for _ in range(5):
            assert refusal(lambda: submitted(project)).code == "queue_full"
    assert SubmitQuota.objects.get().counted_at == counted
    with connection.cursor() as cursor:
        cursor.execute("UPDATE submit_quotas SET recount_at = clock_timestamp()")
    submitted(project)
    assert waiting(project) == 64


def test_a_dropped_job_of_a_group_does_not_wait():
    project = project_with(max_queued=2)
    group = ConcurrencyGroup("deploy", OnConflict.DROP_NEW)
    submitted(project, group=group)
    for _ in range(5):
        submitted(project, group=group)  # each is canceled at once
    assert waiting(project) == 1
    submitted(project)
    assert refusal(lambda: submitted(project)).code == "queue_full"
    assert run_audit() == []


def test_an_unlimited_plan_writes_no_quota():
    submitted(project_with())
    assert not SubmitQuota.objects.exists()


def test_the_audit_finds_a_quota_that_promises_too_much():
    project = project_with(max_queued=2)
    submitted(project)
    SubmitQuota.objects.update(room=2)
    assert [found.code for found in run_audit()] == ["Q1"]
