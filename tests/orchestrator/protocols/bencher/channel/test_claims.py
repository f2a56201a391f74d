"""One claim for both shapes: which jobs a runner gets, what it receives, and how it waits."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import OperationalError

from leases.models import Lease
from orchestrator.core.cause import Cause
from orchestrator.core.db_scope import release_connection_after
from orchestrator.images.tokens import verify_pull_token
from orchestrator.protocols.bencher.channel import claims
from orchestrator.protocols.bencher.channel.claims import JobWait, RunnerClaim, claim_for_runner
from orchestrator.protocols.bencher.states import job_status
from orchestrator.services.runners import change_runner
from runtime_jobs.errors import Conflict
from runtime_jobs.identifiers import uuid_of
from runtime_jobs.models import Job
from runtime_jobs.states import FailureReason, JobState
from tests.factories import OPERATOR
from tests.orchestrator.protocols.bencher.channel.scene import REPOSITORY, new_runner, new_spec, order, row
from tests.orchestrator.pubsub.test_long_poll_middleware import QuietHub, settled
from workers.models import WorkerSpec

database = pytest.mark.django_db(transaction=True)


@database
def test_the_claimed_job_is_that_of_the_contract():
    spec = new_spec()
    runner = new_runner(spec)
    job = order(spec, timeout=77, entrypoint=("/run",), env={"A": "b"})
    found = claim_for_runner(runner).claimed_job
    assert set(found) == {"uuid", "spec", "config", "oci_token", "timeout", "created"}
    assert found["uuid"] == str(uuid_of(job.job_ulid))
    assert found["timeout"] == found["config"]["timeout"] == 77
    assert found["config"] == {
        "registry": "http://localhost:8000/",
        "project": str(REPOSITORY),
        "digest": "sha256:" + "0" * 64,
        "timeout": 77,
        "entrypoint": ["/run"],
        "env": {"A": "b"},
    }
    assert found["spec"]["uuid"] == str(spec.uuid)
    assert {"name", "slug", "os", "architecture", "cpu", "memory", "disk", "network", "created", "modified"} <= set(
        found["spec"]
    )
    assert found["created"].endswith("Z")
    grant = verify_pull_token(found["oci_token"], repository=str(REPOSITORY))
    assert grant.runner == runner.uuid
    assert job_status(row(job)) == "claimed"


@database
def test_a_runner_gets_jobs_of_its_specs_only_read_anew_at_each_attempt():
    small, large = new_spec("small"), new_spec("large")
    runner = new_runner(small)
    job = order(large)
    assert claim_for_runner(runner).claimed is None
    WorkerSpec.objects.create(worker=runner, spec=large)
    assert claim_for_runner(runner).claimed.job.job_ulid == job.job_ulid


@database
def test_a_runner_without_specs_gets_none():
    order(new_spec())
    assert claim_for_runner(new_runner()).claimed is None


@database
def test_a_runner_with_a_sandbox_gets_both_kinds():
    spec = new_spec("boxed", sandbox="firecracker")
    runner = new_runner(spec)
    order(spec)
    assert claim_for_runner(runner).claimed is not None


@database
def test_an_archived_runner_gets_no_job():
    spec = new_spec()
    runner = new_runner(spec)
    order(spec)
    change_runner(worker_id=runner.worker_id, archived=True, cause=Cause(OPERATOR))
    assert claim_for_runner(runner).claimed is None


@database
def test_an_order_that_cannot_be_rendered_fails_its_job_and_blocks_no_other():
    spec = new_spec()
    runner = new_runner(spec)
    broken, good = order(spec), order(spec)
    Job.objects.filter(pk=broken.pk).update(spec={"spec": str(spec.uuid), "least_isolation": "none", "config": {}})
    assert claim_for_runner(runner).claimed.job.job_ulid == good.job_ulid
    ended = row(broken)
    assert (ended.state, ended.late_result_at) == (JobState.FAILED, None), "no late result can follow"
    assert ended.failure_reason == FailureReason.WORKER_ERROR
    assert "cannot be sent" in ended.failure_message


@database
def test_a_broken_order_that_cannot_be_ended_does_not_end_the_claim(monkeypatch):
    """Another caller has changed the job: the claim continues with the next one."""
    spec = new_spec()
    runner = new_runner(spec)
    broken, good = order(spec), order(spec)
    Job.objects.filter(pk=broken.pk).update(spec={"spec": str(spec.uuid), "least_isolation": "none", "config": {}})

    def refuse(**_):
        raise Conflict("The job was ended by another message.")

    monkeypatch.setattr("orchestrator.services.job_end.fail", refuse)
    assert claim_for_runner(runner).claimed.job.job_ulid == good.job_ulid


@database
def test_a_database_that_fails_while_an_order_is_rendered_costs_no_job(monkeypatch):
    spec = new_spec()
    runner = new_runner(spec)
    job = order(spec)

    def fail(*_):
        raise OperationalError

    with monkeypatch.context() as patch:
        patch.setattr(claims, "serialize_claimed_job", fail)
        with pytest.raises(OperationalError):
            claim_for_runner(runner)
    assert job_status(row(job)) == "pending"
    assert claim_for_runner(runner).claimed.job.job_ulid == job.job_ulid


@database
def test_two_runners_race_for_one_job_and_one_gets_it():
    spec = new_spec()
    runners = [new_runner(spec, slug=f"runner-{number}") for number in range(4)]
    order(spec)
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(release_connection_after(claim_for_runner), runners))
    assert sum(claim.claimed is not None for claim in found) == 1
    assert Lease.objects.count() == 1


@database
def test_claims_of_several_runners_are_one_statement_and_each_has_its_own_result(monkeypatch):
    """An order cannot be read now, so its job is queued again; the runner of a broken order gets that job."""
    spec = new_spec()
    runners = [new_runner(spec, slug=f"runner-{number}") for number in range(4)]
    unlucky, broken, *others = [order(spec).job_ulid for _ in range(4)]
    rendered, claimed_together, errors = claims.serialize_claimed_job, [], [OperationalError("gone")]

    def serialize(job, worker):
        if job.job_ulid == broken:
            raise KeyError("digest")
        if job.job_ulid == unlucky and errors:
            raise errors.pop()
        return rendered(job, worker)

    def claim(orders):
        claimed_together.append(len(orders))
        return claim_for_workers(orders)

    claim_for_workers = claims.claiming.claim_for_workers
    monkeypatch.setattr(claims, "serialize_claimed_job", serialize)
    monkeypatch.setattr(claims.claiming, "claim_for_workers", claim)
    found = claims.claim_for_runners(runners)
    assert claimed_together == [4, 1]
    assert [isinstance(result, OperationalError) for result in found].count(True) == 1
    taken = {result.claimed.job.job_ulid for result in found if isinstance(result, RunnerClaim) and result.claimed}
    assert taken == {unlucky, *others}
    assert job_status(Job.objects.get(job_ulid=broken)) == "failed"


@database
def test_a_broken_order_that_cannot_be_failed_is_the_error_of_its_runner_only(monkeypatch):
    spec = new_spec()
    runners = [new_runner(spec, slug=f"runner-{number}") for number in range(2)]
    broken, other = [order(spec).job_ulid for _ in range(2)]
    rendered = claims.serialize_claimed_job

    def serialize(job, worker):
        if job.job_ulid == broken:
            raise KeyError("digest")
        return rendered(job, worker)

    def fail(**_):
        raise ZeroDivisionError

    monkeypatch.setattr(claims, "serialize_claimed_job", serialize)
    monkeypatch.setattr(claims.job_end, "fail", fail)
    found = claims.claim_for_runners(runners)
    assert {type(result) for result in found} == {ZeroDivisionError, RunnerClaim}
    assert next(result for result in found if isinstance(result, RunnerClaim)).claimed.job.job_ulid == other


# --- Waiting ----------------------------------------------------------------------------------------------------------

OFFER = claims.offer_key("bare-metal", "offer")
EMPTY, FOUND = RunnerClaim(OFFER, None, {}), RunnerClaim(OFFER, object(), {"uuid": "x"})


class Waiting:
    """A runner that waits; `outcomes` are the results of its attempts."""

    def __init__(self, *outcomes, seconds=60.0):
        self.outcomes, self.attempts = list(outcomes), 0
        self.hub = QuietHub()
        self.ended = asyncio.get_running_loop().create_future()
        self.began = time.monotonic()
        self.until = self.began + seconds
        wait = JobWait(None, hub=self.hub, claim=self.attempt)
        self.task = asyncio.ensure_future(wait.claim(self.until, self.ended))

    async def attempt(self, _worker):
        self.attempts += 1
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def waits(self):
        while len(self.hub.waiters) == 0:  # noqa: ASYNC110 the registry has no event for it
            await asyncio.sleep(0.01)


def story(function):
    asyncio.run(asyncio.wait_for(function(), 30))


def test_a_job_is_found_at_once(monkeypatch):
    async def scene():
        waiting = Waiting(FOUND)
        assert await waiting.task is FOUND
        assert waiting.hub.notified_pools == ["bare-metal"], "there may be more for runners of other processes"

    story(scene)


def test_a_notification_causes_an_attempt(monkeypatch):
    async def scene():
        waiting = Waiting(EMPTY, EMPTY, FOUND)
        for _ in range(2):
            await waiting.waits()
            waiting.hub.waiters.notify_pool("bare-metal")
            await settled()
        assert await waiting.task is FOUND
        assert waiting.attempts == 3

    story(scene)


def test_none_is_never_early(monkeypatch):
    async def scene():
        waiting = Waiting(EMPTY, seconds=0.2)
        assert await waiting.task is None
        assert time.monotonic() >= waiting.until

    story(scene)


def test_a_runner_that_disconnects_waits_no_longer_and_claims_no_more(monkeypatch):
    async def scene():
        waiting = Waiting(EMPTY)
        await waiting.waits()
        waiting.ended.set_result(None)
        assert await waiting.task is None
        assert (waiting.attempts, len(waiting.hub.waiters)) == (1, 0)

    story(scene)


def test_a_process_that_stops_ends_no_wait_early(monkeypatch):
    async def scene():
        waiting = Waiting(EMPTY)
        await waiting.waits()
        waiting.hub.waiters.close()
        await asyncio.sleep(0.05)
        assert not waiting.task.done()
        waiting.ended.set_result(None)
        assert await waiting.task is None

    story(scene)


def test_a_database_that_fails_does_not_end_the_wait(monkeypatch):
    monkeypatch.setattr(claims, "DATABASE_PAUSE_SECONDS", 0.01)

    async def scene():
        waiting = Waiting(OperationalError(), EMPTY, OperationalError(), FOUND)
        for _ in range(2):
            await waiting.waits()
            waiting.hub.waiters.notify_pool("bare-metal")
            await settled()
        assert await waiting.task is FOUND

    story(scene)
