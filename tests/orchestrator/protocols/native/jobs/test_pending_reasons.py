"""Why a job waits, as the API says it: every code of the closed list, for one job and in lists."""

from datetime import UTC, datetime, timedelta
from io import StringIO

import pytest
from django.core.management import call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from leases.models import Limit, LimitKind, LimitScope
from leases.scheduling.limits import LimitTarget
from orchestrator.core.cause import Cause
from orchestrator.incidents import breakers
from orchestrator.protocols.delta.runners.leases import claim_for_runner
from orchestrator.selectors.pending_reasons import service
from orchestrator.selectors.pending_reasons.limits import CODES
from orchestrator.services import cancellation, claiming, heartbeat, job_end
from orchestrator.services.concurrency import ConcurrencyGroup
from runtime_jobs.models import Job
from runtime_jobs.priorities import EMERGENCY
from runtime_jobs.states import FailureReason
from tests.factories import (
    ALICE,
    OPERATOR,
    HardwareSpecFactory,
    PlanFactory,
    PoolFactory,
    WorkerFactory,
    claimed,
    demanding,
    limited,
    offer,
    submitted,
    submitted_steps,
)
from workers.models import Worker

pytestmark = pytest.mark.django_db
JOBS, ANY_JOBS = "/v1/runtime/jobs", "/v1/jobs"


@pytest.fixture
def project(organization):
    return organization.projects.get()


def alive(**columns) -> Worker:
    """A worker that is online."""
    return WorkerFactory(last_seen_at=timezone.now(), **columns)


@pytest.fixture
def why(alice):
    """The reason of a job: the same from the list and from its page, in both APIs that serialize it."""

    def ask(job):
        paths = [JOBS, ANY_JOBS] if job.job_type == "runtime" else [ANY_JOBS]
        result = [alice.get(f"{path}/{job.job_ulid}").json() for path in paths]
        for path in paths:
            result += [row for row in alice.get(path).json()["results"] if row["job_id"] == job.job_ulid]
        assert len(result) == 2 * len(paths)
        answers = [(row["pending_reason"], row["queue_position"]) for row in result]
        assert all(answer == answers[0] for answer in answers)
        return answers[0][0]

    return ask


def test_behind_says_where_and_how_many_workers_are_alive(why, project):
    alive(), alive(), alive(pool=PoolFactory(slug="elsewhere"))
    first, second = submitted(project), submitted(project)
    assert why(first) == {
        "code": "behind",
        "message": "Next in the queue of the pool shared-linux; 2 matching workers are online.",
        "pool": "shared-linux",
        "workers_alive": 2,
        "position": 1,
    }
    assert why(second)["message"].startswith("Number 2 in the queue of the pool shared-linux")
    assert why(second)["position"] == 2


def test_a_position_that_is_not_counted_to_its_end_is_that_or_later(why, project, monkeypatch):
    monkeypatch.setattr(service, "MAX_POSITION", 2)
    alive()
    *_, third = (submitted(project) for _ in range(3))
    assert why(third)["message"].startswith("Number 2 or later in the queue of the pool shared-linux")


def test_all_workers_busy(why, project):
    worker = alive(capacity=1)
    running, waiting = submitted(project), submitted(project)
    claimed(worker)
    assert why(running) is None
    assert why(waiting) == {
        "code": "all_workers_busy",
        "message": "Next in the queue of the pool shared-linux; 1 matching worker online, busy.",
        "pool": "shared-linux",
        "workers_alive": 1,
        "position": 1,
    }


def test_what_a_dead_process_of_a_worker_held_leaves_it_room_when_its_lease_ends(why, project):
    worker = alive(capacity=1)
    submitted(project)
    claimed(worker, session="01KKYGKAGQ0JK17BX6Y1W8C3DF")
    waiting = submitted(project)
    assert why(waiting)["code"] == "all_workers_busy"
    Worker.objects.update(session="01KKYGKAGR0JK17BX6Y1W8C3DF")
    assert why(waiting)["code"] == "all_workers_busy"
    with connection.cursor() as cursor:
        cursor.execute("UPDATE runtime_worker_leases SET expires_at = clock_timestamp()")
    assert why(waiting)["code"] == "behind"


@pytest.mark.parametrize(
    "columns",
    [
        {"last_seen_at": None},
        {"last_seen_at": timezone.now() - timedelta(hours=1)},
        {"state": "draining"},
        {"state": "maintenance"},
        {"state": "revoked"},
    ],
    ids=["never seen", "silent", "draining", "maintenance", "revoked"],
)
def test_a_worker_that_would_not_come_is_not_alive(why, project, columns):
    WorkerFactory(**{"last_seen_at": timezone.now()} | columns)
    assert why(submitted(project)) == {
        "code": "no_matching_worker",
        "message": "No worker is online in the pool shared-linux.",
        "pool": "shared-linux",
        "workers_alive": 0,
        "missing": [{"kind": "requirement", "name": "linux"}],
    }


class TestTheReasonThatHoldsLongest:
    """A job that several reasons hold back names the one that outlasts the others."""

    def opened_breaker(self, project):
        for _ in range(10):
            submitted(project)
            claim = claimed()
            lease = {"lease_ulid": claim.lease.lease_ulid, "worker": claim.lease.worker}
            job_end.fail(**lease, reason=FailureReason.WORKER_ERROR)
        assert breakers.evaluate_breaker(org_slug="sandtrace", job_type="runtime").state == "open"

    def test_an_open_breaker_before_no_worker_alive(self, why, project):
        self.opened_breaker(project)
        assert why(submitted(project))["code"] == "breaker_open"

    @pytest.mark.parametrize("kind", ["at once", "rate"])
    def test_a_limit_before_no_worker_alive(self, why, project, kind):
        if kind == "at once":
            limited("sandtrace", max_active=1)
        else:
            limited("sandtrace", kind=LimitKind.RATE, per_hour=1)
        submitted(project)
        claimed(WorkerFactory(last_seen_at=None))
        code = "organization_limit" if kind == "at once" else "rate_limited"
        assert why(submitted(project))["code"] == code

    def test_what_no_worker_offers_before_a_limit(self, why, project):
        limited("sandtrace", max_active=1)
        submitted(project)
        claimed(alive())
        job = submitted(project)
        demanding(job, requirements=["gpu", "linux"])
        assert why(job)["code"] == "no_matching_worker"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("way", ["command", "call"])
def test_a_worker_that_claims_through_grantlease_is_alive(project, tmp_path, alice, way):
    worker = WorkerFactory(last_seen_at=None, capacity=2)
    submitted_steps(project)
    waiting = submitted_steps(project)
    if way == "command":
        call_command("grantlease", format="delta", worker=worker.slug, output=tmp_path / "lease", stdout=StringIO())
    else:
        assert claim_for_runner(worker) is not None
    assert alice.get(f"{ANY_JOBS}/{waiting.job_ulid}").json()["pending_reason"]["code"] == "behind"


def test_no_matching_worker_says_what_the_nearest_one_lacks(why, project):
    alive(labels=["gpu"])
    alive(capabilities=["linux"])
    job = submitted(project)
    demanding(job, requirements=["arm64", "gpu", "linux"])
    result = why(job)
    assert result["code"] == "no_matching_worker"
    assert result["missing"] == [{"kind": "requirement", "name": "arm64"}]
    assert result["message"] == "No worker of the pool shared-linux offers arm64; 2 workers are online."


def test_no_matching_worker_names_the_isolation(why, project):
    alive(capabilities=["linux", "restricted"])
    result = why(submitted(project))
    assert result["missing"] == [{"kind": "isolation", "name": "namespaces"}]
    assert "isolation namespaces" in result["message"]


def asks(worker, **changes) -> None:
    """The worker claims, and there is nothing for it."""
    assert claiming.claim(worker=worker, offer=offer(worker, **changes)) is None


def test_no_matching_worker_names_the_type_that_nobody_came_for(why, project):
    worker = alive()
    asks(worker, job_types=("runtime",))
    result = why(submitted_steps(project))
    assert result["missing"] == [{"kind": "job_type", "name": "steps"}]
    assert result["message"] == "No worker of the pool shared-linux offers jobs of type steps; 1 worker is online."
    asks(worker, job_types=("runtime", "image"))
    submitted(project)
    claimed(worker, job_types=("runtime", "steps"))
    assert why(submitted_steps(project))["code"] == "behind"


def test_what_a_worker_came_with_counts_and_not_what_is_registered(why, project):
    worker = alive(labels=["gpu"])
    asks(worker, offers=frozenset({"linux"}), isolation="restricted")
    job = submitted(project)
    demanding(job, requirements=["gpu", "linux"])
    assert why(job)["missing"] == [
        {"kind": "requirement", "name": "gpu"},
        {"kind": "isolation", "name": "namespaces"},
    ]


def row_version(worker):
    """Return what differs after each UPDATE of the worker's row: its place in the table."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT ctid::text FROM workers_worker WHERE id = %s", [worker.pk])
        return cursor.fetchone()[0]


def test_an_offer_is_written_only_when_it_changes(project):
    worker = alive()
    asks(worker)
    for changes, writes in (({}, False), ({"isolation": "restricted"}, True), ({"isolation": "restricted"}, False)):
        before = row_version(worker)
        asks(worker, **changes)
        assert (row_version(worker) != before) == writes


def test_a_worker_that_gave_it_back_as_too_weak_does_not_count(why, project):
    worker = alive()
    job = submitted(project)
    claim = claimed(worker)
    heartbeat.release(lease_ulid=claim.lease.lease_ulid, worker=worker, unable=True)
    result = why(job)
    assert (result["code"], result["missing"], result["workers_alive"]) == ("no_matching_worker", [], 1)
    assert result["message"].startswith("Each matching worker of the pool shared-linux has released the job")
    alive()
    assert why(job)["code"] == "behind"


def test_organization_limit_before_and_after_a_claim_has_met_it(why, project):
    worker = alive()
    limited("sandtrace", "runtime", max_active=1)
    submitted(project)
    claimed(worker)
    waiting = submitted(project)
    seen = {
        "code": "organization_limit",
        "message": "sandtrace may run at most 1 job of type runtime at once.",
        "limit": {"kind": "organization", "scope": "organization", "key": "runtime", "max_active": 1, "per_hour": None},
    }
    assert why(waiting) == seen
    assert claiming.claim(worker=worker, offer=offer(worker)) is None
    assert why(waiting) == seen


def test_another_types_limit_holds_nobody_else(why, project):
    alive()
    limited("sandtrace", "steps", max_active=0)
    assert why(submitted(project))["code"] == "behind"
    assert why(submitted_steps(project))["code"] == "organization_limit"


def busy_with(project, worker=None, **submit) -> Job:
    """One job runs, and another one like it waits."""
    submitted(project, **submit)
    claimed(worker or alive())
    return submitted(project, **submit)


def test_the_plans_own_limit_is_the_organizations(why, organization, project):
    organization.plan = PlanFactory(name="free", priority=100, max_active=1)
    organization.save()
    result = why(busy_with(project))
    assert (result["code"], result["limit"]["kind"]) == ("organization_limit", "plan")
    assert result["message"] == "sandtrace may run at most 1 job at once."


def test_a_plans_limit_does_not_hold_a_priority_that_it_only_counts(why, organization, project):
    organization.plan = PlanFactory(name="paying", priority=200, max_active=1)
    organization.save()
    assert why(busy_with(project))["code"] == "behind"


def test_a_concurrency_group_is_a_limit_of_the_organization(why, project):
    result = why(busy_with(project, group=ConcurrencyGroup("deploy")))
    assert (result["code"], result["limit"]["kind"], result["limit"]["key"]) == (
        "organization_limit",
        "concurrency",
        "deploy",
    )
    assert result["message"] == "One job of the concurrency group deploy runs at a time."


def test_the_emergency_lane_has_its_own_limit(why, project):
    limited("sandtrace", kind=LimitKind.EMERGENCY, max_active=1)
    result = why(busy_with(project, priority=EMERGENCY))
    assert (result["code"], result["limit"]["kind"]) == ("organization_limit", "emergency")
    assert result["message"] == "sandtrace may run at most 1 emergency job at once."


def test_source_address_limit(why, organization, project):
    organization.plan = PlanFactory(name="unclaimed", priority=0, one_per_address=True)
    organization.save()
    result = why(busy_with(project))
    assert (result["code"], result["limit"]["key"]) == ("source_address_limit", "127.0.0.1")
    assert result["message"] == "At most 1 job from the address 127.0.0.1 may run at once."


def test_rate_limited_says_when_the_next_one_may_start(why, project):
    limited("sandtrace", kind=LimitKind.RATE, per_hour=2, burst=1)
    result = why(busy_with(project))
    assert (result["code"], result["limit"]["per_hour"]) == ("rate_limited", 2)
    wait = datetime.fromisoformat(result["next_at"]) - timezone.now()
    assert timedelta(minutes=28) < wait <= timedelta(minutes=30)
    assert result["message"].startswith("sandtrace may start 2 jobs an hour; the next at 20")


def test_a_throttle_says_who_and_why(why, project):
    subject = LimitTarget(LimitScope.PROJECT, "sandtrace", "web")
    limited(subject, kind=LimitKind.THROTTLE, per_hour=1, cause=Cause(OPERATOR, "the registry is slow"))
    result = why(busy_with(project))
    assert (result["code"], result["limit"]["kind"]) == ("rate_limited", "throttle")
    words = "The project sandtrace/web is throttled to 1 start an hour by olga (the registry is slow); the next at 20"
    assert result["message"].startswith(words)


UNTIL = datetime(2100, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("subject", "whose"),
    [
        (LimitTarget(LimitScope.POOL, "", "shared-linux"), "The pool shared-linux is"),
        (LimitTarget(LimitScope.JOB_TYPE, "", "runtime"), "All jobs of type runtime are"),
        (LimitTarget(LimitScope.ORGANIZATION, "sandtrace", "*"), "Jobs of sandtrace are"),
        (LimitTarget(LimitScope.ORGANIZATION, "sandtrace", "runtime"), "Jobs of type runtime of sandtrace are"),
        (LimitTarget(LimitScope.PROJECT, "sandtrace", "web"), "The project sandtrace/web is"),
    ],
    ids=str,
)
def test_pool_paused_says_by_whom_until_when_and_why(why, project, subject, whose):
    """Also of what else can be paused: the list of codes is closed, and `limit` says what it is."""
    alive()
    limited(subject, kind=LimitKind.PAUSE, max_active=0, until=UNTIL, cause=Cause(OPERATOR, "new racks"))
    assert why(submitted(project)) == {
        "code": "pool_paused",
        "message": f"{whose} paused by olga until 2100-01-01 12:00:00 UTC (new racks).",
        "limit": {"kind": "pause", "scope": subject.scope, "key": subject.key, "max_active": 0, "per_hour": None},
        "paused_by": "operator:olga",
        "paused_until": "2100-01-01T12:00:00Z",
        "note": "new racks",
    }


def test_a_pause_that_is_over_holds_nobody(why, project):
    alive()
    subject = LimitTarget(LimitScope.POOL, "", "shared-linux")
    limited(subject, kind=LimitKind.PAUSE, max_active=0, until=UNTIL)
    Limit.objects.update(until=timezone.now())
    assert why(submitted(project))["code"] == "behind"


def test_another_pools_pause_holds_nobody_here(why, project):
    alive()
    limited(LimitTarget(LimitScope.POOL, "", "elsewhere"), kind=LimitKind.PAUSE, max_active=0)
    limited(LimitTarget(LimitScope.JOB_TYPE, "", "steps"), kind=LimitKind.PAUSE, max_active=0)
    assert why(submitted(project))["code"] == "behind"


def failing(project, settings) -> None:
    """Its breaker has opened."""
    settings.BREAKER = settings.BREAKER | {"least_jobs": 1}
    worker = alive()
    submitted(project)
    claim = claimed(worker)
    lease = claim.lease.lease_ulid
    job_end.fail(lease_ulid=lease, worker=worker, reason=FailureReason.WORKER_ERROR)
    breakers.evaluate_breaker(org_slug="sandtrace", job_type="runtime")


def test_breaker_open_says_when_one_is_tried(why, project, settings):
    failing(project, settings)
    result = why(submitted(project))
    assert (result["code"], result["limit"]["key"]) == ("breaker_open", "runtime")
    wait = datetime.fromisoformat(result["next_at"]) - timezone.now()
    assert timedelta(0) < wait <= timedelta(seconds=60)
    assert result["message"].startswith("100% of the last runtime jobs of sandtrace failed. One job may start at 20")


def test_while_one_is_tried_the_others_wait_for_it(why, project, settings):
    failing(project, settings)
    probe, other = submitted(project), submitted(project)
    breakers.evaluate_breaker(org_slug="sandtrace", job_type="runtime", now=timezone.now() + timedelta(hours=1))
    assert claimed(Worker.objects.get()).job.pk == probe.pk
    result = why(other)
    assert (result["code"], result["next_at"]) == ("breaker_open", None)
    assert result["message"] == "100% of the last runtime jobs of sandtrace failed. One job may start first."


def test_of_several_the_first_one_is_reported(why, project, settings):
    failing(project, settings)
    limited("sandtrace", max_active=0)
    job = submitted(project)
    demanding(job, requirements=["gpu"])
    result = [why(job)["code"]]
    limited(LimitTarget(LimitScope.POOL, "", "shared-linux"), kind=LimitKind.PAUSE, max_active=0)
    result.insert(0, why(job)["code"])
    limited(LimitTarget(LimitScope.POOL, "", "shared-linux"), kind=LimitKind.PAUSE)
    breakers.reset_breaker(org_slug="sandtrace", job_type="runtime", cause=Cause(OPERATOR, "x"))
    result.append(why(job)["code"])
    demanding(job, requirements=["linux"])
    result.append(why(job)["code"])
    limited("sandtrace")
    result.append(why(job)["code"])
    assert result == ["pool_paused", "breaker_open", "no_matching_worker", "organization_limit", "behind"]


def test_depends_on_names_what_has_not_ended(why, alice, project):
    worker = alive()
    first, second = submitted(project), submitted(project)
    last = submitted(project, depends_on=(first, second))
    assert why(last) == {
        "code": "depends_on",
        "message": f"It starts after {first.job_ulid} and {second.job_ulid}.",
        "depends_on": [first.job_ulid, second.job_ulid],
    }
    claim = claimed(worker)
    job_end.complete(lease_ulid=claim.lease.lease_ulid, worker=worker, ingest_run_id="run_1")
    assert why(last)["depends_on"] == [second.job_ulid]
    assert alice.get(f"{JOBS}/{last.job_ulid}").json()["depends_on"] == [first.job_ulid, second.job_ulid]


def test_what_does_not_wait_has_no_reason(why, project):
    worker = alive()
    job = submitted(project)
    claimed(worker, acknowledge=True)
    assert why(job) is None
    cancellation.cancel(job_ulid=job.job_ulid, actor=ALICE, deadline_seconds=30)
    assert why(job) is None


def test_a_page_costs_as_many_queries_as_one_row(alice, project):
    alive()
    limited("sandtrace", max_active=0)
    first = submitted(project)
    submitted(project, depends_on=(first,))
    with CaptureQueriesContext(connection) as few:
        assert len(alice.get(JOBS).json()["results"]) == 2
    for _ in range(24):
        submitted(project)
        submitted(project, depends_on=(first,))
    with CaptureQueriesContext(connection) as many:
        assert len(alice.get(JOBS).json()["results"]) == 50
    assert len(many) == len(few) <= 9


def test_every_kind_of_limit_has_a_code():
    assert set(CODES) == set(LimitKind)


def test_a_missing_hardware_spec_is_named_by_its_slug(why, project):
    spec = HardwareSpecFactory(slug="two-cores")
    unknown = "spec:00000000-0000-0000-0000-000000000099"
    alive()
    job = submitted(project)
    demanding(job, requirements=[spec.label])
    reason = why(job)
    assert reason["message"] == (
        "No worker of the pool shared-linux offers the hardware spec two-cores; 1 worker is online."
    )
    assert {"kind": "requirement", "name": spec.label} in reason["missing"], "programs get the stable name"
    demanding(job, requirements=[unknown])
    assert f"offers the hardware spec {unknown};" in why(job)["message"]
