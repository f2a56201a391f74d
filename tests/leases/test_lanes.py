"""Which job a worker gets, and what lanes know of themselves."""

import pytest

from leases.models import LaneHead, QueueHead
from orchestrator.services import cancellation, claiming, heartbeat
from runtime_jobs.models import Job
from tests.factories import (
    ALICE,
    OrganizationFactory,
    PlanFactory,
    ProjectFactory,
    WorkerFactory,
    claimed,
    offer,
    submitted,
)

pytestmark = pytest.mark.django_db


def project(org: str = "sandtrace", slug: str = "web", priority: int = 200):
    plan = PlanFactory(name=f"plan-{priority}", priority=priority)
    return ProjectFactory(organization=OrganizationFactory(slug=org, plan=plan), slug=slug)


def taken(worker, **changes):
    claim = claiming.claim(worker=worker, offer=offer(worker, **changes))
    return claim.job.job_ulid if claim else None


@pytest.fixture
def worker():
    return WorkerFactory(capacity=50)


def test_like_jobs_share_a_lane_and_others_do_not():
    first, second = submitted(project()), submitted(project())
    other = submitted(project(slug="api"))
    urgent = submitted(project(org="rich", priority=300))
    lanes = [Job.objects.get(pk=job.pk).lane_id for job in (first, second, other, urgent)]
    assert lanes[0] == lanes[1]
    assert len(set(lanes)) == 3


def test_higher_priority_first_then_the_older_job_across_tenants(worker):
    order = [
        submitted(project("poor", priority=50)),
        submitted(project("a")),
        submitted(project("b")),
        submitted(project("a")),
        submitted(project("rich", priority=300)),
    ]
    expected = [order[place].job_ulid for place in (4, 1, 2, 3, 0)]
    assert [taken(worker) for _ in order] == expected
    assert taken(worker) is None


def test_lanes_of_one_tenant_take_turns_by_age(worker):
    jobs = [submitted(project(slug=slug)) for slug in ("web", "api", "web", "api")]
    assert [taken(worker) for _ in jobs] == [job.job_ulid for job in jobs]


def test_what_this_worker_cannot_run_does_not_hold_up_what_it_can(worker):
    submitted(project("a"), allow_exec=False)
    plain = submitted(project("b"))
    assert taken(worker, offers=frozenset({"linux"})) == plain.job_ulid
    assert taken(worker, offers=frozenset({"linux"})) is None
    assert taken(worker) is not None


def test_a_worker_that_a_job_excludes_gets_the_next_and_the_lane_stays_open(worker):
    first, second = submitted(project()), submitted(project())
    Job.objects.filter(pk=first.pk).update(excluded_workers=[worker.worker_id])
    assert taken(worker) == second.job_ulid
    assert taken(worker) is None
    assert taken(WorkerFactory()) == first.job_ulid


def test_an_empty_lane_leaves_the_choice_and_comes_back(worker):
    submitted(project())
    taken(worker)
    assert taken(worker) is None
    assert not LaneHead.objects.filter(head_id__isnull=False).exists()
    assert not QueueHead.objects.filter(head_id__isnull=False).exists()
    again = submitted(project())
    assert taken(worker) == again.job_ulid


def test_a_job_that_goes_back_to_the_queue_is_the_first_again(worker):
    first, _ = submitted(project()), submitted(project())
    claim = claimed(worker)
    taken(worker)
    assert taken(worker) is None
    heartbeat.release(lease_ulid=claim.lease.lease_ulid, worker=worker)
    assert taken(worker) == first.job_ulid


def test_canceled_jobs_are_passed(worker):
    jobs = [submitted(project()) for _ in range(3)]
    for job in jobs[:2]:
        cancellation.cancel(job_ulid=job.job_ulid, actor=ALICE, deadline_seconds=30)
    assert taken(worker) == jobs[2].job_ulid
