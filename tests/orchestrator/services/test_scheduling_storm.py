"""All kinds of limits, set and removed at random while jobs are submitted, claimed, finished and canceled.

Afterwards the audit finds nothing, and every waiting job can be claimed once nothing restricts it.
"""

import os
import random
import sys
import threading
from collections import Counter
from datetime import timedelta

import pytest
from django.db import OperationalError, connection, connections

from leases.models import LaneGeneration, Lease, Limit, LimitKind, LimitScope
from leases.scheduling import generations
from leases.scheduling.generations import Generations
from leases.scheduling.limits import LimitTarget
from orchestrator.audit.runner import run_audit
from orchestrator.core.cause import Cause
from orchestrator.incidents import breakers
from orchestrator.maintenance.queues import sweep_scheduling
from orchestrator.services import cancellation, claiming, heartbeat, job_end
from orchestrator.services import submission as service_submission
from orchestrator.services.concurrency import ConcurrencyGroup, OnConflict
from orchestrator.services.pools import set_pool_policy
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import LifecycleError
from runtime_jobs.models import Job
from runtime_jobs.states import FailureReason
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
    spec,
    submission,
)

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(600)]

POOL = "shared-linux"
WHY = {"cause": Cause(OPERATOR, "storm")}
STEPS = int(os.environ.get("STORM_STEPS", "60"))

LOCK_NOT_AVAILABLE = "55P03"


class Actor:
    """One thread: a worker, a client and an operator in one."""

    def __init__(self, seed: int, projects: list) -> None:
        self.dice = random.Random(seed)
        self.projects = projects
        self.worker = WorkerFactory(capacity=200)
        self.did: Counter[str] = Counter()
        self.trouble: list[BaseException] = []

    def run(self) -> None:
        acts = [self.submit] * 5 + [self.claim] * 6 + [self.finish] * 5 + [self.cancel, self.tick, self.operate]
        try:
            for _ in range(STEPS):
                act = self.dice.choice(acts)
                self.did[act.__name__] += 1
                try:
                    act()
                except LifecycleError:
                    self.did["refused"] += 1
                except OperationalError as error:
                    # A lock that others held for two seconds: the API answers 503 `busy`, and a client repeats it.
                    if getattr(error.__cause__, "sqlstate", None) != LOCK_NOT_AVAILABLE:
                        raise
                    self.did["busy"] += 1
        except BaseException as error:  # noqa: BLE001 the test's own thread reports it
            self.trouble.append(error)
        finally:
            connections.close_all()

    def submit(self) -> None:
        group = self.dice.choice(
            [None, None, None, ConcurrencyGroup("a"), ConcurrencyGroup("b", self.dice.choice(list(OnConflict)))]
        )
        given = submission(
            self.dice.choice(self.projects), spec(), source_address=f"192.0.2.{self.dice.randrange(3)}", group=group,
            priority=self.dice.choice([None, None, -5]),
        )  # fmt: skip
        service_submission.submit(given, policy=POLICY, default_pool=POOL, actor=ALICE)

    def claim(self) -> None:
        self.did["claimed"] += claiming.claim(worker=self.worker, offer=offer(self.worker)) is not None

    def finish(self) -> None:
        lease = Lease.objects.open().filter(worker=self.worker).order_by("?").first()
        if lease is not None:
            end = {"lease_ulid": lease.lease_ulid, "worker": self.worker}
            self.dice.choice([heartbeat.release, lambda **end: job_end.fail(**end, reason=FailureReason.WORKER_ERROR)])(
                **end
            )

    def cancel(self) -> None:
        job = Job.objects.queued().order_by("?").first()
        if job is not None:
            cancellation.cancel(job_ulid=job.job_ulid, actor=ALICE, deadline_seconds=30)

    def tick(self) -> None:
        sweep_scheduling()

    def operate(self) -> None:
        project = self.dice.choice(self.projects)
        org = project.organization.slug
        subject = self.dice.choice(
            [
                LimitTarget.of_organization(org),
                LimitTarget.of_organization(org, "runtime"),
                LimitTarget(LimitScope.PROJECT, org, project.slug),
                LimitTarget(LimitScope.POOL, "", POOL),
                LimitTarget(LimitScope.JOB_TYPE, "", "runtime"),
            ]
        )
        soon = database_now() + timedelta(milliseconds=self.dice.randrange(20, 300))
        self.dice.choice(
            [
                lambda: limited(org, max_active=self.dice.choice([None, 1, 2, 5]), **WHY),
                lambda: limited(
                    org, kind=LimitKind.RATE, per_hour=self.dice.choice([None, 7200, 72000]), burst=2, **WHY
                ),
                lambda: limited(subject, kind=LimitKind.PAUSE, max_active=0, until=soon, **WHY),
                lambda: limited(subject, kind=LimitKind.PAUSE, **WHY),
                lambda: limited(subject, kind=LimitKind.THROTTLE, per_hour=36000, burst=2, until=soon, **WHY),
                lambda: set_pool_policy(pool=POOL, policy=self.dice.choice(["fifo", "fair"]), **WHY),
            ]
        )()


class Renewal(threading.Thread):
    """Begins a generation of heads whenever it can, as the scheduler process does now and then."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.ended = threading.Event()

    def run(self) -> None:
        renewed = Generations()
        try:
            while not self.ended.wait(0.002):
                renewed.renew()
        finally:
            connections.close_all()


def test_whatever_is_set_and_lifted_no_job_is_lost_from_sight(settings, monkeypatch):
    monkeypatch.setattr(generations, "WRITES", 1)
    settings.BREAKER = settings.BREAKER | {"least_jobs": 5, "cool_down_seconds": 0}
    seed = int(os.environ.get("STORM_SEED", random.randrange(10**9)))
    sys.stderr.write(f"\nSTORM_SEED={seed}")
    PoolFactory()
    projects = []
    for number, tier in enumerate(["free", "unclaimed", "team", "team"]):
        limits = {"free": {"max_active": 2}, "unclaimed": {"one_per_address": True}}.get(tier, {})
        plan = PlanFactory(name=f"storm-{number}", priority=[100, 0, 200, 200][number], weight=number + 1, **limits)
        organization = OrganizationFactory(plan=plan)
        projects += [ProjectFactory(organization=organization, slug=slug) for slug in ("web", "api")]
    actors = [Actor(seed + number, projects) for number in range(6)]
    threads = [threading.Thread(target=actor.run) for actor in actors]
    renewal = Renewal()
    for thread in (renewal, *threads):
        thread.start()
    for thread in threads:
        thread.join(300)
    assert renewal.is_alive()
    renewal.ended.set()
    renewal.join(60)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_stat_clear_snapshot(), deadlocks FROM pg_stat_database WHERE datname = current_database()"
        )
        sys.stderr.write(f" deadlocks so far {cursor.fetchone()[1]}, {sum((actor.did for actor in actors), Counter())}")
    assert [repr(error) for actor in actors for error in actor.trouble] == []
    assert sum(actor.did["claimed"] for actor in actors) > 0
    assert run_audit() == []
    assert LaneGeneration.objects.latest("number").oldest > 0
    assert_all_can_be_had(actors)
    assert run_audit() == []


def assert_all_can_be_had(actors) -> None:
    """Lift what can be lifted; then run what waits until nothing is left."""
    for limit in Limit.objects.exclude(kind__in=[LimitKind.PLAN, LimitKind.SOURCE_ADDRESS, LimitKind.CONCURRENCY]):
        subject = LimitTarget(LimitScope(limit.scope), limit.org_slug, limit.key)
        if limit.kind == LimitKind.BREAKER:
            breakers.reset_breaker(org_slug=limit.org_slug, job_type=limit.key, **WHY)
        elif limit.kind == LimitKind.PAUSE:
            limited(subject, kind=LimitKind.PAUSE, **WHY)
        elif limit.kind == LimitKind.THROTTLE:
            limited(subject, kind=LimitKind.THROTTLE, **WHY)
        elif limit.kind == LimitKind.RATE:
            limited(limit.org_slug, kind=LimitKind.RATE, **WHY)
        else:
            limited(limit.org_slug, **WHY)
    worker = WorkerFactory(capacity=256)
    for _ in range(Job.objects.count() + 1):
        for lease in Lease.objects.open().select_related("worker"):
            job_end.fail(lease_ulid=lease.lease_ulid, worker=lease.worker, reason=FailureReason.WORKER_ERROR)
        if claiming.claim(worker=worker, offer=offer(worker)) is None:
            break
    assert not Job.objects.queued().exists()
