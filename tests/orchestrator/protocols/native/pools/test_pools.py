"""The load of a pool for permitted callers: right numbers, bounded costs, and nothing for other tenants."""

from datetime import timedelta

import pytest
from django.contrib.auth import get_user_model
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from leases.models import LimitKind
from leases.models.limits import LimitScope
from leases.scheduling.limits import LimitTarget
from orchestrator.core.cause import Cause
from orchestrator.services import claiming, worker_state
from runtime_jobs.models import Membership
from runtime_jobs.models.tenants import Scope
from tests.api_client import Caller, refused
from tests.factories import (
    OPERATOR,
    OrganizationFactory,
    PoolFactory,
    ProjectFactory,
    WorkerFactory,
    api_token,
    claimed,
    limited,
    offer,
    submitted,
)
from workers.models import Worker
from workers.registry.models import WorkerState

pytestmark = pytest.mark.django_db
POOL = "shared-linux"
LOAD = f"/v1/pools/{POOL}/load"


@pytest.fixture(autouse=True)
def pools():
    PoolFactory(slug=POOL)
    PoolFactory(slug="gpu")


def seen(worker, ago=timedelta(0)):
    Worker.objects.filter(pk=worker.pk).update(last_seen_at=timezone.now() - ago)
    return worker


def test_it_counts_what_waits_what_runs_and_who_is_there(alice, organization):
    project = organization.projects.get()
    busy = seen(WorkerFactory(capacity=3))
    for _ in range(4):
        submitted(project, now=timezone.now() - timedelta(minutes=5))
    claimed(busy)
    claimed(busy, acknowledge=True)
    seen(WorkerFactory(capacity=2))
    seen(WorkerFactory(capacity=7), timedelta(minutes=2))  # silent
    WorkerFactory()  # never seen
    for state in (WorkerState.DRAINING, WorkerState.MAINTENANCE, WorkerState.REVOKED):
        leaving = seen(WorkerFactory(capacity=9))
        worker_state.set_worker_state(worker_id=leaving.worker_id, state=state, cause=Cause(OPERATOR))
    seen(WorkerFactory(pool__slug="gpu"))
    result = alice.get(LOAD).json()
    assert 300 <= result.pop("oldest_wait_seconds") < 400
    assert result.pop("at").endswith("Z")
    assert result == {
        "pool": POOL,
        "queued": 2,
        "servable": 2,
        "capped": False,
        "running": 2,
        "idle_slots": 3,
        "workers": {"active": 2, "silent": 2, "draining": 1, "maintenance": 1},
        "starts_per_minute": 2,
    }


def test_an_empty_pool_has_numbers_too(alice):
    result = alice.get(LOAD).json()
    assert {result[name] for name in ("queued", "servable", "running", "idle_slots", "starts_per_minute")} == {0}
    assert result["oldest_wait_seconds"] == 0


def test_a_start_counts_for_a_minute_and_in_its_own_pool(alice, organization):
    submitted(organization.projects.get())
    lease = claimed(seen(WorkerFactory())).lease
    assert alice.get(LOAD).json()["starts_per_minute"] == 1
    lease.leased_at -= timedelta(seconds=61)
    lease.save(update_fields=["leased_at"])
    assert alice.get(LOAD).json()["starts_per_minute"] == 0


def test_what_a_limit_holds_back_needs_no_more_workers(alice, organization):
    project = organization.projects.get()
    limited(organization.slug, max_active=1)
    for _ in range(3):
        submitted(project)
    worker = seen(WorkerFactory())
    claimed(worker)
    assert claiming.claim(worker=worker, offer=offer(worker)) is None  # who looks writes down that it is full
    result = alice.get(LOAD).json()
    assert (result["queued"], result["servable"], result["running"]) == (2, 0, 1)


def test_in_a_pool_that_is_paused_nothing_can_be_served(alice, organization):
    submitted(organization.projects.get())
    limited(
        LimitTarget(LimitScope.POOL, "", POOL), kind=LimitKind.PAUSE, max_active=0, cause=Cause(OPERATOR, "maintenance")
    )
    result = alice.get(LOAD).json()
    assert (result["queued"], result["servable"]) == (1, 0)


def test_it_counts_no_further_than_it_has_to(alice, organization, monkeypatch):
    monkeypatch.setattr("orchestrator.selectors.pools.MAX_COUNTED", 3)
    for waiting, capped in ((2, False), (3, True), (4, True)):
        while len(alice.get("/v1/runtime/jobs").json()["results"]) < waiting:
            submitted(organization.projects.get())
        result = alice.get(LOAD).json()
        assert (result["queued"], result["servable"], result["capped"]) == (min(waiting, 3), min(waiting, 3), capped)


def test_it_asks_one_question_that_ends_by_itself(alice):
    with CaptureQueriesContext(
        connection,
    ) as queries:
        assert alice.get(LOAD).status_code == 200
    asked = [query["sql"] for query in queries]
    assert sum("WITH RECURSIVE" in sql for sql in asked) == 1
    assert any("SET LOCAL statement_timeout" in sql for sql in asked)


def test_a_worker_reads_the_load_of_its_own_pool(wendy):
    assert wendy.get(LOAD).status_code == 200
    assert [row["pool"] for row in wendy.get("/v1/pools").json()["results"]] == [POOL]
    refused(lambda: wendy.get("/v1/pools/gpu/load"), 404, "not_found")


def test_a_client_reads_that_of_pools_in_which_it_has_a_project(alice, organization):
    refused(lambda: alice.get("/v1/pools/gpu/load"), 404, "not_found")
    off = ProjectFactory(organization=organization, slug="off", pool="gpu", enabled=False)
    refused(lambda: alice.get("/v1/pools/gpu/load"), 404, "not_found")
    off.enabled = True
    off.save()
    assert alice.get("/v1/pools/gpu/load").status_code == 200
    assert [row["pool"] for row in alice.get("/v1/pools").json()["results"]] == ["gpu", POOL]


def test_the_default_pool_is_that_of_projects_that_name_none(organization):
    project = organization.projects.get()
    project.pool = "gpu"
    project.save()
    caller = Caller(api_token(organization))
    refused(lambda: caller.get(LOAD), 404, "not_found")
    assert caller.get("/v1/pools/gpu/load").status_code == 200


def test_a_pool_that_one_may_not_see_is_one_that_does_not_exist(organization):
    stranger = Caller(api_token(OrganizationFactory(slug="stranger")))
    hidden = refused(lambda: stranger.get(LOAD), 404, "not_found")
    missing = refused(lambda: stranger.get("/v1/pools/nowhere/load"), 404, "not_found")
    assert hidden | {"request_id": ""} == missing | {"request_id": ""}
    assert stranger.get("/v1/pools").json()["results"] == []


def test_a_token_needs_the_scope(organization):
    caller = Caller(api_token(organization, scopes=(Scope.JOBS_READ, Scope.JOBS_WRITE)))
    refused(lambda: caller.get(LOAD), 403, "insufficient_scope")
    refused(lambda: caller.get("/v1/pools"), 403, "insufficient_scope")
    refused(lambda: Caller().get(LOAD), 401, "unauthenticated")


def test_staff_read_all_and_members_those_of_their_jobs(organization):
    user = get_user_model().objects.create_user("olga", is_staff=True)
    browser = Client()
    browser.force_login(user)
    assert [row["pool"] for row in browser.get("/v1/pools").json()["results"]] == ["gpu", POOL]
    assert browser.get("/v1/pools/gpu/load").status_code == 200
    member = get_user_model().objects.create_user("mia")
    Membership.objects.create(user=member, organization=organization)
    browser.force_login(member)
    assert browser.get(LOAD).status_code == 200
    assert browser.get("/v1/pools/gpu/load").status_code == 404


@pytest.mark.parametrize("path", ["/v1/pools/UPPER/load", "/v1/pools/%00/load", "/v1/pools//load", f"{LOAD}/"])
def test_what_cannot_be_a_pool_is_none(alice, path):
    refused(lambda: alice.get(path), 404, "not_found")
