"""The claim as document 002 has it: priorities, one free job of an organization, one unclaimed of an address."""

import pytest

from leases.models import LimitSlot
from leases.scheduling.plan_limits import organizations_with_changed_priority
from orchestrator.audit.runner import run_audit
from orchestrator.maintenance.queues import sweep_scheduling
from orchestrator.services import claiming, job_end, priority
from orchestrator.services import submission as service_submission
from runtime_jobs.db_time import database_now
from runtime_jobs.models import Job, JobEvent, Plan
from runtime_jobs.priorities import PRIORITIES
from runtime_jobs.states import LEASED_STATES, FailureReason
from tests.factories import (
    ALICE,
    OPERATOR,
    POLICY,
    OrganizationFactory,
    PlanFactory,
    ProjectFactory,
    WorkerFactory,
    offer,
    spec,
    submission,
)
from tests.orchestrator.services.test_races import together

pytestmark = pytest.mark.django_db


def project(org: str, tier: str):
    limits = {"free": {"max_active": 1}, "unclaimed": {"one_per_address": True}}.get(tier, {})
    plan = PlanFactory(name=tier, priority=PRIORITIES[tier], **limits)
    return ProjectFactory(organization=OrganizationFactory(slug=org, plan=plan))


def submit(where, address: str = "192.0.2.1", now=None):
    given = submission(where, spec(), source_address=address)
    return service_submission.submit(given, policy=POLICY, default_pool="shared-linux", actor=ALICE, now=now).job


@pytest.fixture
def worker(db):
    """In a pool that serves the older job first: the document knows no turns."""
    return WorkerFactory(capacity=200, pool__policy="fifo")


def take(worker):
    return claiming.claim(worker=worker, offer=offer(worker))


def taken(worker) -> list[str]:
    """All that can be had now, in order."""
    claims = iter(lambda: take(worker), None)
    return [claim.job.job_ulid for claim in claims]


def finish(job, worker) -> None:
    lease = Job.objects.get(pk=job.pk).leases.get(state="active")
    job_end.fail(lease_ulid=lease.lease_ulid, worker=worker, reason=FailureReason.WORKER_ERROR)


def ids(*jobs) -> list[str]:
    return [job.job_ulid for job in jobs]


def test_higher_priority_goes_first(worker):
    free, team, rich = submit(project("a", "free")), submit(project("b", "team")), submit(project("c", "enterprise"))
    assert taken(worker) == ids(rich, team, free)


def test_the_older_goes_first_and_of_the_same_moment_the_one_that_came_first(worker):
    moment = database_now()
    jobs = [submit(project(org, "team"), now=moment) for org in ("a", "b", "a", "c")]
    assert taken(worker) == ids(*jobs)


def test_one_free_job_of_an_organization_at_a_time(worker):
    first, second, other = submit(project("a", "free")), submit(project("a", "free")), submit(project("b", "free"))
    assert taken(worker) == ids(first, other)
    finish(first, worker)
    assert taken(worker) == ids(second)


def test_a_running_job_of_any_priority_counts(worker):
    """The organization was a team's when the first one started."""
    organization = project("a", "team").organization
    rich = submit(project("a", "team"))
    assert taken(worker) == ids(rich)
    organization.plan = project("b", "free").organization.plan
    organization.save()
    sweep_scheduling()
    waiting = submit(ProjectFactory(organization=organization))
    assert taken(worker) == []
    finish(rich, worker)
    assert taken(worker) == ids(waiting)


def test_jobs_of_priority_200_are_counted_and_not_held(worker):
    free = project("a", "free")
    first, waits = submit(free), submit(free)
    assert taken(worker) == ids(first)
    lifted = submit(free)
    priority.prioritize(job_ulid=lifted.job_ulid, priority=200, actor=OPERATOR, reason="claimed")
    assert taken(worker) == ids(lifted)
    finish(first, worker)
    assert taken(worker) == [], "the lifted one still runs"
    finish(lifted, worker)
    assert taken(worker) == ids(waits)
    assert run_audit() == []


def test_one_unclaimed_job_of_an_address_at_a_time(worker):
    one, two = project("a", "unclaimed"), project("b", "unclaimed")
    first, same, elsewhere = submit(one), submit(two), submit(two, address="192.0.2.2")
    assert taken(worker) == ids(first, elsewhere)
    finish(first, worker)
    assert taken(worker) == ids(same)


def test_a_claimed_job_from_the_address_counts_too(worker):
    team = submit(project("t", "team"))
    waits = submit(project("a", "unclaimed"))
    later = submit(project("t", "team"))
    assert taken(worker) == ids(team, later)
    finish(team, worker)
    assert taken(worker) == []
    finish(later, worker)
    assert taken(worker) == ids(waits)
    assert run_audit() == []


def test_what_ran_before_the_first_unclaimed_job_came_counts(worker):
    team = submit(project("t", "team"))
    assert taken(worker) == ids(team)
    waits = submit(project("a", "unclaimed"))
    assert taken(worker) == []
    finish(team, worker)
    assert taken(worker) == ids(waits)


def test_a_blocked_job_is_skipped_for_a_later_one(worker):
    running, blocked = submit(project("a", "free")), submit(project("a", "free"))
    later = submit(project("b", "free"))
    assert taken(worker) == ids(running, later)
    assert Job.objects.get(pk=blocked.pk).state == "queued"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("tier", ["free", "unclaimed"])
def test_claims_at_the_same_moment_respect_both(tier):
    for number in range(6):
        submit(project("a" if tier == "free" else f"org-{number}", tier))
    workers = [WorkerFactory(capacity=50) for _ in range(6)]
    for _ in range(6):
        claims = [claim for claim in together(*[lambda one=one: take(one) for one in workers]) if claim]
        assert len(claims) <= 1
        assert Job.objects.filter(state__in=LEASED_STATES).count() == 1
        held = Job.objects.get(state__in=LEASED_STATES).leases.get(state="active")
        job_end.fail(lease_ulid=held.lease_ulid, worker=held.worker, reason=FailureReason.WORKER_ERROR)
    assert not Job.objects.filter(state="queued").exists()
    assert not LimitSlot.objects.filter(job_id__isnull=False).exists()
    assert run_audit() == []


def test_a_plan_that_changes_is_followed(worker):
    free = project("a", "free")
    for _ in range(4):
        submit(free)
    assert len(taken(worker)) == 1
    Plan.objects.filter(name="free").update(max_active=3)
    sweep_scheduling()
    assert len(taken(worker)) == 2
    Plan.objects.filter(name="free").update(max_active=None)
    sweep_scheduling()
    assert len(taken(worker)) == 1
    assert run_audit() == []


def test_a_claim_lifts_what_waits_but_not_what_asked_for_less(worker):
    unclaimed, free = project("a", "unclaimed"), project("b", "free")
    running, waits = submit(unclaimed), submit(unclaimed)
    modest = submission(ProjectFactory(organization=unclaimed.organization), spec(), priority=-1)
    modest = service_submission.submit(modest, policy=POLICY, default_pool="shared-linux", actor=ALICE).job
    other = submit(free, address="192.0.2.2")
    assert take(worker).job.pk == other.pk
    assert take(worker).job.pk == running.pk
    organization = unclaimed.organization
    organization.plan, organization.claimed_at = free.organization.plan, database_now()
    organization.save(update_fields=["plan", "claimed_at"])
    sweep_scheduling()
    priorities = {job.pk: job.priority for job in Job.objects.all()}
    assert (priorities[running.pk], priorities[waits.pk], priorities[modest.pk]) == (0, 100, -1)
    assert JobEvent.objects.filter(event_type="job.prioritized").count() == 1
    finish(running, worker)
    assert taken(worker) == ids(waits), "one free job of an organization"
    organization.plan = PlanFactory(name="worse", priority=50)
    organization.save(update_fields=["plan"])
    sweep_scheduling()
    assert Job.objects.get(pk=waits.pk).priority == 100
    assert not organizations_with_changed_priority()
