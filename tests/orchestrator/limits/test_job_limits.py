"""Limits hold exactly under concurrent claims; a job that waits for a limit starts when there is a free slot."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from django.db import connection, transaction

from leases.advisory_locks import JOBS_OF_ADDRESS, advisory_xact_lock
from leases.models import (
    Lane,
    LaneHead,
    LaneProfile,
    LaneQueue,
    Lease,
    Limit,
    LimitKind,
    LimitScope,
    LimitSlot,
    QueueHead,
)
from leases.scheduling.claims import claim_jobs
from leases.scheduling.limits import LimitTarget, set_limit
from leases.scheduling.periodic import advance_cursor, stale_lanes
from orchestrator.core import unit_of_work
from orchestrator.services import cancellation, expiry, heartbeat, job_end
from orchestrator.services import claiming as service_claiming
from runtime_jobs.db_time import database_now
from runtime_jobs.models import Job, OperatorEvent
from runtime_jobs.states import LEASED_STATES, FailureReason
from tests.factories import (
    OPERATOR,
    OrganizationFactory,
    PlanFactory,
    ProjectFactory,
    WorkerFactory,
    claimed,
    limited,
    offer,
    submitted,
    submitted_steps,
)
from tests.live_server import eventually
from tests.orchestrator.services.test_races import together

pytestmark = pytest.mark.django_db

ORG = "sandtrace"


@pytest.fixture
def project(db):
    return ProjectFactory(organization=OrganizationFactory(slug=ORG))


@pytest.fixture
def worker(db):
    return WorkerFactory(capacity=200)


def take(worker):
    return service_claiming.claim(worker=worker, offer=offer(worker))


def finish(claim) -> None:
    job_end.fail(lease_ulid=claim.lease.lease_ulid, worker=claim.lease.worker, reason=FailureReason.WORKER_ERROR)


def running() -> int:
    return Job.objects.filter(state__in=LEASED_STATES).count()


def test_no_more_run_than_the_limit_and_the_next_goes_when_one_ends(project, worker):
    limited(ORG, max_active=2)
    for _ in range(4):
        submitted(project)
    first, second = take(worker), take(worker)
    assert take(worker) is None
    assert Limit.objects.get().waiting
    finish(first)
    assert take(worker) is not None
    assert take(worker) is None
    finish(second)
    assert take(worker) is not None
    assert running() == 2


def test_a_full_tenant_does_not_hold_up_another(project, worker):
    limited(ORG, max_active=1)
    for slug in [f"p{number}" for number in range(20)]:
        submitted(ProjectFactory(organization=project.organization, slug=slug))
    other = submitted(ProjectFactory(organization=OrganizationFactory(slug="other")))
    take(worker)
    assert take(worker).job.pk == other.pk, "the whole tenant is passed in one step"


def test_the_narrower_limit_holds_too(project, worker):
    limited(ORG, max_active=5)
    limited(ORG, "runtime", max_active=1)
    for _ in range(3):
        submitted(project)
    claim = take(worker)
    assert take(worker) is None
    assert LimitSlot.objects.filter(job_id=claim.job.pk).count() == 2
    finish(claim)
    assert take(worker) is not None


def test_every_way_to_lose_a_lease_gives_the_place_back(project, worker):
    limited(ORG, max_active=1)
    for _ in range(3):
        submitted(project)
    released = take(worker)
    heartbeat.release(lease_ulid=released.lease.lease_ulid, worker=worker)
    expired = take(worker)
    assert expired.job.pk == released.job.pk
    expiry.expire(job_ulid=expired.job.job_ulid, now=expired.lease.expires_at)
    canceled = take(worker)
    assert canceled is not None
    cancellation.cancel(job_ulid=canceled.job.job_ulid, actor=OPERATOR, deadline_seconds=0)
    expiry.force_cancel(job_ulid=canceled.job.job_ulid)
    assert take(worker) is not None


def test_a_new_limit_counts_what_runs_already(project, worker):
    for _ in range(5):
        submitted(project)
    claims = [take(worker) for _ in range(3)]
    limited(ORG, max_active=2)
    assert take(worker) is None
    finish(claims[0])
    assert take(worker) is None, "two still run"
    finish(claims[1])
    assert take(worker) is not None
    assert running() == 2


def test_a_lowered_limit_is_reached_as_jobs_end_and_a_raised_one_at_once(project, worker):
    limited(ORG, max_active=3)
    for _ in range(8):
        submitted(project)
    claims = [take(worker) for _ in range(3)]
    limited(ORG, max_active=1)
    for claim in claims[:2]:
        finish(claim)
        assert take(worker) is None
    finish(claims[2])
    last = take(worker)
    assert last is not None
    assert take(worker) is None
    limited(ORG, max_active=4)
    assert [take(worker) is not None for _ in range(4)] == [True, True, True, False]


def test_a_lifted_limit_holds_nobody(project, worker):
    limited(ORG, max_active=0)
    submitted(project)
    assert take(worker) is None
    limited(ORG, max_active=None)
    assert take(worker) is not None
    assert (Limit.objects.count(), LimitSlot.objects.count()) == (0, 0)
    assert not LaneQueue.objects.exclude(limits=[]).exists()


def test_a_limit_leaves_an_event_of_who_and_why(project):
    limited(ORG, max_active=3)
    limited(ORG, max_active=2)
    event = OperatorEvent.objects.latest("id")
    assert (event.action, event.target) == ("limit.set", f"organization:{ORG}")
    assert (event.before["max_active"], event.after["max_active"], event.reason) == (3, 2, "test")


@pytest.mark.parametrize("most", [1, 7])
@pytest.mark.django_db(transaction=True)
def test_claimers_at_once_never_exceed_it(most):
    project = ProjectFactory(organization=OrganizationFactory(slug=ORG))
    limited(ORG, max_active=most)
    for _ in range(60):
        submitted(project)
    workers = [WorkerFactory(capacity=50) for _ in range(8)]
    seen: list[int] = []

    def work(worker) -> int:
        ended = 0
        for _ in range(400):
            claim = take(worker)
            if claim is None:
                if not Job.objects.filter(state="queued").exists():
                    break
                continue
            seen.append(Lease.objects.open().count())
            finish(claim)
            ended += 1
        return ended

    ended = together(*(lambda worker=worker: work(worker) for worker in workers))
    assert sum(ended) == 60
    assert max(seen) <= most
    assert not LimitSlot.objects.filter(job_id__isnull=False).exists()
    assert LimitSlot.objects.count() == most


@pytest.mark.django_db(transaction=True)
def test_a_job_that_is_submitted_while_a_claim_finds_the_lane_empty_is_found():
    """The claim may not call a lane empty while a submit that saw it otherwise has not committed."""
    project, worker = ProjectFactory(), WorkerFactory(capacity=50)
    submitted(project)
    take(worker)
    entered, go_on = threading.Event(), threading.Event()

    def submit_slowly() -> None:
        with transaction.atomic():
            lane = Lane.objects.get()
            job = Job.objects.get()
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT release_and_enqueue('{}', %s::bigint[], %s::bigint[], %s::timestamptz[], '{}')",
                    [[job.pk + 10**6], [lane.pk], [job.created_at]],
                )
            entered.set()
            assert go_on.wait(60)
        connection.close()

    thread = threading.Thread(target=submit_slowly)
    thread.start()
    assert entered.wait(60)
    assert take(worker) is None
    go_on.set()
    thread.join(60)
    assert LaneHead.objects.get().head_id is not None, "nobody called it empty"
    assert QueueHead.objects.get().head_id is not None


def test_the_clock_moves_a_bound_that_stayed_behind(project, worker):
    submitted(project)
    later = submitted(project)
    claimed(worker)
    LaneHead.objects.update(head_id=Job.objects.earliest("pk").pk, scan_from=0)
    [lane] = stale_lanes()
    advance_cursor(lane)
    assert LaneHead.objects.get().scan_from == later.pk
    assert stale_lanes() == []


@pytest.mark.django_db(transaction=True)
def test_a_queue_that_is_made_while_a_limit_is_set_has_it():
    project = ProjectFactory(organization=OrganizationFactory(slug=ORG))
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            set_limit(LimitKind.ORGANIZATION, LimitTarget.of_organization(ORG), set_at=database_now(), max_active=1)
            coming = pool.submit(lambda: [submitted(project), connection.close()])
            eventually(somebody_waits)
        coming.result(60)
    assert LaneQueue.objects.get().limits == [Limit.objects.get().pk]


@pytest.mark.django_db(transaction=True)
def test_a_job_that_is_claimed_while_its_addresss_limit_is_made_is_counted():
    """The first unclaimed job from an address creates the limit; a job of a team from that address starts."""
    team = ProjectFactory(organization=OrganizationFactory(slug=ORG))
    submitted(team)
    worker = WorkerFactory()
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            advisory_xact_lock(JOBS_OF_ADDRESS, "127.0.0.1")
            set_limit(
                LimitKind.SOURCE_ADDRESS,
                LimitTarget(LimitScope.ADDRESS, "", "127.0.0.1"),
                set_at=database_now(),
                max_active=1,
            )
            coming = pool.submit(lambda: [take(worker), connection.close()])
            eventually(somebody_waits)
        coming.result(60)
    assert LimitSlot.objects.filter(job_id__isnull=False, retired=True).count() == 1


@pytest.mark.django_db(transaction=True)
def test_an_addresss_limit_waits_for_the_claims_that_are_under_way():
    submitted(ProjectFactory(organization=OrganizationFactory(slug=ORG)))
    worker = WorkerFactory()
    plan = PlanFactory(name="unclaimed", priority=0, one_per_address=True)
    unclaimed = ProjectFactory(organization=OrganizationFactory(slug="unclaimed", plan=plan))
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            assert claim_jobs(worker, offer(worker), limit=1, acknowledge=True).leases
            coming = pool.submit(lambda: [submitted(unclaimed), connection.close()])
            eventually(somebody_waits)
            transaction.set_rollback(True)
        coming.result(60)


@pytest.mark.django_db(transaction=True)
def test_a_place_that_a_claim_has_in_its_hands_is_not_given_to_another_job():
    """No session sees that a slot was taken before the claim commits, and none waits for it."""
    with transaction.atomic():
        limit = set_limit(LimitKind.ORGANIZATION, LimitTarget.of_organization(ORG), set_at=database_now(), max_active=1)
    LimitSlot.objects.create(limit_id=limit.pk, n=-8, job_id=8, retired=True)

    def hand_on():
        with connection.cursor() as cursor:
            cursor.execute("SELECT reassign_overflow_slots(%s)", [limit.pk])
        connection.close()

    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            LimitSlot.objects.filter(n=0).update(job_id=7)
            pool.submit(hand_on).result(60)
        assert dict(LimitSlot.objects.values_list("n", "job_id")) == {0: 7, -8: 8}
        LimitSlot.objects.filter(n=0).update(job_id=None)
        pool.submit(hand_on).result(60)
    assert dict(LimitSlot.objects.values_list("n", "job_id")) == {0: 8}


@pytest.mark.django_db(transaction=True)
def test_who_lifts_a_limit_has_nothing_yet_that_the_claims_want_for_which_it_waits(monkeypatch):
    project = ProjectFactory(organization=OrganizationFactory(slug=ORG))
    other = ProjectFactory(organization=project.organization, slug="other")
    for where in (project, other, other, other):
        submitted(where)
    paused = LimitTarget(LimitScope.PROJECT, ORG, project.slug)
    limited(paused, kind=LimitKind.PAUSE, max_active=0)
    worker = WorkerFactory()
    take(worker)
    assert LaneHead.objects.filter(blocked_by__isnull=False).exists()
    monkeypatch.setattr(unit_of_work, "MAX_ATTEMPTS", 1)  # a deadlock would be repeated, unseen
    with ThreadPoolExecutor(2) as pool:
        with transaction.atomic():
            # Stops the claim after it took the job and the lock of the queue, and before it writes the queue.
            advisory_xact_lock(JOBS_OF_ADDRESS, "127.0.0.1")
            claiming = pool.submit(
                lambda: [claim_jobs(worker, offer(worker), limit=1, acknowledge=True), connection.close()]
            )
            eventually(somebody_waits)
            resuming = pool.submit(lambda: [limited(paused, kind=LimitKind.PAUSE), connection.close()])
            eventually(lambda: somebody_waits(sessions=2))
        [lease] = claiming.result(60)[0].leases
        resuming.result(60)
    assert lease.job.project_slug == "other"
    assert take(worker).job.project_slug == project.slug


def test_a_type_that_is_held_does_not_hide_the_others_however_many_its_profiles(project, worker):
    """More of them than a claim looks at queues."""
    first = submitted(project)
    behind_them = submitted_steps(project)
    for number in range(20):
        queue = LaneQueue.objects.get(pk=Lane.objects.get(pk=first.lane_id).queue_id)
        profile = LaneProfile.objects.get(pk=queue.profile_id)
        profile.pk, profile.requirements = None, [*profile.requirements, f"z{number:02}"]
        profile.save(force_insert=True)
        queue.pk, queue.profile_id = None, profile.pk
        queue.save(force_insert=True)
    limited(LimitTarget(LimitScope.JOB_TYPE, "", "runtime"), kind=LimitKind.PAUSE, max_active=0)
    wide = offer(worker, job_types=("runtime", "steps"))
    wide = replace(wide, offers=wide.offers | {f"z{number:02}" for number in range(20)})
    assert service_claiming.claim(worker=worker, offer=wide).job.pk == behind_them.pk


def somebody_waits(what: str = "advisory", sessions: int = 1) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE %s IN (wait_event, wait_event_type) AND datname = current_database()",
            [what],
        )
        return cursor.fetchone()[0] >= sessions
