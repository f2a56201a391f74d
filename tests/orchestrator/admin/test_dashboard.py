"""The dashboard: no alerts while all is well; otherwise one alert for each problem, with a link to exactly its rows."""

import re
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from leases.models import Lease
from orchestrator.admin.dashboard import queries
from orchestrator.admin.dashboard.alerts import current_alerts, read_state
from orchestrator.admin.dashboard.tiles import tiles
from orchestrator.core.cause import Cause
from orchestrator.core.clock_beat import ClockBeat
from orchestrator.housekeeping.models import HousekeepingTask
from orchestrator.services import cancellation, expiry, heartbeat, job_end, worker_state
from orchestrator.webhooks.models import DispatchPosition, Webhook
from runtime_jobs.models import Job
from runtime_jobs.states import FailureReason
from tests.factories import (
    OPERATOR,
    ProjectFactory,
    RunnerPoolFactory,
    WorkerFactory,
    claimed,
    scheduler_beat,
    submitted,
    submitted_steps,
)
from tests.orchestrator.admin.conftest import client_of, person
from tests.orchestrator.admin.pages import DASHBOARD
from tests.orchestrator.webhooks.world import make_deliveries, make_webhook
from workers.models import Worker

QUERIES = 20


@pytest.fixture
def now():
    return timezone.now()


@pytest.fixture
def well(db, now):
    """A scheduler with a heartbeat and one online worker."""
    scheduler_beat(now, "here:1")
    return seen_at(WorkerFactory(), now)


def seen_at(worker: Worker, at) -> Worker:
    Worker.objects.filter(pk=worker.pk).update(last_seen_at=at)
    return worker


def dispatched_at(at) -> None:
    """Set the last beat of a dispatcher; None: there was none."""
    DispatchPosition.objects.all().delete()
    if at is not None:
        DispatchPosition.objects.create(pk=1, stamp=1, beat_at=at)


def alerts(now) -> list[tuple[str, str]]:
    return [(alert.level, alert.text) for alert in current_alerts(read_state(now))]


def test_there_are_no_alerts_while_all_is_well(olga, well, now):
    assert alerts(now) == []
    page = olga.get(DASHBOARD).content.decode()
    assert "No alerts" in page
    assert 'class="alert ' not in page


def test_the_dashboard_uses_the_terms_that_operators_know(olga, well, now):
    """Older pages had the heading `3 things need a look`, a tile `Clock alive`, `silent` workers and a column `Why`."""
    submitted()
    job_end.fail(lease_ulid=claimed(well).lease.lease_ulid, worker=well, reason=FailureReason.WORKER_ERROR)
    seen_at(well, now - timedelta(minutes=2))
    ClockBeat.objects.update(beat_at=now + timedelta(hours=1))
    page = olga.get(DASHBOARD).content.decode()
    for words in (
        "<h2>3 alerts</h2>", "<dt>Scheduler</dt><dd>Healthy</dd>", "<small>1 offline</small>",
        "<td>0 online, 1 offline</td>", "<h2>Recent failures ", "<th>Reason</th>",
    ):  # fmt: skip
        assert words in page, words


def test_queued_and_running_jobs_are_no_alerts(well, now):
    submitted()
    taken = claimed(well)
    heartbeat.report(lease_ulid=taken.lease.lease_ulid, worker=well, phase="executing")
    submitted()
    assert alerts(now) == []


def test_a_scheduler_that_is_down_is_the_first_alert(well, now):
    assert alerts(now + timedelta(seconds=16))[0][0] == "danger"
    assert "Scheduler down (last heartbeat: 16 s ago)" in alerts(now + timedelta(seconds=16))[0][1]
    ClockBeat.objects.all().delete()
    assert "last heartbeat: never" in alerts(now)[0][1]


def test_an_active_worker_is_offline_after_a_minute(well, now):
    seen_at(well, now - timedelta(seconds=59))
    assert alerts(now) == []
    seen_at(well, now - timedelta(seconds=60))
    assert alerts(now) == [("warning", "1 worker offline: no heartbeat for more than a minute.")]
    worker_state.set_worker_state(worker_id=well.worker_id, state="maintenance", cause=Cause(OPERATOR))
    assert alerts(now) == []


def test_a_worker_that_never_connected_is_neither_an_alert_nor_capacity(olga, db, now):
    """`make up` registers a worker that no process uses: it was a lasting alert, and its slots were counted."""
    WorkerFactory(capacity=8, created_at=now - timedelta(days=1))
    connected = seen_at(WorkerFactory(capacity=1), now)
    scheduler_beat(now, "here:1")
    assert alerts(now) == []
    shown = {tile.label: (tile.value, tile.note) for tile in tiles(read_state(now))}
    assert shown["Workers online"] == ("1", "1 never connected")
    assert shown["Running"] == ("0", "1 free slot")
    page = olga.get(DASHBOARD).content.decode()
    assert "1 online, 1 never connected" in page
    listed = olga.get("/admin/workers/worker/?health=never_connected").context["cl"].result_list
    assert [worker.pk for worker in listed] == [Worker.objects.exclude(pk=connected.pk).get().pk]
    assert "Never connected" in olga.get("/admin/workers/worker/").content.decode()


def test_free_slots_are_those_that_no_lease_occupies(well, now):
    Worker.objects.filter(pk=well.pk).update(capacity=3)
    drained = seen_at(WorkerFactory(capacity=5), now)
    worker_state.set_worker_state(worker_id=drained.worker_id, state="draining", cause=Cause(OPERATOR))
    submitted()
    claimed(well)
    shown = {tile.label: (tile.value, tile.note) for tile in tiles(read_state(now))}
    assert shown["Running"] == ("1", "2 free slots")
    assert shown["Workers online"] == ("1", "1 draining")


def test_queued_jobs_without_an_online_worker_are_an_alert(well, now):
    submitted()
    seen_at(well, now - timedelta(minutes=2))
    assert ("danger", "1 queued job in pool shared-linux without an online worker.") in alerts(now)


def test_a_long_queue_time_is_an_alert_although_a_worker_is_online(well, now):
    submitted()
    Job.objects.update(created_at=now - timedelta(minutes=11))
    assert alerts(now) == [("warning", "Long queue time in pool shared-linux: 11 min.")]


def test_the_oldest_is_found_behind_jobs_of_a_higher_priority(well, now):
    for priority, minutes in ((300, 1), (300, 2), (100, 40), (200, 3), (100, 4)):
        job = submitted()
        Job.objects.filter(pk=job.pk).update(priority=priority, created_at=now - timedelta(minutes=minutes))
    (queue,) = queries.queue_counts()
    assert (queue.pool, queue.queued, queue.oldest) == ("shared-linux", 5, now - timedelta(minutes=40))


def test_queues_are_counted_up_to_a_bound(well, monkeypatch):
    for pool in ("a-linux", "b-linux"):
        for _ in range(4):
            Job.objects.filter(pk=submitted().pk).update(pool=pool)
    monkeypatch.setattr(queries, "MAX_COUNT", 2)
    assert [(queue.pool, queue.queued) for queue in queries.queue_counts()] == [("a-linux", 3), ("b-linux", 3)]


def test_an_overdue_lease_is_an_alert(well, now):
    submitted()
    claimed(well, now=now - timedelta(seconds=129))
    assert alerts(now) == []
    assert alerts(now + timedelta(seconds=2)) == [("danger", "1 overdue lease: not expired by the scheduler.")]


def test_an_overdue_cancel_is_an_alert(well, now):
    submitted()
    job = claimed(well).job
    cancellation.cancel(job_ulid=job.job_ulid, actor=OPERATOR, deadline_seconds=5, now=now - timedelta(seconds=20))
    assert alerts(now) == [("danger", "1 overdue cancel: not stopped by the worker in time.")]


def test_an_unacknowledged_lease_is_an_alert_for_a_day(well, now):
    submitted()
    job = claimed(well, acknowledge=True).job
    expiry.expire(job_ulid=job.job_ulid, now=now + timedelta(seconds=31))
    assert alerts(now) == [("warning", "1 lease not acknowledged by the worker in the last 24 hours.")]
    late = now + timedelta(hours=24, minutes=1)
    ClockBeat.objects.update(beat_at=late)
    seen_at(well, late)
    Job.objects.update(created_at=late)
    assert alerts(late) == []


@pytest.mark.parametrize(
    ("reason", "is_platform_error"),
    [(FailureReason.WORKER_ERROR, True), (FailureReason.UPLOAD_FAILED, True), (FailureReason.COMMAND_NOT_FOUND, False)],
)
def test_only_platform_errors_are_alerts(reason, is_platform_error, olga, well, now):
    submitted()
    taken = claimed(well)
    job_end.fail(lease_ulid=taken.lease.lease_ulid, worker=well, reason=reason)
    words = reason.replace("_", " ")
    found = alerts(timezone.now())
    opened = [("warning", f"1 open incident: A runtime job of {taken.job.org_slug}/web failed: {reason}.")]
    assert found == (
        [*opened, ("warning", f"1 platform error in the last 24 hours: {words}.")] if is_platform_error else []
    )
    assert words in olga.get(DASHBOARD).content.decode()  # among the reasons either way


def test_every_alert_leads_to_the_rows_that_it_counts(olga, scene):
    Lease.objects.open().update(expires_at=scene.ago(1))
    Job.objects.filter(cancel_deadline_at__isnull=False).update(cancel_deadline_at=scene.ago(1))
    found = [alert for alert in current_alerts(read_state(timezone.now())) if alert.link]
    assert len(found) == 6
    for alert in found:
        rows = olga.get(alert.link).context["cl"].result_list
        assert len(rows) == int(re.match(r"(\d+)", alert.text)[1]), alert


def test_the_dashboard_costs_the_same_however_many_rows_there_are(olga, scene):
    olga.get(DASHBOARD)
    with CaptureQueriesContext(connection) as few:
        olga.get(DASHBOARD)
    for _ in range(10):
        submitted()
        WorkerFactory()
    with CaptureQueriesContext(connection) as many:
        olga.get(DASHBOARD)
    assert len(many) == len(few) <= QUERIES


def test_a_user_without_the_permission_gets_no_numbers_but_sees_what_is_missing(scene):
    answer = client_of(person("sven")).get(DASHBOARD)
    page = answer.content.decode()
    assert answer.status_code == 200
    assert "rtj_" not in page
    assert answer.context["state"] is None
    assert "Your account has no permissions yet" in page
    assert "<b>sven</b>" in page
    assert "Can view job" in page
    assert "A superuser can grant permissions" in page


def test_a_user_who_may_see_other_pages_gets_their_list_and_the_name_of_the_permission(scene):
    page = client_of(person("sara", "workers.view_worker")).get(DASHBOARD).content.decode()
    assert "The dashboard needs a permission" in page
    assert "/admin/workers/worker/" in page


def test_runners_that_are_silent_with_a_job_are_named(well, now):
    jobs = 0
    for number, silence in enumerate((14, 16, 90)):
        runner = seen_at(WorkerFactory(slug=f"rack-{number}", pool=RunnerPoolFactory()), now)
        submitted_steps(ProjectFactory(pool=runner.pool.slug))
        lease = claimed(runner, job_types=("steps",)).lease
        Lease.objects.filter(pk=lease.pk).update(last_heartbeat_at=now - timedelta(seconds=silence))
        jobs += 1
    assert Lease.objects.open().count() == jobs
    text = "Runners silent with a job: rack-2 for 1 min 30 s, rack-1 for 16 s. The job is lost when its lease expires."
    assert alerts(now) == [("warning", text)]
    Lease.objects.filter(worker__slug="rack-2").update(last_heartbeat_at=now)
    text = "Runner silent with a job: rack-1 for 16 s. The job is lost when its lease expires."
    assert alerts(now) == [("warning", text)]


def test_a_silent_worker_of_ours_is_no_silent_runner(well, now):
    submitted()
    lease = claimed(well).lease
    Lease.objects.filter(pk=lease.pk).update(last_heartbeat_at=now - timedelta(seconds=40))
    assert alerts(now) == []


def test_the_runner_that_is_silent_for_longest_is_first_and_the_rest_is_counted(well, now):
    for number in range(7):
        runner = seen_at(WorkerFactory(slug=f"rack-{number}", pool=RunnerPoolFactory()), now)
        submitted_steps(ProjectFactory(pool=runner.pool.slug))
        lease = claimed(runner, job_types=("steps",)).lease
        Lease.objects.filter(pk=lease.pk).update(last_heartbeat_at=now - timedelta(seconds=20 + number))
    ((_, text),) = alerts(now)
    assert text.startswith("Runners silent with a job: rack-6 for 26 s, rack-5")
    assert "rack-2 for 22 s and 2 more." in text


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"failures": 3}, "1 housekeeping task failing. The page has the last errors."),
        ({"failures": 1, "due_at": None}, "1 housekeeping task failing. The page has the last errors."),
        (
            {"due_at": timedelta(minutes=-6)},
            "Housekeeping tasks due for 6 min: start manage.py runhousekeeping, or more of its processes.",
        ),
        ({"failures": 2}, None),
        ({"due_at": timedelta(minutes=-6), "claimed_until": timedelta(seconds=30)}, None),
        ({"due_at": timedelta(minutes=-4)}, None),
    ],
)
def test_housekeeping_that_fails_or_waits_is_a_warning(well, now, columns, text):
    values = {"due_at": timedelta(minutes=5)} | columns
    times = {name: now + value if isinstance(value, timedelta) else value for name, value in values.items()}
    HousekeepingTask.objects.create(kind="mirror_repository", subject="7", **times)
    assert alerts(now) == ([("warning", text)] if text else [])


def test_without_webhooks_no_dispatcher_is_missed(well, now):
    assert alerts(now) == []


@pytest.mark.parametrize(("seconds", "since"), [(None, "none yet"), (61, "1 min 1 s ago"), (59, "")])
def test_a_dispatcher_that_is_missing_while_a_webhook_waits_for_events_is_a_warning(well, now, seconds, since):
    make_webhook()
    dispatched_at(None if seconds is None else now - timedelta(seconds=seconds))
    text = f"No dispatcher reads events (last beat: {since}): start manage.py rundispatcher."
    assert alerts(now) == ([("warning", text)] if since else [])


def test_what_could_not_be_delivered_is_a_warning(well, now):
    dispatched_at(now)
    webhook = make_webhook()
    make_deliveries(webhook, due_at=now - timedelta(seconds=50))
    make_deliveries(webhook, due_at=now - timedelta(minutes=9), claimed_until=now + timedelta(seconds=9))
    assert alerts(now) == []
    make_deliveries(webhook, due_at=now - timedelta(minutes=4))
    make_deliveries(webhook, due_at=now - timedelta(minutes=7))
    make_deliveries(webhook, 2, status="dead", due_at=None, finished_at=now)
    Webhook.objects.filter(pk=webhook.pk).update(status="paused", updated_by="core:dispatcher")
    assert [text for _, text in alerts(now)] == [
        "Deliveries due for 7 min: start manage.py rundispatcher, or more of its processes.",
        "1 webhook paused or disabled: the receiver fails or is gone.",
        "2 dead letters of webhooks and mail.",
    ]


def test_a_webhook_that_a_person_has_paused_is_no_warning(well, now):
    webhook = make_webhook()
    Webhook.objects.filter(pk=webhook.pk).update(status="paused", updated_by="operator:olga")
    assert alerts(now) == []
