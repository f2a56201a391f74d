"""Is anything wrong? Calm when nothing is; else each trouble is said once, with a link to just the rows it is about."""

import re
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from leases.models import Lease
from orchestrator import services
from orchestrator.admin.dashboard import queries
from orchestrator.admin.dashboard.alerts import current_alerts, problems
from orchestrator.models import ClockBeat
from runtime_jobs.models import Job
from runtime_jobs.states import FailureReason
from tests.factories import OPERATOR, WorkerFactory, claimed, submitted
from tests.orchestrator.admin.conftest import client_of, person
from tests.orchestrator.admin.pages import FIRST
from workers.models import Worker

QUERIES = 17


@pytest.fixture
def now():
    return timezone.now()


@pytest.fixture
def well(db, now):
    """A scheduler with a fresh beat and one worker that is online."""
    ClockBeat.objects.create(leader="here:1", beat_at=now)
    return heard(WorkerFactory(), now)


def heard(worker: Worker, at) -> Worker:
    Worker.objects.filter(pk=worker.pk).update(last_seen_at=at)
    return worker


def said(now) -> list[tuple[str, str]]:
    return [(problem.level, problem.text) for problem in problems(current_alerts(now))]


def test_nothing_is_wrong_on_a_quiet_night(olga, well, now):
    assert said(now) == []
    page = olga.get(FIRST).content.decode()
    assert "Nothing is wrong." in page
    assert 'class="alarm' not in page


def test_a_busy_night_is_calm_as_long_as_it_goes_well(well, now):
    submitted()
    taken = claimed(well)
    services.report(lease_ulid=taken.lease.lease_ulid, worker=well, phase="executing")
    submitted()
    assert said(now) == []


def test_a_silent_clock_is_the_first_thing_said(well, now):
    assert said(now + timedelta(seconds=16))[0][0] == "danger"
    assert "The clock is silent (last beat: 16 s ago)" in said(now + timedelta(seconds=16))[0][1]
    ClockBeat.objects.all().delete()
    assert "last beat: never" in said(now)[0][1]


def test_a_worker_is_silent_after_a_minute_while_it_is_active(well, now):
    heard(well, now - timedelta(seconds=59))
    assert said(now) == []
    heard(well, now - timedelta(seconds=60))
    assert said(now) == [("warning", "1 active worker has been silent for more than a minute.")]
    services.set_worker_state(worker_id=well.worker_id, state="maintenance", actor=OPERATOR)
    assert said(now) == []


def test_a_new_worker_has_a_minute_to_be_heard(db, now):
    ClockBeat.objects.create(leader="here:1", beat_at=now)
    WorkerFactory()
    assert said(now) == []
    ClockBeat.objects.update(beat_at=now + timedelta(seconds=90))
    assert said(now + timedelta(seconds=90)) == [("warning", "1 active worker has been silent for more than a minute.")]


def test_jobs_in_a_pool_without_anybody_are_said(well, now):
    submitted()
    heard(well, now - timedelta(minutes=2))
    assert ("danger", "1 job waits in shared-linux, where no worker is alive.") in said(now)


def test_a_long_wait_is_said_although_somebody_is_alive(well, now):
    submitted()
    Job.objects.update(created_at=now - timedelta(minutes=11))
    assert said(now) == [("warning", "The oldest job in shared-linux has waited for 11 min.")]


def test_the_oldest_is_found_behind_jobs_of_a_higher_priority(well, now):
    for priority, minutes in ((300, 1), (300, 2), (100, 40), (200, 3), (100, 4)):
        job = submitted()
        Job.objects.filter(pk=job.pk).update(priority=priority, created_at=now - timedelta(minutes=minutes))
    (queue,) = queries.queues()
    assert (queue.pool, queue.waiting, queue.oldest) == ("shared-linux", 5, now - timedelta(minutes=40))


def test_queues_are_counted_up_to_a_bound(well, monkeypatch):
    for pool in ("a-linux", "b-linux"):
        for _ in range(4):
            Job.objects.filter(pk=submitted().pk).update(pool=pool)
    monkeypatch.setattr(queries, "COUNTED", 2)
    assert [(queue.pool, queue.waiting) for queue in queries.queues()] == [("a-linux", 3), ("b-linux", 3)]


def test_a_lease_that_the_clock_should_have_ended_is_said(well, now):
    submitted()
    claimed(well, now=now - timedelta(seconds=129))
    assert said(now) == []
    assert said(now + timedelta(seconds=2)) == [("danger", "1 lease is overdue: the clock has not ended them.")]


def test_a_cancel_that_nobody_obeys_is_said(well, now):
    submitted()
    job = claimed(well).job
    services.cancel(job_ulid=job.job_ulid, actor=OPERATOR, deadline_seconds=5, now=now - timedelta(seconds=20))
    assert said(now) == [("danger", "1 cancel was not obeyed in time.")]


def test_a_hand_out_that_nobody_took_up_is_said_for_a_day(well, now):
    submitted()
    job = claimed(well, acknowledge=True).job
    services.expire(job_ulid=job.job_ulid, now=now + timedelta(seconds=31))
    assert said(now) == [("warning", "1 job was handed out but not taken up in 24 hours.")]
    late = now + timedelta(hours=24, minutes=1)
    ClockBeat.objects.update(beat_at=late)
    heard(well, late)
    Job.objects.update(created_at=late)
    assert said(late) == []


@pytest.mark.parametrize(
    ("reason", "ours"),
    [(FailureReason.WORKER_ERROR, True), (FailureReason.UPLOAD_FAILED, True), (FailureReason.COMMAND_NOT_FOUND, False)],
)
def test_a_failure_is_an_alarm_only_where_there_is_something_to_mend(reason, ours, olga, well, now):
    submitted()
    taken = claimed(well)
    services.fail(lease_ulid=taken.lease.lease_ulid, worker=well, reason=reason)
    words = reason.replace("_", " ")
    assert said(timezone.now()) == ([("warning", f"1 job failed in 24 hours: {words}.")] if ours else [])
    assert words in olga.get(FIRST).content.decode()  # among the reasons either way


def test_every_alarm_leads_to_the_rows_that_it_counts(olga, scene):
    Lease.objects.open().update(expires_at=scene.ago(1))
    Job.objects.filter(cancel_deadline_at__isnull=False).update(cancel_deadline_at=scene.ago(1))
    found = [problem for problem in problems(current_alerts(timezone.now())) if problem.link]
    assert len(found) == 6
    for problem in found:
        rows = olga.get(problem.link).context["cl"].result_list
        assert len(rows) == int(re.match(r"(\d+)", problem.text)[1]), problem


def test_the_first_page_costs_the_same_however_much_there_is(olga, scene):
    olga.get(FIRST)
    with CaptureQueriesContext(connection) as few:
        olga.get(FIRST)
    for _ in range(10):
        submitted()
        WorkerFactory()
    with CaptureQueriesContext(connection) as many:
        olga.get(FIRST)
    assert len(many) == len(few) <= QUERIES


def test_whoever_may_not_see_jobs_gets_no_numbers(scene):
    page = client_of(person("sven")).get(FIRST)
    assert page.status_code == 200
    assert "rtj_" not in page.content.decode()
    assert "state" not in page.context or not page.context.get("problems")
