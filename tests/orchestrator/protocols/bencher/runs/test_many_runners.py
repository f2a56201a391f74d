"""Many runners and many jobs of the four tiers: the claim of contract 4 against a second implementation of its rules.

`PROOF_JOBS` and `PROOF_RUNNERS` make both tests longer, `PROOF_SEED` repeats a run.
"""

import asyncio
import json
import os
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta

import pytest
from django.conf import settings as installation
from django.db import connection
from websockets.asyncio.client import connect

from leases.scheduling.periodic import advance_cursor, stale_lanes
from orchestrator.audit.runner import run_audit
from orchestrator.maintenance.queues import sweep_scheduling
from orchestrator.protocols.bencher.channel import operations
from orchestrator.protocols.bencher.channel.claims import claim_for_runner
from orchestrator.protocols.bencher.channel.messages import CanceledFrame, CompletedFrame, FailedFrame
from orchestrator.protocols.bencher.channel.operations import leased_job
from orchestrator.services import claiming
from orchestrator.services import submission as service_submission
from runtime_jobs.db_time import database_now
from runtime_jobs.identifiers import uuid_of
from runtime_jobs.models import Job, Plan
from runtime_jobs.models.tenants import Visibility
from runtime_jobs.plans import plan_of_tier
from runtime_jobs.priorities import PRIORITIES
from runtime_jobs.specs import configured_policy
from runtime_jobs.specs.oci import OCI, OciSpec
from runtime_jobs.states import FINAL_STATES, SETTLING_STATES
from tests.api_client import Caller
from tests.factories import (
    ALICE,
    POLICY,
    OrganizationFactory,
    PlanFactory,
    ProjectFactory,
    RunnerFactory,
    WorkerFactory,
    submission,
)
from tests.factories import offer as native_offer
from tests.factories import spec as runtime_spec
from tests.live_server import serving
from tests.orchestrator.protocols.bencher.channel.scene import mark_running
from tests.orchestrator.protocols.bencher.runs.world import (
    DIGEST,
    job_body,
    job_of,
    new_person,
    new_project,
    new_spec,
)

JOBS = int(os.environ.get("PROOF_JOBS", "60"))
RUNNERS = int(os.environ.get("PROOF_RUNNERS", "12"))
SEED = int(os.environ.get("PROOF_SEED") or random.randrange(10**9))
ADDRESSES = [f"192.0.2.{number}" for number in range(1, 6)]
ORGANIZATIONS = {"enterprise": 2, "team": 2, "free": 5, "unclaimed": 10}
BMF = [{"exit_code": 0, "stdout": json.dumps({"bench": {"latency": {"value": 1.0}}})}]


# --- The order of claims ----------------------------------------------------------------------------------------------


@dataclass
class Order:
    """A job as the second implementation sees it. The order of ids is that of submits."""

    job_ulid: str
    priority: int
    created_at: datetime
    key: int
    org: str
    address: str

    @property
    def place(self):
        return -self.priority, self.created_at, self.key


class Oracle:
    """Decides by contract 4 which jobs may be claimed."""

    def __init__(self) -> None:
        self.waiting: list[Order] = []
        self.running: dict[str, Order] = {}

    def eligible(self) -> list[Order]:
        """The jobs that no limit blocks, the next one first."""
        self.waiting.sort(key=lambda order: order.place)
        orgs = {order.org for order in self.running.values()}
        addresses = {order.address for order in self.running.values()}
        return [
            order
            for order in self.waiting
            if order.priority >= 200
            or (order.org not in orgs if order.priority >= 100 else order.address not in addresses)
        ]

    def claim(self, job_ulid: str | None) -> None:
        """Check a claim. Of unclaimed jobs the oldest eligible one of an organization may be next.

        If the oldest job of an organization waits for its address, the next one of that organization takes its place.
        """
        eligible = self.eligible()
        if job_ulid is None:
            assert eligible == []
            return
        first = next(order for order in eligible if order.job_ulid == job_ulid)
        expected = eligible[0]
        if first.priority == expected.priority == 0:
            expected = next(order for order in eligible if order.org == first.org)
        assert first == expected
        self.waiting.remove(first)
        self.running[job_ulid] = first

    def lift(self, org: str) -> None:
        """Apply the claim of an organization: what waits gets the priority of the free tier."""
        for order in self.waiting:
            if order.org == org and order.priority == 0:
                order.priority = PRIORITIES["free"]


def submit(spec, project, address: str, now: datetime) -> Order:
    wanted = OciSpec(
        hardware_spec=str(spec.uuid),
        least_isolation=spec.least_isolation,
        registry="http://localhost:8000/",
        project=str(project.uuid),
        image_digest=DIGEST,
        timeout_seconds=60,
    )
    given = submission(project, wanted, pool=installation.RUNNER_POOL, source_address=address)
    policy = configured_policy(OCI)
    job = service_submission.submit(
        given, policy=policy, default_pool=installation.RUNNER_POOL, actor=ALICE, now=now
    ).job
    return Order(job.job_ulid, job.priority, job.created_at, job.pk, project.organization.slug, address)


def finish(dice: random.Random, claim, runner) -> None:
    """End the job as its runner reports; a job that is lost or whose result is read is not in execution any more."""
    job = leased_job(claim.lease, runner)
    kind = dice.choice(["completed", "failed", "failed", "canceled", "canceled", "canceled"])
    if kind == "completed":
        mark_running(job)
        operations.finish(job, CompletedFrame(job.uuid, tuple(BMF)))
    else:
        frame = FailedFrame(job.uuid, (), "x") if kind == "failed" else CanceledFrame(job.uuid)
        operations.finish(job, frame)


@pytest.mark.django_db(transaction=True)
@pytest.mark.timeout(3600)
def test_each_claim_is_the_one_of_the_contract(capsys):
    """Strict order, FIFO, equal times by id, one free job of an organization, one unclaimed job of an address."""
    dice = random.Random(SEED)
    with capsys.disabled():
        print(f"\n{JOBS} jobs, {RUNNERS} runners, PROOF_SEED={SEED}")  # noqa: T201 - this repeats it
    spec = new_spec()
    runners = new_runners(RUNNERS, spec)
    projects = [
        new_project(f"{tier}-{number}", tier, visibility=Visibility.PUBLIC)
        for tier, count in ORGANIZATIONS.items()
        for number in range(count)
    ]
    unclaimed = [project for project in projects if project.organization.plan.name == "unclaimed"]
    person = new_person("mia")
    oracle, claims, left = Oracle(), {}, JOBS
    now, counts = database_now() - timedelta(minutes=JOBS), Counter()  # no submit is in the future
    while left or oracle.waiting or oracle.running:
        act = dice.choices(["submit", "claim", "finish", "own"], [4 if left else 0, 4, 3, 0.1 if unclaimed else 0])[0]
        if act == "submit":
            now += timedelta(seconds=dice.choice([0, 0, 0, 1, 60]))
            oracle.waiting.append(submit(spec, dice.choice(projects), dice.choice(ADDRESSES), now))
            left -= 1
        elif act == "claim":
            runner = dice.choice(runners)
            advance_lanes()
            found = claim_for_runner(runner).claimed
            oracle.claim(found and found.job.job_ulid)
            counts["claimed" if found else "nothing"] += 1
            if found:
                claims[found.job.job_ulid] = (found, runner)
        elif act == "finish" and oracle.running:
            job_ulid = dice.choice(list(oracle.running))
            finish(dice, *claims.pop(job_ulid))
            del oracle.running[job_ulid]
        elif act == "own":
            project = unclaimed.pop(dice.randrange(len(unclaimed)))
            path = f"/v0/organizations/{project.organization.slug}/claim"
            assert person.caller.post(path).status_code == 201
            oracle.lift(project.organization.slug)
            counts["owned"] += 1
    assert counts["claimed"] == JOBS
    assert not Job.objects.exclude(state__in=(*FINAL_STATES, *SETTLING_STATES)).exists()
    assert [str(finding) for finding in run_audit(chains=True)] == []


def advance_lanes() -> None:
    """Do what a round of the scheduler does. Until then a lane whose last job was claimed keeps the age of that job."""
    for lane in stale_lanes(limit=1000):
        advance_cursor(lane)


def new_runners(number: int, spec) -> list:
    return [RunnerFactory(specs=[spec]) for _ in range(number)]


@pytest.mark.django_db
def test_runners_are_served_in_strict_order_while_other_pools_age():
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('orchestrator.aging_seconds', '1', true)")
    spec, now = new_spec(), database_now()
    (runner,) = new_runners(1, spec)
    old = submit(spec, new_project("old", "unclaimed"), ADDRESSES[0], now - timedelta(days=30))
    free = submit(spec, new_project("free", "free"), ADDRESSES[1], now - timedelta(days=1))
    new = submit(spec, new_project("new", "enterprise"), ADDRESSES[2], now)
    worker = WorkerFactory(pool__policy="fifo")
    for slug, priority, created_at in (("aged", 0, now - timedelta(hours=1)), ("fresh", 300, now)):
        plan = PlanFactory(name=slug, priority=priority)
        project = ProjectFactory(organization=OrganizationFactory(slug=slug, plan=plan))
        given = submission(project, runtime_spec())
        service_submission.submit(given, policy=POLICY, default_pool=worker.pool.slug, actor=ALICE, now=created_at)
    sweep_scheduling()
    strict = [claim_for_runner(runner).claimed.job.job_ulid for _ in range(3)]
    assert strict == [new.job_ulid, free.job_ulid, old.job_ulid]
    aging = [claiming.claim(worker=worker, offer=native_offer(worker)).job.org_slug for _ in range(2)]
    assert aging == ["aged", "fresh"]


# --- The limits -------------------------------------------------------------------------------------------------------

# The most leases of a group that were open at the same time: one more at each beginning, one less at each end.
AT_ONCE = """
    SELECT max(at_once) FROM (
        SELECT sum(change) OVER (PARTITION BY who ORDER BY at, change) AS at_once FROM (
            SELECT {column} AS who, l.leased_at AS at, 1 AS change
              FROM runtime_worker_leases l JOIN runtime_jobs j USING (job_ulid) WHERE j.priority = ANY(%(priorities)s)
            UNION ALL
            SELECT {column}, l.completed_at, -1
              FROM runtime_worker_leases l JOIN runtime_jobs j USING (job_ulid)
             WHERE j.priority = ANY(%(priorities)s) AND l.completed_at IS NOT NULL) times) counted
"""


class Fleet:
    """Runners with a channel each, until all jobs were executed."""

    def __init__(self, server, runners: list, seed: int) -> None:
        self.base = f"ws://127.0.0.1:{server.address[1]}/v0/runners"
        self.runners, self.dice = runners, random.Random(seed)
        self.received: Counter[str] = Counter()
        self.holders: set[str] = set()
        self.two_hold_a_job = asyncio.Event()

    async def execute(self, runner) -> None:
        headers = {"Authorization": f"Bearer {runner.token}"}
        options = {"compression": None, "ping_interval": None, "proxy": None, "open_timeout": 60}
        async with connect(f"{self.base}/{runner.slug}/channel", additional_headers=headers, **options) as socket:
            while sum(self.received.values()) < JOBS:
                job = await self.ask(socket, "ready", poll_timeout=1)
                if job["event"] == "job":
                    self.received[job["uuid"]] += 1
                    await self.wait_for_another_holder(runner)
                    await self.execute_job(socket, job["uuid"])

    async def wait_for_another_holder(self, runner) -> None:
        """Hold the first job until two runners hold one: however slow the machine is, two are in execution at once."""
        self.holders.add(runner.slug)
        if len(self.holders) > 1:
            self.two_hold_a_job.set()
        await asyncio.wait_for(self.two_hold_a_job.wait(), 120)

    async def execute_job(self, socket, uuid: str) -> None:
        acknowledged = {"event": "ack", "job": uuid}
        assert await self.ask(socket, "running") == acknowledged
        for _ in range(self.dice.randrange(2)):
            assert await self.ask(socket, "heartbeat") == acknowledged
        final = self.dice.choice(
            [
                {"event": "completed", "results": BMF},
                {"event": "failed", "results": [], "error": "x"},
                {"event": "canceled"},
            ]
        )
        assert await self.ask(socket, **final, job=uuid) == acknowledged

    async def ask(self, socket, event: str, **members):
        await socket.send(json.dumps({"event": event, **members}))
        return json.loads(await asyncio.wait_for(socket.recv(), 120))


@pytest.fixture
def submissions(settings):
    """Requests of all tiers in a random order, each by a person of its organization or by no person."""
    settings.BEHIND_PROXY, settings.ANONYMOUS_RUNS_PER_MINUTE = True, 0
    settings.ANONYMOUS_RUNS_PER_HOUR = settings.ANONYMOUS_RUNS_PER_DAY = 0
    dice = random.Random(SEED)
    callers = {}
    for tier, count in ORGANIZATIONS.items():
        for number in range(count):
            slug = f"{tier}-{number}"
            is_owned = tier != "unclaimed"
            callers[slug] = (
                new_person(f"of-{slug}", new_project(slug, tier).organization).caller if is_owned else Caller()
            )
    plan_of_tier("unclaimed")
    Plan.objects.update(max_queued=None, submits_per_minute=None)
    names = [dice.choice(list(callers)) for _ in range(JOBS)]

    def send() -> set[str]:
        try:
            return {
                job_of(
                    callers[name],
                    job_body(f"{name}@{DIGEST}", spec="two-cores"),
                    **{
                        "X-Forwarded-For": dice.choice(ADDRESSES)
                        if "unclaimed" in name
                        else f"198.51.100.{place % 250}"
                    },
                ).job_ulid
                for place, name in enumerate(names)
            }
        finally:
            connection.close()

    return send


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
@pytest.mark.timeout(3600)
def test_no_limit_is_exceeded_over_the_channels_of_all_runners(tmp_path, database_url, submissions):
    runners = new_runners(RUNNERS, new_spec())
    with serving(tmp_path, DATABASE_URL=database_url) as server, ThreadPoolExecutor(1) as thread:
        fleet = Fleet(server, runners, SEED)
        submitting = thread.submit(submissions)

        async def run() -> None:
            await asyncio.gather(*map(fleet.execute, runners))

        asyncio.run(run())
        submitted = submitting.result(60)
    assert set(fleet.received) == {str(uuid_of(job_ulid)) for job_ulid in submitted}
    assert set(fleet.received.values()) == {1}
    assert at_once("j.org_slug", "free") == 1
    assert at_once("host(j.source_address)", "unclaimed") == 1
    assert at_once("j.pool", *PRIORITIES) > 1
    assert not Job.objects.exclude(state__in=(*FINAL_STATES, *SETTLING_STATES)).exists()
    assert [str(finding) for finding in run_audit(chains=True)] == []


def at_once(column: str, *tiers: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(AT_ONCE.format(column=column), {"priorities": [PRIORITIES[tier] for tier in tiers]})
        return int(cursor.fetchone()[0])
