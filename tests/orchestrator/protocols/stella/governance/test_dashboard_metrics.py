"""The numbers of the dashboard: what waits, runs and has ended, and what restricts it, in six statements."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from leases.models import LimitKind
from leases.scheduling.limits import LimitTarget
from orchestrator.core.cause import Cause
from orchestrator.selectors.dashboard import read_dashboard
from orchestrator.services import cancellation, job_end
from runtime_jobs.models.tenants import Scope
from runtime_jobs.states import FailureReason
from tests.api_client import Caller, refused
from tests.factories import ALICE, WorkerFactory, api_token, claimed, limited, submitted, submitted_steps
from tests.orchestrator.protocols.native.limits.limit_requests import broken, ok

pytestmark = pytest.mark.django_db

PATH = "/api/dashboard/metrics"


def numbers(caller, query: str = "") -> dict:
    return ok(caller.get(PATH + query))


def ended(taken, worker, outcome: str) -> None:
    lease = {"lease_ulid": taken.lease.lease_ulid, "worker": worker}
    if outcome == "completed":
        job_end.complete(**lease, ingest_run_id=f"run_{taken.job.job_ulid[4:]}")
    else:
        job_end.fail(**lease, reason=FailureReason.TIMED_OUT)


def test_an_idle_tenant_has_zeros(alice):
    found = numbers(alice)
    assert found["tenants"] == ["demo"]
    assert set(found["jobs"].values()) == {0}
    assert found["lastHour"] == {"completed": 0, "failed": 0, "canceled": 0, "queueSeconds": None, "runSeconds": None}
    assert [found[name] for name in ("jobTypes", "failures", "sources", "breakers")] == [[], [], [], []]
    assert found["incidents"] == {"count": 0, "newest": []}


def test_jobs_are_counted_by_status_and_type(alice, demo, stranger):
    project, worker = demo.projects.get(), WorkerFactory()
    for outcome in ("completed", "completed", "failed"):
        submitted(project)
        ended(claimed(worker), worker, outcome)
    canceled = submitted(project)
    cancellation.cancel(job_ulid=canceled.job_ulid, actor=ALICE, deadline_seconds=60)
    submitted(project)
    claimed(worker)
    submitted(project)
    claimed(worker, acknowledge=True)
    submitted(project)
    needed = submitted_steps(project)
    submitted(project, depends_on=(needed,))
    found = numbers(alice)
    assert found["jobs"] == {"created": 1, "queued": 2, "throttled": 0, "leased": 1, "running": 1}
    runtime, steps = ({row["jobType"]: row for row in found["jobTypes"]}[name] for name in ("runtime", "steps"))
    assert steps["jobs"] == {"created": 0, "queued": 1, "throttled": 0, "leased": 0, "running": 0}
    assert steps["oldestQueuedAt"] is not None
    counts = {name: runtime["lastHour"][name] for name in ("completed", "failed", "canceled")}
    assert counts == {"completed": 2, "failed": 1, "canceled": 1}
    assert found["lastHour"] == runtime["lastHour"]
    assert found["lastHour"]["runSeconds"] >= 0
    assert found["failures"] == [{"reason": "timed_out", "count": 1}]
    assert numbers(stranger)["jobTypes"] == []


def test_jobs_that_a_limit_stops_are_throttled(alice, demo):
    project = demo.projects.get()
    for _ in range(3):
        submitted(project)
    submitted_steps(project)
    target = LimitTarget.of_organization("demo", "runtime")
    limited(target, kind=LimitKind.PAUSE, max_active=0, cause=Cause(ALICE, "calm"))
    found = numbers(alice)
    assert (found["jobs"]["queued"], found["jobs"]["throttled"]) == (1, 3)
    (source,) = found["sources"]
    assert (source["sourceId"], source["status"], source["reason"]) == ("demo:runtime", "paused", "calm")
    limited(target, kind=LimitKind.PAUSE, cause=Cause(ALICE, "go"))
    assert numbers(alice)["jobs"]["throttled"] == 0


def test_breakers_and_incidents_are_shown(alice, stranger, demo):
    broken("demo")
    found = numbers(alice)
    (breaker,) = found["breakers"]
    assert (breaker["tenant"], breaker["jobType"], breaker["state"]) == ("demo", "runtime", "open")
    assert found["incidents"]["count"] == 13, "of the breaker, and of each of the twelve jobs"
    assert {row["kind"] for row in found["incidents"]["newest"]} == {"breaker", "job"}
    assert numbers(stranger)["incidents"]["count"] == 0


def test_operators_see_all_tenants_or_one(olga, demo, stranger):
    project, worker = demo.projects.get(), WorkerFactory()
    for outcome in ("completed", "failed"):
        submitted(project)
        ended(claimed(worker), worker, outcome)
    everything = numbers(olga)
    assert everything["tenants"] is None
    assert (everything["lastHour"]["completed"], everything["lastHour"]["failed"]) == (1, 1)
    assert numbers(olga, "?tenant=other")["lastHour"]["completed"] == 0
    refused(lambda: olga.get(f"{PATH}?tenant=nobody"), 404, "not_found")


def test_another_tenant_is_not_there(alice, stranger):
    answers = [
        refused(lambda slug=slug: alice.get(f"{PATH}?tenant={slug}"), 404, "not_found") for slug in ("other", "nobody")
    ]
    assert answers[0]["detail"] == answers[1]["detail"]


@pytest.mark.parametrize("scope", Scope.values)
def test_reading_needs_the_scope(demo, scope):
    assert Caller(api_token(demo, (scope,))).get(PATH).status_code == (200 if scope == "orch:read" else 403)


@pytest.mark.parametrize("organizations", [("demo",), None])
def test_it_takes_six_statements_whatever_there_is(demo, organizations):
    broken("demo")
    limited("demo", kind=LimitKind.RATE, per_hour=1)
    submitted_steps(demo.projects.get())
    with CaptureQueriesContext(
        connection,
    ) as queries:
        read_dashboard(organizations)
    statements = [query["sql"] for query in queries if "SAVEPOINT" not in query["sql"]]
    assert len(statements) == 6
