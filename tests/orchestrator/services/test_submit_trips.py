"""A submit is one read and one write: how many statements it takes, and what happens when something changes between."""

import threading
from contextlib import contextmanager

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from leases.advisory_locks import QUEUES_OF_ORGANIZATION, advisory_xact_lock
from leases.models import Lane, LaneHead, LimitKind, SubmitQuota
from orchestrator.audit.runner import run_audit
from orchestrator.core.idempotency import IdempotentRequest
from orchestrator.core.unit_of_work import UnitOfWork
from orchestrator.services import admission, bulk_submit, cancellation, transitions
from orchestrator.services import submission as service_submission
from orchestrator.services import submission as submission_module
from orchestrator.services.concurrency import ConcurrencyGroup
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import IdempotencyConflict, QueueFull, TimeoutAbovePlan
from runtime_jobs.models import IdempotencyKey, Job, JobEvent, Plan
from runtime_jobs.priorities import EMERGENCY
from tests.factories import (
    ALICE,
    POLICY,
    OrganizationFactory,
    PlanFactory,
    ProjectFactory,
    WorkerFactory,
    claimed,
    limited,
    spec,
    steps_spec,
    submission,
)

pytestmark = pytest.mark.django_db(transaction=True)

POOL = "shared-linux"


@pytest.fixture
def project():
    return ProjectFactory()


def key(name="k1", fingerprint="f1") -> IdempotentRequest:
    return IdempotentRequest("alice", "submit", name, fingerprint)


def submit(project, **kwargs):
    given = submission(project, kwargs.pop("wanted", None) or spec(), **kwargs.pop("changes", {}))
    return service_submission.submit(given, policy=POLICY, default_pool=POOL, actor=ALICE, **kwargs)


def submit_many(project, count, **kwargs):
    entries = [submission(project, spec()) for _ in range(count)]
    return bulk_submit.submit_many(entries, policy_for=lambda _: POLICY, default_pool=POOL, actor=ALICE, **kwargs)


def limited_project(**terms):
    unlimited = {"max_queued": None, "submits_per_minute": None, "submit_burst": 64}
    return ProjectFactory(organization=OrganizationFactory(slug="small", plan=PlanFactory(**unlimited | terms)))


def statements(act) -> int:
    with CaptureQueriesContext(connection) as made:
        act()
    return len(made)


def in_another_thread(act):
    """Run `act` on a connection of its own, and wait for its end."""
    errors = []

    def run():
        try:
            act()
        except Exception as error:  # noqa: BLE001 raised below
            errors.append(error)
        finally:
            connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(timeout=120)
    assert not thread.is_alive()
    if errors:
        raise errors[0]


@contextmanager
def between_read_and_write(monkeypatch, act):
    """Let `act` happen once on another connection, after the tenant of the first submit in the block was read."""
    done = []
    plain = {name: getattr(module, name) for module, name in READS}

    def reading(name):
        def read(*args, **kwargs):
            found = plain[name](*args, **kwargs)
            if not done:
                done.append(True)
                in_another_thread(act)
            return found

        return read

    with monkeypatch.context() as patched:
        for module, name in READS:
            patched.setattr(module, name, reading(name))
        yield
    assert done


READS = ((submission_module, "load_context_of_job"), (bulk_submit, "load_context"))


# --- cost -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_queued", [None, 1000])
def test_a_submit_is_two_trips_with_and_without_a_key(max_queued):
    project = limited_project(max_queued=max_queued)
    submit(project)
    assert statements(lambda: submit(project)) == 2
    assert statements(lambda: submit(project, idempotency=key())) == 2
    assert run_audit() == []


@pytest.mark.parametrize("count", [1, 40])
def test_a_bulk_submit_is_three_trips(project, count):
    submit(project)
    assert statements(lambda: submit_many(project, count)) == 3
    assert statements(lambda: submit_many(project, count, idempotency=key())) == 3


def test_the_lanes_of_different_jobs_are_looked_up_together(project):
    submit(project)
    submit(project, wanted=steps_spec())
    submit(project, wanted=spec(allow_exec=False))
    entries = [submission(project, wanted) for wanted in (spec(), steps_spec(), spec(allow_exec=False)) * 2]
    outcomes = []

    def bulk():
        outcomes.append(bulk_submit.submit_many(entries, policy_for=lambda _: POLICY, default_pool=POOL, actor=ALICE))

    assert statements(bulk) == 3
    jobs = Job.objects.filter(job_ulid__in=[job.job_ulid for job in outcomes[0].results])
    assert len({job.lane_id for job in jobs}) == Lane.objects.count() == 3
    assert all(
        len(set(jobs.filter(job_type=job.job_type, requirements=job.requirements).values_list("lane_id"))) == 1
        for job in jobs
    )
    assert run_audit() == []


# --- what the quick form leaves to the transaction --------------------------------------------------------------------


def test_the_first_job_of_a_lane_creates_it_in_a_transaction(project):
    job = submit(project, idempotency=key()).job
    assert Lane.objects.get().pk == job.lane_id
    assert submit(project).job.lane_id == job.lane_id
    assert (
        submit_many(ProjectFactory(organization=project.organization, slug="api"), 2).results[0].lane_id != job.lane_id
    )
    assert run_audit() == []


def test_a_lane_of_another_key_is_not_used(project, monkeypatch):
    """The query guesses the lane; the placement decides."""
    first = submit(project).job
    plain = admission._placement
    monkeypatch.setattr(
        admission, "_placement", lambda *args: admission.replace(plain(*args), least_isolation="restricted")
    )
    second = submit(project).job
    assert second.lane_id != first.lane_id
    assert run_audit() == []


def test_an_emergency_holds_the_lock_of_its_limit(project, monkeypatch):
    limited(project.organization.slug, kind=LimitKind("emergency"), max_active=1)
    for _ in range(2):
        assert submit(project, changes={"priority": EMERGENCY}).job.priority == EMERGENCY
    held = []
    monkeypatch.setattr(admission, "has_emergency_limit", lambda _: held.append(connection.in_atomic_block) or True)
    submit(project, changes={"priority": EMERGENCY})
    assert held == [True]


def test_a_group_needs_a_transaction(project, monkeypatch):
    submit(project, changes={"group": ConcurrencyGroup("deploy")})
    seen = []
    plain = UnitOfWork.write
    monkeypatch.setattr(UnitOfWork, "write", lambda uow: seen.append(connection.in_atomic_block) or plain(uow))
    submit(project, changes={"group": ConcurrencyGroup("deploy")})
    assert seen == [True]


def test_an_advisory_lock_outside_a_transaction_is_a_programming_error():
    with pytest.raises(transaction.TransactionManagementError):
        advisory_xact_lock(QUEUES_OF_ORGANIZATION, "acme")


# --- what changes between the read and the write ----------------------------------------------------------------------


@pytest.mark.parametrize("act", [submit, lambda project, **kwargs: submit_many(project, 1, **kwargs)])
def test_a_key_that_is_bound_meanwhile_is_replayed(project, monkeypatch, act):
    submit(project)
    first = []
    with between_read_and_write(monkeypatch, lambda: first.append(act(project, idempotency=key()))):
        again = act(project, idempotency=key())
    assert (again.replayed, first[0].replayed) == (True, False)
    assert (Job.objects.count(), JobEvent.objects.count(), IdempotencyKey.objects.count()) == (2, 2, 1)
    assert run_audit() == []


@pytest.mark.parametrize("act", [submit, lambda project, **kwargs: submit_many(project, 1, **kwargs)])
def test_a_key_that_another_request_binds_meanwhile_is_a_conflict(project, monkeypatch, act):
    submit(project)
    with (
        between_read_and_write(monkeypatch, lambda: act(project, idempotency=key(fingerprint="other"))),
        pytest.raises(IdempotencyConflict),
    ):
        act(project, idempotency=key())
    assert Job.objects.count() == 2


def test_a_key_that_is_about_to_be_bound_is_waited_for(project):
    """The other request rolls back, so this one binds the key: nothing is replayed that does not exist."""
    submit(project)
    answers = []
    waiter = threading.Thread(target=lambda: (answers.append(submit(project, idempotency=key())), connection.close()))
    bound = IdempotencyKey(principal="alice", operation="submit", key="k1", fingerprint="f1", result_id="rtj_x")
    bound.created_at = database_now()
    with transaction.atomic():
        bound.save()
        waiter.start()
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL statement_timeout = '60s'")
            cursor.execute(
                "DO $$ BEGIN WHILE NOT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND locktype = 'transactionid')"
                " LOOP PERFORM pg_sleep(0.01); END LOOP; END $$"
            )
        transaction.set_rollback(True)
    waiter.join(timeout=120)
    assert [answer.replayed for answer in answers] == [False]
    assert IdempotencyKey.objects.get().result_id == answers[0].job.job_ulid


def test_a_repetition_is_replayed_even_if_the_plan_would_refuse_it_now(project):
    first = submit(project, idempotency=key())
    bulk = submit_many(project, 2, idempotency=key("k2"))
    Plan.objects.update(max_timeout_seconds=1, max_queued=1)
    assert submit(project, idempotency=key()).job == first.job
    again = submit_many(project, 2, idempotency=key("k2"))
    assert (again.replayed, again.results) == (True, bulk.results)
    with pytest.raises(TimeoutAbovePlan):
        submit(project, idempotency=key("k3"))
    assert IdempotencyKey.objects.count() == 2


@pytest.mark.parametrize("act", [submit, lambda project, **kwargs: submit_many(project, 1, **kwargs)])
def test_the_last_place_of_a_quota_is_given_once(monkeypatch, act):
    project = limited_project(max_queued=64)
    submit_many(project, 63)
    with between_read_and_write(monkeypatch, lambda: submit(project)), pytest.raises(QueueFull):
        act(project, idempotency=key())
    assert Job.objects.count() == 64
    assert SubmitQuota.objects.get().room == 0
    assert not IdempotencyKey.objects.exists()  # what was refused uses up no key
    assert run_audit() == []


def test_a_plan_that_gets_a_quota_meanwhile_counts_the_job(monkeypatch):
    """The other transaction counts the waiting jobs before this one adds its own."""
    project = limited_project()
    submit_many(project, 3)

    def limit():
        Plan.objects.filter(pk=project.organization.plan_id).update(max_queued=64)
        submit(project)

    with between_read_and_write(monkeypatch, limit):
        submit(project)
    assert SubmitQuota.objects.get().room == 64 - 5
    assert run_audit() == []


@pytest.mark.parametrize("act", [submit, lambda project, **kwargs: submit_many(project, 2, **kwargs)])
def test_a_lane_that_is_deleted_meanwhile_is_made_again(project, monkeypatch, act):
    submit(project)
    cancellation.cancel(job_ulid=Job.objects.get().job_ulid, actor=ALICE, deadline_seconds=1)
    before = Lane.objects.get().pk
    LaneHead.objects.update(head_id=None, head_at=None)

    def prune() -> None:
        LaneHead.objects.all().delete()
        Lane.objects.all().delete()

    with between_read_and_write(monkeypatch, prune):
        act(project, idempotency=key())
    assert Lane.objects.get().pk != before
    assert claimed(WorkerFactory()).job.lane_id == Lane.objects.get().pk
    assert IdempotencyKey.objects.count() == 1


def test_a_write_that_fails_leaves_nothing(project, monkeypatch):
    """Of a batch all or nothing: the second event violates a constraint, so neither jobs nor the key remain."""
    submit(project)
    plain = transitions.record_event

    def twice(uow, job, *args, **kwargs):
        plain(uow, job, *args, **kwargs)
        uow.events[-1].seq = 1 if len(uow.events) == 1 else 2
        uow.events[-1].to_state = "queued" * 10  # longer than the column

    monkeypatch.setattr(transitions, "record_event", twice)
    with pytest.raises(Exception, match="too long"):
        submit_many(project, 3, idempotency=key())
    assert (Job.objects.count(), IdempotencyKey.objects.count()) == (1, 0)
