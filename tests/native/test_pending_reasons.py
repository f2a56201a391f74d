"""Why a job waits, as the API says it: every code of the closed list, for one job and in lists."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from orchestrator import lifecycle
from tests.factories import (
    ALICE,
    OPERATOR,
    PoolFactory,
    WorkerFactory,
    claimed,
    demanding,
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
    """A worker that was heard just now."""
    return WorkerFactory(last_seen_at=timezone.now(), **columns)


@pytest.fixture
def why(alice):
    """The reason of a job: the same from the list and from its page, in both doors that show it."""

    def ask(job):
        doors = [JOBS, ANY_JOBS] if job.job_type == "runtime" else [ANY_JOBS]
        told = [alice.get(f"{door}/{job.job_ulid}").json() for door in doors]
        for door in doors:
            told += [row for row in alice.get(door).json()["results"] if row["job_id"] == job.job_ulid]
        assert len(told) == 2 * len(doors)
        answers = [(row["pending_reason"], row["queue_position"]) for row in told]
        assert all(answer == answers[0] for answer in answers)
        return answers[0][0]

    return ask


def test_behind_says_where_and_how_many_workers_are_alive(why, project):
    alive(), alive(), alive(pool=PoolFactory(slug="elsewhere"))
    first, second = submitted(project), submitted(project)
    assert why(first) == {
        "code": "behind",
        "message": "It is next in the queue of the pool shared-linux; 2 workers that could run it are alive.",
        "pool": "shared-linux",
        "workers_alive": 2,
        "position": 1,
    }
    assert why(second)["message"].startswith("Number 2 in the queue of the pool shared-linux")
    assert why(second)["position"] == 2


def test_all_workers_busy(why, project):
    worker = alive(capacity=1)
    running, waiting = submitted(project), submitted(project)
    claimed(worker)
    assert why(running) is None
    assert why(waiting) == {
        "code": "all_workers_busy",
        "message": "It is next; 1 worker that could run it is alive in the pool shared-linux, and busy.",
        "pool": "shared-linux",
        "workers_alive": 1,
        "position": 1,
    }


def test_what_a_dead_process_of_a_worker_held_leaves_it_room(why, project):
    worker = alive(capacity=1)
    submitted(project)
    claimed(worker, session="01KKYGKAGQ0JK17BX6Y1W8C3DF")
    waiting = submitted(project)
    assert why(waiting)["code"] == "all_workers_busy"
    Worker.objects.update(session="01KKYGKAGR0JK17BX6Y1W8C3DF")
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
        "message": "No worker is alive in the pool shared-linux.",
        "pool": "shared-linux",
        "workers_alive": 0,
        "missing": [{"kind": "requirement", "name": "linux"}],
    }


def test_no_matching_worker_says_what_the_nearest_one_lacks(why, project):
    alive(labels=["gpu"])
    alive(capabilities=["linux"])
    job = submitted(project)
    demanding(job, requirements=["arm64", "gpu", "linux"])
    told = why(job)
    assert told["code"] == "no_matching_worker"
    assert told["missing"] == [{"kind": "requirement", "name": "arm64"}]
    assert told["message"] == "No worker of the pool shared-linux offers arm64; 2 workers are alive."


def test_no_matching_worker_names_the_isolation(why, project):
    alive(capabilities=["linux", "restricted"])
    told = why(submitted(project))
    assert told["missing"] == [{"kind": "isolation", "name": "namespaces"}]
    assert "isolation namespaces" in told["message"]


def test_a_worker_that_gave_it_back_as_too_weak_does_not_count(why, project):
    worker = alive()
    job = submitted(project)
    claim = claimed(worker)
    lifecycle.release(lease_ulid=claim.lease.lease_ulid, worker=worker, unable=True)
    told = why(job)
    assert (told["code"], told["missing"], told["workers_alive"]) == ("no_matching_worker", [], 1)
    assert told["message"].startswith("Each worker of the pool shared-linux that fits has given it back")
    alive()
    assert why(job)["code"] == "behind"


def test_organization_limit_before_and_after_a_claim_has_met_it(why, project):
    worker = alive()
    lifecycle.set_limit(org_slug="sandtrace", job_type="runtime", max_active=1, by=OPERATOR, reason="x")
    submitted(project)
    claimed(worker)
    waiting = submitted(project)
    seen = {
        "code": "organization_limit",
        "message": "sandtrace may run 1 job of type runtime at once, and does.",
        "limit": {"kind": "organization", "key": "runtime", "max_active": 1},
    }
    assert why(waiting) == seen
    assert lifecycle.claim(worker=worker, offer=offer(worker)) is None
    assert why(waiting) == seen


def test_another_types_limit_holds_nobody_else(why, project):
    alive()
    lifecycle.set_limit(org_slug="sandtrace", job_type="steps", max_active=0, by=OPERATOR, reason="x")
    assert why(submitted(project))["code"] == "behind"
    assert why(submitted_steps(project))["code"] == "organization_limit"


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
    lifecycle.complete(lease_ulid=claim.lease.lease_ulid, worker=worker, ingest_run_id="run_1")
    assert why(last)["depends_on"] == [second.job_ulid]
    assert alice.get(f"{JOBS}/{last.job_ulid}").json()["depends_on"] == [first.job_ulid, second.job_ulid]


def test_what_does_not_wait_has_no_reason(why, project):
    worker = alive()
    job = submitted(project)
    claimed(worker, acknowledge=True)
    assert why(job) is None
    lifecycle.cancel(job_ulid=job.job_ulid, by=ALICE, deadline_seconds=30)
    assert why(job) is None


def test_a_page_costs_as_many_queries_as_one_row(alice, project):
    alive()
    lifecycle.set_limit(org_slug="sandtrace", max_active=0, by=OPERATOR, reason="x")
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
