"""Idle lanes, queues and limits are deleted, and no job is lost by it."""

import threading
from datetime import timedelta

import pytest
from django.db import OperationalError, connection
from django.db.models import F

from leases.models import Lane, LaneHead, LaneQueue, Limit, LimitSlot
from leases.scheduling import limits
from leases.scheduling.pruning import IDLE_FOR, IdlePruner, prune_idle_lanes
from orchestrator.audit.runner import run_audit
from orchestrator.core.unit_of_work import UnitOfWork
from orchestrator.processes.scheduler import SLOW_EVERY, Scheduler
from orchestrator.services import bulk_submit, claiming, job_end, retries, transitions
from orchestrator.services import submission as submission_operations
from orchestrator.services.concurrency import ConcurrencyGroup
from runtime_jobs.errors import TooManyConcurrencyKeys
from runtime_jobs.models import Job
from runtime_jobs.states import FailureReason
from tests.factories import (
    ALICE,
    POLICY,
    OrganizationFactory,
    PlanFactory,
    ProjectFactory,
    WorkerFactory,
    claimed,
    limited,
    offer,
    spec,
    submission,
    submitted,
)

pytestmark = pytest.mark.django_db(transaction=True)

NOW = timedelta(0)


@pytest.fixture
def worker(db):
    return WorkerFactory(capacity=200)


def prune(rounds: int = 3) -> int:
    """Delete everything that is idle now: the first round only marks it."""
    return sum(IdlePruner().advance(batches=100, idle_for=NOW) for _ in range(rounds))


def finish(claim, worker) -> None:
    job_end.fail(lease_ulid=claim.lease.lease_ulid, worker=worker, reason=FailureReason.COMMAND_FAILED)


def drain(worker) -> None:
    while (claim := claiming.claim(worker=worker, offer=offer(worker))) is not None:
        finish(claim, worker)
    claiming.claim(worker=worker, offer=offer(worker))  # finds nothing, and writes that down


def tables() -> tuple[int, ...]:
    return tuple(model.objects.count() for model in (Lane, LaneQueue, Limit, LimitSlot))


def test_keys_addresses_lanes_and_queues_that_idle_are_deleted(worker):
    project = ProjectFactory()
    unclaimed = PlanFactory(name="unclaimed", one_per_address=True)
    other = ProjectFactory(organization=OrganizationFactory(slug="nobody", plan=unclaimed))
    for number in range(12):
        submitted(project, group=ConcurrencyGroup(f"branch-{number}"))
    submitted(other)
    assert tables() == (13, 2, 13, 13)
    assert prune() == 0
    drain(worker)
    assert prune() == 13 + 2 + 13
    assert tables() == (0, 0, 0, 0)
    submitted(project, group=ConcurrencyGroup("branch-1"))
    assert claimed(worker).job.concurrency_key == "branch-1"
    assert run_audit() == []


def test_limits_that_somebody_has_set_stay(worker):
    project = ProjectFactory(organization=OrganizationFactory(plan=PlanFactory(name="free", max_active=3)))
    org_slug = project.organization.slug
    limited(org_slug, max_active=7)
    submitted(project)
    drain(worker)
    prune()
    assert tables() == (0, 0, 2, 10)


def test_nothing_goes_before_its_time(worker):
    submitted()
    drain(worker)
    for _ in range(3):
        IdlePruner().advance(idle_for=timedelta(minutes=1))
    assert Lane.objects.count() == 1


def test_a_lane_that_was_used_again_has_not_idled(worker):
    project = ProjectFactory()
    submitted(project)
    drain(worker)
    prune(1)
    assert LaneHead.objects.get().idle_since is not None
    submitted(project)
    assert LaneHead.objects.get().idle_since is None


@pytest.mark.parametrize("state", ["queued", "blocked", "leased", "executing"])
def test_a_lane_with_a_job_that_may_still_move_stays(worker, state):
    project = ProjectFactory()
    job = submitted(project)
    if state == "blocked":
        job = submitted(project, depends_on=(job,), group=ConcurrencyGroup("k"))
    elif state != "queued":
        claimed(worker, acknowledge=state == "leased")
    kept = job.lane_id
    waiting = Job.objects.queued().values("lane_id")
    LaneHead.objects.filter(lane_id=kept).exclude(head_id=None).exclude(lane_id__in=waiting).update(
        head_id=None, head_at=None, scan_from=2**63 - 1
    )
    prune()
    assert Lane.objects.filter(pk=kept).exists()


def test_the_scheduler_process_prunes(worker):
    submitted()
    drain(worker)
    scheduler = Scheduler(period=1)
    try:
        assert scheduler.round()
        LaneHead.objects.update(idle_since=F("idle_since") - IDLE_FOR)
        scheduler.rounds = SLOW_EVERY
        assert scheduler.round()
    finally:
        connection.close()  # with it goes the leader's lock
    assert tables() == (0, 0, 0, 0)


def test_batches_are_bounded_and_go_on_where_the_last_one_ended(worker):
    project = ProjectFactory()
    for number in range(7):
        submitted(project, group=ConcurrencyGroup(f"branch-{number}"))
    drain(worker)
    prune(1)
    after, deleted = prune_idle_lanes(batch_size=3, idle_for=NOW)
    assert (deleted, Lane.objects.count()) == (3, 4)
    after, deleted = prune_idle_lanes(batch_size=3, idle_for=NOW, after=after)
    assert (deleted, Lane.objects.count()) == (3, 1)
    after, deleted = prune_idle_lanes(batch_size=3, idle_for=NOW, after=after)
    assert (after, deleted, Lane.objects.count()) == (None, 1, 0)


def closing(act):
    def run():
        try:
            act()
        finally:
            connection.close()

    return run


@pytest.mark.parametrize("way", ["submit", "blocked", "retry"])
def test_a_lane_that_is_pruned_between_look_up_and_use_loses_no_job(worker, way, monkeypatch):
    """The submit has its lane, then the lane is deleted, then the submit ends."""
    project = ProjectFactory()
    first = submitted(project)
    drain(worker)
    prune(1)
    other = submitted(ProjectFactory(organization=project.organization, slug="api")) if way == "blocked" else None
    pruned = []
    # A submit reads its lane with its tenant; a retry looks it up by itself.
    module, name = (transitions, "get_lane") if way == "retry" else (submission_operations, "load_context_of_job")
    plain = getattr(module, name)

    def look_up(*args, **kwargs):
        found = plain(*args, **kwargs)
        if not pruned:
            thread = threading.Thread(target=closing(lambda: pruned.append(prune_idle_lanes(idle_for=NOW)[1])))
            thread.start()
            thread.join(timeout=60)
        return found

    monkeypatch.setattr(module, name, look_up)
    if way == "submit":
        job = submitted(project)
    elif way == "blocked":
        job = submitted(project, depends_on=(other,))
    else:
        job = retries.retry(job_ulid=first.job_ulid, actor=ALICE, reason="again").job
    assert pruned == [1]
    if way == "blocked":
        assert claimed(worker).job == other
        lease = other.leases.get()
        job_end.fail(lease_ulid=lease.lease_ulid, worker=worker, reason=FailureReason.COMMAND_FAILED)
        assert Lane.objects.filter(pk=Job.objects.get(pk=job.pk).lane_id).exists()
    else:
        assert claimed(worker).job.job_ulid == job.job_ulid
    assert run_audit() == []


@pytest.mark.parametrize("waits_for", ["a worker", "another job"])
def test_a_prune_meets_a_submit_that_is_about_to_commit(worker, monkeypatch, waits_for):
    """A blocked job writes no row of its lane: nothing but the guard says that it is on its way."""
    project = ProjectFactory()
    submitted(project)
    drain(worker)
    prune(1)
    on = ()
    if waits_for == "another job":
        on = (submitted(ProjectFactory(organization=project.organization, slug="api")),)
    pruned = []
    plain = UnitOfWork.write

    def write(uow):
        plain(uow)
        thread = threading.Thread(target=closing(lambda: pruned.append(prune_idle_lanes(idle_for=NOW)[1])))
        thread.start()
        thread.join(timeout=60)

    with monkeypatch.context() as patched:
        patched.setattr(UnitOfWork, "write", write)
        job = submitted(project, depends_on=on)
    assert pruned == [0]
    assert claimed(worker).job.job_ulid == (on[0] if on else job).job_ulid
    assert Lane.objects.filter(pk=job.lane_id).exists()
    assert run_audit() == []


def submit_again_and_again(project, group) -> None:
    """Here lanes go at once, not after an hour: a submit may meet that at each of its tries. Then its client repeats it."""
    for _ in range(20):
        try:
            submitted(project, group=group)
        except OperationalError:
            continue
        return
    pytest.fail("twenty submits in a row met a prune")


def test_claims_submits_and_prunes_at_the_same_time_lose_nothing(worker):
    project = ProjectFactory()
    stop, failures = threading.Event(), []

    def again_and_again(act):
        def run():
            try:
                while not stop.is_set():
                    act()
            except Exception as error:  # noqa: BLE001 - shown below
                failures.append(error)
            finally:
                connection.close()

        return run

    def claim():
        found = claiming.claim(worker=worker, offer=offer(worker))
        if found is not None:
            finish(found, worker)

    pruner = IdlePruner()
    acts = [claim, claim, lambda: pruner.advance(batches=5, idle_for=NOW)]
    threads = [threading.Thread(target=again_and_again(act)) for act in acts]
    for thread in threads:
        thread.start()
    try:
        for number in range(120):
            submit_again_and_again(project, ConcurrencyGroup(f"branch-{number % 7}") if number % 2 else None)
    finally:
        stop.set()
        for thread in threads:
            thread.join(timeout=60)
    assert failures == []
    drain(worker)
    assert Job.objects.filter(state="failed").count() == 120
    assert run_audit() == []


def test_an_organization_has_a_bounded_number_of_concurrency_keys(worker, monkeypatch):
    monkeypatch.setattr(limits, "MAX_CONCURRENCY_KEYS", 3)
    project = ProjectFactory()
    for number in range(3):
        submitted(project, group=ConcurrencyGroup(f"branch-{number}"))
    with pytest.raises(TooManyConcurrencyKeys) as caught:
        submitted(project, group=ConcurrencyGroup("one-more"))
    assert caught.value.facts == {"limit": 3, "current": 3, "retry_after": 60}
    submitted(project, group=ConcurrencyGroup("branch-0"))
    submitted(ProjectFactory(organization=OrganizationFactory(slug="other")), group=ConcurrencyGroup("one-more"))
    drain(worker)
    prune()
    submitted(project, group=ConcurrencyGroup("one-more"))


def test_one_key_too_many_stops_no_other_job_of_a_bulk(monkeypatch):
    monkeypatch.setattr(limits, "MAX_CONCURRENCY_KEYS", 2)
    project = ProjectFactory()
    entries = [submission(project, spec(), group=ConcurrencyGroup(key)) for key in ("a", "b", "c", "a")] + [
        submission(project, spec())
    ]
    outcome = bulk_submit.submit_many(entries, policy_for=lambda _: POLICY, default_pool="shared-linux", actor=ALICE)
    codes = [getattr(one, "code", "ok") for one in outcome.results]
    assert codes == ["ok", "ok", "too_many_concurrency_keys", "ok", "ok"]
    assert run_audit() == []
