"""In a pool that shares organizations take turns by weight; elsewhere the older job goes first. Waiting lifts a job."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from django.core.exceptions import ValidationError
from django.db import connection, transaction

from leases.models import Lane, LaneQueue, LaneShare, LimitKind, LimitScope, QueueHead
from leases.scheduling import periodic
from leases.scheduling.fair_share import enable_fair_share as begin_to_share
from leases.scheduling.limits import LimitTarget
from orchestrator.audit.runner import run_audit
from orchestrator.core.cause import Cause
from orchestrator.maintenance.queues import sweep_scheduling
from orchestrator.services import claiming, pools
from orchestrator.services import submission as service_submission
from orchestrator.services.priority import prioritize
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import PriorityForbidden
from runtime_jobs.models import Job, Organization, Plan
from runtime_jobs.plans import plan_of_tier
from tests.factories import (
    ALICE,
    OPERATOR,
    POLICY,
    OrganizationFactory,
    PlanFactory,
    PoolFactory,
    ProjectFactory,
    WorkerFactory,
    limited,
    offer,
    queue_head,
    spec,
    submission,
    submitted,
)
from tests.live_server import eventually
from tests.orchestrator.limits.test_job_limits import somebody_waits
from workers.models import Pool

pytestmark = pytest.mark.django_db

WHY = {"cause": Cause(OPERATOR, "test")}
POOL = "shared-linux"


def project(org: str, priority: int = 200, weight: int = 1):
    plan = PlanFactory(name=f"plan-{priority}-{weight}", priority=priority, weight=weight)
    return ProjectFactory(organization=OrganizationFactory(slug=org, plan=plan))


def submit(where, number: int, now=None) -> None:
    for _ in range(number):
        given = submission(where, spec())
        service_submission.submit(given, policy=POLICY, default_pool=POOL, actor=ALICE, now=now)


@pytest.fixture
def worker(db):
    return WorkerFactory(capacity=256)


def take(worker):
    claim = claiming.claim(worker=worker, offer=offer(worker))
    return claim and claim.job.org_slug


def served(worker, number: int) -> list[str]:
    return [take(worker) for _ in range(number)]


def share(policy: str = "fair") -> None:
    PoolFactory()
    pools.set_pool_policy(pool=POOL, policy=policy, **WHY)


def places_of_the_small(worker) -> list[int]:
    """One tenant came first with 60 jobs, then three with 3 each: at which places these are served."""
    submit(project("big"), 60)
    for org in ("x", "y", "z"):
        submit(project(org), 3)
    return [place for place, org in enumerate(served(worker, 69), start=1) if org != "big"]


class TestPolicies:
    def test_by_turns_the_small_ones_are_done_as_if_the_big_one_had_one_share(self, worker):
        share()
        assert max(places_of_the_small(worker)) <= 4 * 3

    def test_by_age_they_wait_for_the_whole_of_it(self, worker):
        share("fifo")
        assert min(places_of_the_small(worker)) == 61

    def test_the_policy_can_change_while_jobs_wait(self, worker):
        share("fifo")
        submit(project("big"), 30)
        submit(project("x"), 3)
        assert served(worker, 3) == ["big"] * 3
        share()
        assert Counter(served(worker, 6)) == {"big": 3, "x": 3}
        submit(project("x"), 3)
        share("fifo")
        assert not LaneShare.objects.exists()
        assert served(worker, 24) == ["big"] * 24
        assert served(worker, 4) == ["x", "x", "x", None]

    def test_weights_are_shares(self, worker):
        share()
        for org, weight in (("one", 1), ("two", 2), ("four", 4)):
            submit(project(org, weight=weight), 60)
        assert Counter(served(worker, 70)) == {"one": 10, "two": 20, "four": 40}

    def test_a_changed_weight_is_followed(self, worker):
        share()
        submit(project("a"), 60)
        submit(project("b", weight=2), 60)
        Plan.objects.filter(weight=2).update(weight=3)
        sweep_scheduling()
        assert Counter(served(worker, 40)) == {"a": 10, "b": 30}

    def test_capacity_is_never_idle_while_anybody_waits(self, worker):
        share()
        submit(project("a"), 5)
        limited("b", max_active=1, **WHY)
        submit(project("b"), 5)
        assert Counter(served(worker, 7)) == {"a": 5, "b": 1, None: 1}

    @pytest.mark.parametrize("hours", [0, 3])
    def test_nine_with_ten_jobs_end_within_a_tenth_of_their_time_alone(self, worker, hours):
        """Also where what the crowd has waits for hours: it has its turn all the time."""
        share()
        submit(project("crowd"), 60, now=database_now() - timedelta(hours=hours))
        served(worker, 20)
        periodic.apply_aging()
        for number in range(9):
            submit(project(f"small-{number}"), 10)
        places = [place for place, org in enumerate(served(worker, 99), start=1) if org != "crowd"]
        assert len(places) == 90
        assert max(places) <= 1.1 * 90

    def test_what_has_had_no_turn_for_hours_goes_first_also_where_turns_are_taken(self, worker):
        share()
        now = database_now()
        submit(project("low", priority=50), 1, now=now - timedelta(hours=3.5))
        submit(project("team"), 2, now=now)
        periodic.apply_aging()
        assert served(worker, 2) == ["low", "team"]

    def test_a_turn_that_was_had_counts_also_behind_a_head_that_is_not_for_all(self, worker):
        share()
        submit(project("old"), 3, now=database_now() - timedelta(hours=3))
        Job.objects.filter(pk=Job.objects.earliest("pk").pk).update(excluded_workers=[worker.worker_id])
        periodic.apply_aging()
        assert take(worker) == "old"
        submit(project("new"), 1)
        assert take(worker) == "new"

    def test_by_age_again_no_turn_counts_of_who_has_nothing_to_serve_now_either(self, worker):
        share()
        where = project("old")
        submit(where, 2)
        take(worker)
        limited(LimitTarget(LimitScope.PROJECT, "old", where.slug), kind=LimitKind.PAUSE, max_active=0, **WHY)
        assert served(worker, 2) == [None] * 2
        assert QueueHead.objects.get().head_id is None
        pools.set_pool_policy(pool=POOL, policy="fifo", **WHY)
        assert not QueueHead.objects.filter(served_at__isnull=False).exists()

    def test_by_age_again_a_turn_that_was_had_counts_no_more(self, worker):
        share()
        submit(project("old"), 3, now=database_now() - timedelta(hours=3))
        assert take(worker) == "old"
        submit(project("rich", priority=210), 1)
        pools.set_pool_policy(pool=POOL, policy="fifo", **WHY)
        assert served(worker, 3) == ["old", "old", "rich"]

    def test_who_comes_has_three_turns_ahead_and_saved_up_no_more(self, worker):
        share()
        submit(project("steady"), 60)
        submit(project("away"), 1)
        served(worker, 21)
        submit(project("away"), 20)
        assert served(worker, 3) == ["away"] * 3
        assert Counter(served(worker, 20)) == {"steady": 10, "away": 10}

    def test_who_comes_again_and_again_gets_no_more_than_its_share(self, worker):
        share()
        submit(project("steady"), 60)
        served(worker, 5)
        had = Counter()
        for _ in range(8):
            submit(project("often"), 3)
            had += Counter(served(worker, 6))
        assert had["often"] - had["steady"] <= 3

    def test_who_comes_later_is_not_ahead_of_who_just_came(self, worker):
        share()
        submit(project("steady"), 60)
        served(worker, 5)
        for org in ("one", "two", "three"):
            submit(project(org), 10)
        assert Counter(served(worker, 9)) == {"one": 3, "two": 3, "three": 3}
        assert Counter(served(worker, 20)) == {"one": 5, "two": 5, "three": 5, "steady": 5}

    def test_priority_goes_before_shares(self, worker):
        share()
        submit(project("a"), 5)
        submit(project("rich", priority=300), 5)
        assert served(worker, 6) == ["rich"] * 5 + ["a"]

    def test_inside_an_organization_the_older_goes_first(self, worker):
        share()
        where = project("a")
        first, second = submitted(where), submitted(ProjectFactory(organization=where.organization, slug="api"))
        claims = [claiming.claim(worker=worker, offer=offer(worker)) for _ in range(2)]
        assert [claim.job.pk for claim in claims] == [first.pk, second.pk]


@pytest.mark.django_db(transaction=True)
def test_who_comes_while_a_pool_begins_to_share_has_a_share():
    PoolFactory()
    where = project("late")
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            Pool.objects.filter(slug=POOL).update(policy="fair")
            begin_to_share(POOL)
            coming = pool.submit(lambda: [submit(where, 1), connection.close()])
            eventually(lambda: somebody_waits("Lock"))
        coming.result(60)
    assert run_audit() == []
    LaneShare.objects.get(org_slug="late").delete()
    assert {finding.code for finding in run_audit()} == {"L10"}
    sweep_scheduling()
    assert run_audit() == []


class TestAging:
    """The default: one point of priority in 72 seconds, in steps of ten."""

    @pytest.fixture(autouse=True)
    def by_age(self, worker):
        share("fifo")

    def test_what_waited_long_goes_before_what_is_worth_more(self, worker):
        now = database_now()
        submit(project("low", priority=50), 1, now=now - timedelta(hours=3.5))
        submit(project("team", priority=200), 1, now=now)
        sweep_scheduling()
        assert queue_head(org_slug="low").tier == 220
        assert served(worker, 2) == ["low", "team"]

    def test_a_pool_without_aging_serves_in_strict_order(self, worker):
        now = database_now()
        submit(project("low", priority=50), 1, now=now - timedelta(days=30))
        submit(project("team", priority=60), 1, now=now)
        sweep_scheduling()
        assert queue_head(org_slug="low").tier == 399
        Pool.objects.filter(slug=POOL).update(aging=False)
        sweep_scheduling()
        assert queue_head(org_slug="low").tier == 50
        submit(project("late", priority=55), 1, now=now - timedelta(days=30))
        assert queue_head(org_slug="late").tier == 55
        assert served(worker, 3) == ["team", "late", "low"]

    def test_what_waited_little_does_not(self, worker):
        now = database_now()
        submit(project("low", priority=50), 1, now=now - timedelta(hours=2.5))
        submit(project("team", priority=200), 1, now=now)
        sweep_scheduling()
        assert served(worker, 2) == ["team", "low"]

    def test_the_clock_lifts_a_queue_as_its_head_grows_old(self, worker):
        submit(project("low", priority=50), 1)
        submit(project("team", priority=60), 1)
        with connection.cursor() as cursor:
            cursor.execute("UPDATE queue_heads SET head_at = head_at - interval '1 hour' WHERE tier = 50")
        assert queue_head(org_slug="low").tier == 50
        sweep_scheduling()
        assert queue_head(org_slug="low").tier == 100
        assert served(worker, 1) == ["low"]

    def test_a_younger_head_starts_anew(self, worker):
        where, now = project("low", priority=50), database_now()
        submit(where, 1, now=now - timedelta(hours=10))
        submit(where, 1, now=now)
        submit(project("team"), 1, now=now)
        sweep_scheduling()
        assert served(worker, 3) == ["low", "team", "low"]

    def test_nothing_grows_into_the_emergency_lane(self, worker):
        submit(project("old", priority=300), 1, now=database_now() - timedelta(days=30))
        limited("urgent", kind=LimitKind("emergency"), max_active=1, **WHY)
        submit(project("urgent", priority=400), 1)
        sweep_scheduling()
        assert served(worker, 2) == ["urgent", "old"]

    def test_nothing_starves_under_a_stream_of_better_jobs(self, worker):
        """Each round a better job comes and a worker takes one; the low one is served once it has aged enough."""
        better, now = project("team", priority=200), database_now()
        submit(project("low", priority=50), 1, now=now)
        for round_ in range(20):
            submit(better, 1)
            with connection.cursor() as cursor:
                for table in ("lane_heads", "queue_heads"):
                    cursor.execute(
                        f"UPDATE {table} SET head_at = %s WHERE head_at <= %s",
                        [now - timedelta(minutes=15) * round_, now],
                    )
            sweep_scheduling()
            if take(worker) == "low":
                break
        assert round_ == 12, "150 points are three hours, and a tie goes to the older"


def test_a_plan_in_the_emergency_lane_changes_no_waiting_job(worker):
    """The admin refuses such a plan."""
    where = project("eager")
    submitted(where)
    sweep_scheduling()
    Plan.objects.update(priority=500)
    with pytest.raises(ValidationError):
        Plan.objects.get().full_clean()
    sweep_scheduling()
    assert Job.objects.get().priority == 200


def test_a_claim_lifts_what_waits_and_what_is_blocked(worker):
    where = ProjectFactory(organization=OrganizationFactory(slug="free", plan=plan_of_tier("unclaimed")))
    first = submitted(where, timeout_seconds=60)
    blocked = submitted(where, depends_on=(first,), timeout_seconds=60)
    sweep_scheduling()
    Organization.objects.update(plan=project("team", priority=200).organization.plan, claimed_at=database_now())
    sweep_scheduling()
    assert set(Job.objects.values_list("priority", flat=True)) == {200}
    lanes = dict(Lane.objects.values_list("pk", "queue_id"))
    queues = dict(LaneQueue.objects.values_list("pk", "priority"))
    assert {queues[lanes[job.lane_id]] for job in Job.objects.filter(pk__in=[first.pk, blocked.pk])} == {200}
    assert run_audit() == []


class TestEmergencies:
    @pytest.fixture
    def urgent(self, db):
        return project("urgent", priority=200)

    def hurry(self, where, number: int = 1) -> None:
        for _ in range(number):
            given = submission(where, spec(), priority=400)
            service_submission.submit(given, policy=POLICY, default_pool=POOL, actor=ALICE)

    def test_they_skip_the_queue_and_the_limits_of_the_others_within_their_own(self, urgent, worker):
        limited("urgent", max_active=1, **WHY)
        limited("urgent", kind=LimitKind("emergency"), max_active=2, **WHY)
        submit(urgent, 2)
        submit(project("rich", priority=300), 1)
        assert served(worker, 3) == ["rich", "urgent", None]
        self.hurry(urgent, 3)
        assert served(worker, 3) == ["urgent", "urgent", None]
        assert queue_head(priority=400).blocked_by is not None

    def test_a_pause_holds_them_too(self, urgent, worker):
        limited("urgent", kind=LimitKind("emergency"), max_active=2, **WHY)
        self.hurry(urgent)
        limited("urgent", kind=LimitKind.PAUSE, max_active=0, **WHY)
        assert served(worker, 1) == [None]

    def test_without_a_limit_for_them_nobody_lifts_a_job_there(self, urgent):
        submit(urgent, 1)
        with pytest.raises(PriorityForbidden):
            prioritize(job_ulid=Job.objects.get().job_ulid, priority=400, actor=OPERATOR, reason="test")
        assert Job.objects.get().priority == 200

    def test_without_a_limit_for_them_there_are_none(self, urgent):
        with pytest.raises(PriorityForbidden):
            self.hurry(urgent)
        with pytest.raises(PriorityForbidden):
            service_submission.submit(
                submission(urgent, spec(), priority=250), policy=POLICY, default_pool=POOL, actor=ALICE
            )

    def test_a_job_may_be_worth_less_than_its_plan_gives(self, urgent):
        given = submission(urgent, spec(), priority=50)
        assert service_submission.submit(given, policy=POLICY, default_pool=POOL, actor=ALICE).job.priority == 50


def test_a_claim_passes_many_queues_whose_only_job_was_claimed(worker):
    """Each priority has a queue, and a claim visits those of higher priority first. No scheduler has advanced them."""
    project = ProjectFactory()
    for priority in range(100, 200):
        job = submitted(project, priority=priority)
        assert claiming.claim(worker=worker, offer=offer(worker)).job == job
    assert QueueHead.objects.filter(head_id__isnull=False).count() > 64, "as many as four attempts visit"
    job = submitted(project, priority=50)
    assert claiming.claim(worker=worker, offer=offer(worker)).job == job
