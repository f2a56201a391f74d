"""Waiting workers are notified when a lane becomes servable, and not for a job that joins others."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import psycopg
import pytest
from django.db import connection
from django.db.models import F

from leases.models import Limit, LimitKind, LimitScope
from leases.scheduling.limits import LimitTarget
from leases.scheduling.periodic import advance_cursor, notify_throttled_pools, stale_lanes
from orchestrator.core.cause import Cause
from orchestrator.pubsub.hub import announce_pools, pool_announcer
from orchestrator.services import claiming, heartbeat, job_end
from runtime_jobs.models import Job
from runtime_jobs.states import FailureReason
from tests.factories import OPERATOR, ProjectFactory, WorkerFactory, claimed, limited, offer, submitted

pytestmark = pytest.mark.django_db(transaction=True)

POOL = "shared-linux"
WHY = {"cause": Cause(OPERATOR, "test")}


@contextmanager
def calls(database_url) -> Iterator[list[str]]:
    """The pools that were called meanwhile, in order."""
    heard: list[str] = []
    pool_announcer.flush(30)  # what tests before have submitted
    with psycopg.connect(database_url, autocommit=True) as listening:
        listening.execute("LISTEN lanes")
        yield heard
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_notify('lanes', 'the end')")
        for notice in listening.notifies(timeout=30):
            if notice.payload == "the end":
                return
            heard.append(notice.payload)


@pytest.fixture(autouse=True)
def announced_at_once(monkeypatch):
    """Each operation announces its pools itself: the thread would combine those of several."""
    monkeypatch.setattr(pool_announcer, "announce", announce_pools)


@pytest.fixture
def project(db):
    return ProjectFactory()


def test_the_first_job_calls_and_the_next_ones_do_not(project, database_url):
    with calls(database_url) as heard:
        for _ in range(3):
            submitted(project)
    assert heard == [POOL]


def test_a_job_behind_a_head_that_was_taken_calls(project, database_url):
    submitted(project)
    claimed(WorkerFactory())
    with calls(database_url) as heard:
        submitted(project)
    assert heard == [POOL]


def test_a_job_behind_a_head_that_not_everybody_may_take_calls(project, database_url):
    refused = submitted(project)
    Job.objects.filter(pk=refused.pk).update(excluded_workers=["wrk_weak"])
    with calls(database_url) as heard:
        submitted(project)
        submitted(ProjectFactory(organization=project.organization, slug="another-lane"))
    assert heard == [POOL] * 2


def test_a_head_that_goes_back_before_anybody_saw_it_gone_calls(project, database_url):
    submitted(project)
    worker = WorkerFactory()
    first = claimed(worker)
    with calls(database_url) as heard:
        heartbeat.release(lease_ulid=first.lease.lease_ulid, worker=worker)
    assert heard == [POOL]


def test_a_job_of_another_lane_behind_a_head_that_was_taken_calls(project, database_url):
    submitted(project)
    claimed(WorkerFactory())
    other = ProjectFactory(organization=project.organization, slug="another-lane")
    with calls(database_url) as heard:
        submitted(other)
    assert heard == [POOL]


@pytest.mark.parametrize(
    "subject", [LimitTarget(LimitScope.POOL, "", POOL), LimitTarget(LimitScope.JOB_TYPE, "", "runtime")], ids=str
)
def test_a_throttle_calls_when_the_next_one_may_start_and_not_before(project, database_url, subject):
    limited(subject, kind=LimitKind.THROTTLE, per_hour=1, burst=1, **WHY)
    submitted(project), submitted(project)
    claimed(WorkerFactory())
    with calls(database_url) as heard:
        notify_throttled_pools()
        Limit.objects.update(spent_until=F("spent_until") - timedelta(hours=1))
        notify_throttled_pools()
    assert heard == [POOL], "once: the first look was too early"
    limited(subject, kind=LimitKind.PAUSE, max_active=0, **WHY)
    with calls(database_url) as heard:
        notify_throttled_pools()
    assert heard == [], "nothing may start all the same"


def test_the_clock_calls_where_a_job_came_while_the_head_was_being_taken(project, database_url):
    submitted(project), submitted(project)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE lane_heads SET scan_from = 0")
        cursor.execute("SELECT head_id FROM lane_heads")
        head = cursor.fetchone()[0]
    worker = WorkerFactory()
    assert claimed(worker).job.pk == head
    with connection.cursor() as cursor:
        cursor.execute("UPDATE lane_heads SET head_id = %s", [head])
    [lane] = stale_lanes()
    with calls(database_url) as heard:
        advance_cursor(lane)
    assert heard == [POOL]


def test_a_job_that_goes_back_calls_and_one_that_ends_does_not(project, database_url):
    submitted(project)
    worker = WorkerFactory()
    first = claimed(worker)
    assert claiming.claim(worker=worker, offer=offer(worker)) is None
    with calls(database_url) as heard:
        heartbeat.release(lease_ulid=first.lease.lease_ulid, worker=worker)
    assert heard == [POOL]
    again = claimed(worker)
    with calls(database_url) as heard:
        job_end.fail(lease_ulid=again.lease.lease_ulid, worker=worker, reason=FailureReason.WORKER_ERROR)
    assert heard == []


def test_a_place_that_becomes_free_calls_where_somebody_waits_for_it(project, database_url):
    limited(project.organization.slug, max_active=1, **WHY)
    submitted(project), submitted(project)
    worker = WorkerFactory()
    first = claimed(worker)
    assert claiming.claim(worker=worker, offer=offer(worker)) is None
    with calls(database_url) as heard:
        job_end.fail(lease_ulid=first.lease.lease_ulid, worker=worker, reason=FailureReason.WORKER_ERROR)
    assert heard == [POOL]


def test_who_was_kept_out_while_a_limit_is_set_or_lifted_looks_again(project, database_url):
    """Nothing of it was full: what is there could be served all the while, and a claim that came just then found none."""
    submitted(project)
    for most in (5, None):
        with calls(database_url) as heard:
            limited(project.organization.slug, max_active=most, **WHY)
        assert POOL in heard


def test_what_is_resumed_calls(project, database_url):
    subject = LimitTarget.of_organization(project.organization.slug)
    limited(subject, kind=LimitKind.PAUSE, max_active=0, **WHY)
    submitted(project)
    worker = WorkerFactory()
    assert claiming.claim(worker=worker, offer=offer(worker)) is None
    with calls(database_url) as heard:
        limited(subject, kind=LimitKind.PAUSE, **WHY)
    assert heard == [POOL]
